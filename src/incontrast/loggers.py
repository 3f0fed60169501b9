"""Callbacks that write the course of training to TensorBoard, MLflow or Weights & Biases."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import distributed as dist
from torch.nn.functional import normalize

from incontrast.domains.images import Images
from incontrast.extras import needed
from incontrast.text import probe_changes
from incontrast.training.progress import Callback, Progress, Run

if TYPE_CHECKING:
    from incontrast.learner import Learner
    from incontrast.outcome import Outcome

log = logging.getLogger(__name__)

SHOWN, NEAREST = 8, 5  # items of a picture, and neighbours of each
FIGURES = ("growth_ratio", "evaluation_seconds", "epochs", "steps", "forward_passes", "rollbacks")


class Logger(Callback):
    """Writes scalars, the outcome, and pictures of nearest neighbours.

    Your own logger overrides ``scalars``, and the other methods as needed. A logger that fails is
    disabled with a warning; training continues. Its target is opened when it first writes. With
    several processes, give it to all of them, since all take part in embedding pictures; the first
    one writes.

    Args:
        every: Steps between two scalars. Reading a loss makes an accelerator wait.
        pictures: Images whose nearest neighbours, among themselves, are drawn after every fit and
            update.
    """

    def __init__(self, *, every: int = 50, pictures: Any = None) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self.pictures = every, pictures
        self.offset = 0
        """Steps of earlier runs, which come before those of this one."""
        self.failed = False

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""

    def image(self, name: str, pixels: NDArray[np.uint8], step: int) -> None:
        """Write an image of (height, width, channels)."""

    def text(self, name: str, text: str, step: int) -> None:
        """Write some lines."""

    def flush(self) -> None:
        """A fit or an update has been written; more may follow."""

    def on_step(self, progress: Progress) -> None:
        if progress.steps % self.every == 0:
            step = self.offset + progress.steps
            self._try(
                lambda: self.scalars({"step/loss": progress.loss, "step/lr": progress.lr}, step)
            )

    def on_epoch(self, progress: Progress) -> None:
        epoch = progress.finished
        assert epoch is not None
        values = {f"epoch/{name}": float(value) for name, value in vars(epoch).items()}
        self._try(lambda: self.scalars(values, self.offset + epoch.steps))

    def on_end(self, run: Run) -> None:
        self.offset += run.steps

    def on_outcome(self, outcome: "Outcome", learner: "Learner") -> None:
        picture = None
        if self.pictures is not None and isinstance(learner.domain, Images):
            try:  # even if writing has failed: the other processes would wait for this one
                picture = _neighbours(learner, self.pictures)
            except Exception as error:
                self._disable(error)
        self._try(lambda: self._write_outcome(outcome, picture))

    def _write_outcome(self, outcome: "Outcome", picture: NDArray[np.uint8] | None) -> None:
        values = {name.replace("_", " "): getattr(outcome, name) for name in FIGURES}
        values |= {"training seconds": outcome.seconds, "part kept": outcome.kept}
        changes = [
            ("loss", outcome.loss.before.all, outcome.loss.after.all),
            ("loss of old items", *outcome.loss_old),
            ("loss of new items", *outcome.loss_new),
            *probe_changes(outcome.probe),
        ]
        if outcome.change_ratio is not None:
            ratios = outcome.change_ratio
            changes.append(("change ratio", ratios.before.median, ratios.after.median))
        for name, before, after in changes:
            values |= {f"{name} before": before, f"{name} after": after}
        finite = {f"outcome/{name}": float(v) for name, v in values.items() if np.isfinite(v)}
        self.scalars(finite, self.offset)
        self.text("outcome", str(outcome), self.offset)
        if picture is not None:
            self.image("nearest neighbours", picture, self.offset)
        self.flush()

    def _try(self, write: Callable[[], None]) -> None:
        if self.failed or not _first_process():
            return
        try:
            write()
        except Exception as error:
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        self.failed = True
        log.warning("%s is disabled from now on: %s", type(self).__name__, error)


def _first_process() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _neighbours(learner: "Learner", items: Any) -> NDArray[np.uint8]:
    """(height, width, channels) with a row for each item: itself, then its nearest."""
    unit = normalize(learner.embed(items))  # first: it shares errors with all processes
    collection = learner.domain.collect(items)
    nearest = (unit[:SHOWN] @ unit.T).topk(min(1 + NEAREST, len(unit)), dim=1).indices
    pixels = collection.take(nearest.reshape(-1))  # (rows * columns, channels, side, side)
    rows, columns = nearest.shape
    grid = pixels.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2)
    side = pixels.shape[-1]
    picture: NDArray[np.uint8] = grid.reshape(rows * side, columns * side, -1).numpy()
    return picture


class TensorBoard(Logger):
    """Writes to a folder of TensorBoard (extra ``tensorboard``); options as in ``Logger``."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        super().__init__(**options)
        with needed("TensorBoard is not installed", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._open = partial(SummaryWriter, str(folder))

    @cached_property
    def writer(self) -> Any:
        """TensorBoard's ``SummaryWriter``."""
        return self._open()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def image(self, name: str, pixels: NDArray[np.uint8], step: int) -> None:
        self.writer.add_image(name, pixels, step, dataformats="HWC")

    def text(self, name: str, text: str, step: int) -> None:
        self.writer.add_text(name, f"```\n{text}\n```", step)

    def flush(self) -> None:
        self.writer.flush()


class MLflow(Logger):
    """Writes a run to MLflow (extra ``mlflow``).

    Args:
        tracking_uri: The server or ``sqlite:///FILE``; MLflow's own setting if None.
        experiment: Its name; created if it does not exist.
        options: As in ``Logger``.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "incontrast", **options: Any
    ) -> None:
        super().__init__(**options)
        with needed("MLflow is not installed", "mlflow"):
            from mlflow import MlflowClient
        self._open, self.experiment = partial(MlflowClient, tracking_uri), experiment

    @cached_property
    def client(self) -> Any:
        """MLflow's ``MlflowClient``."""
        return self._open()

    @cached_property
    def run_id(self) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else self.client.create_experiment(self.experiment)
        created: str = self.client.create_run(place).info.run_id
        return created

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run_id, name, value, step=step)

    def image(self, name: str, pixels: NDArray[np.uint8], step: int) -> None:
        self.client.log_image(self.run_id, pixels, f"{name.replace(' ', '-')}-{step}.png")

    def text(self, name: str, text: str, step: int) -> None:
        self.client.log_text(self.run_id, text, f"{name}-{step}.txt")

    def flush(self) -> None:
        self.client.set_terminated(self.run_id)  # so that it reads as finished


class WandB(Logger):
    """Writes a run to Weights & Biases (extra ``wandb``).

    Args:
        project: Its name.
        init: Arguments of ``wandb.init``.
        options: As in ``Logger``.
    """

    def __init__(
        self, project: str = "incontrast", *, init: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        with needed("Weights & Biases is not installed", "wandb"):
            import wandb
        self.wandb = wandb
        self._open = partial(wandb.init, project=project, **(init or {}))

    @cached_property
    def run(self) -> Any:
        return self._open()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def image(self, name: str, pixels: NDArray[np.uint8], step: int) -> None:
        self.run.log({name: self.wandb.Image(pixels)}, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self.run.summary[name] = text

    def flush(self) -> None:
        self.run.log({}, step=self.offset, commit=True)  # else the last step waits for the next one


LOGGERS: dict[str, type[Any]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def logger_named(name: str) -> Logger:
    """``tensorboard:FOLDER``, ``mlflow:URI`` or ``wandb:PROJECT`` as a logger."""
    kind, _, place = name.partition(":")
    if kind not in LOGGERS or not place:
        known = "tensorboard:FOLDER, mlflow:URI or wandb:PROJECT"
        raise ValueError(f"a logger is {known}, got {name!r}")
    logger: Logger = LOGGERS[kind](place)
    return logger
