"""The past of a run: a checkpoint to roll back to, and a file to resume from, bit for bit.

What training has come to is written every so often: weights, optimiser, averages, losses. What
can be computed again from the seed is not: the batches drawn so far are drawn again, and schedules
are asked again what they were asked, so that samplers and schedules need no format of their own.
"""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import pickle
import re
import signal
import threading
import time
from array import array
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.files import write_bytes
from incontrast.memory.memory import StoredCollection
from incontrast.schedules import LearningRate, ScheduleState
from incontrast.schedules.schedule import Verdict
from incontrast.training.engine import Engine
from incontrast.training.progress import Epoch

if TYPE_CHECKING:
    from incontrast.training.averages import ExponentialMovingAverage
    from incontrast.training.loop import Training
    from incontrast.training.task import Increment

log = logging.getLogger(__name__)

MAGIC = b"incontrast training 2\n"
DIGEST = hashlib.sha256().digest_size
EVERY = 60.0  # seconds between two writings at least
AGREED = 10  # steps after which several processes ask the first one whether to write
PLAIN = (Tensor, bool, int, float, str, list, tuple, dict)
SHARE = 0.02  # of the time of a run that writing may take
WRITING = 3.0  # times as long as packing a state takes, about, packing included
DIGESTED = 4096  # items whose bytes are in memory while all are digested
OF_RUN = ("batches", "steps", "rollbacks", "lr")  # numbers that are written as they are
OF_TASK = ("forward_passes", "done", "begun", "epoch_part")


class TrainingFile:
    """Where the state of a run is kept while it trains; that of another run is replaced.

    It is written every ``EVERY`` seconds, less often where that would take more than ``SHARE`` of
    the time.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self._start = time.monotonic()
        self._due = self._start + EVERY
        self._first = True

    def due(self, engine: Engine, steps: int) -> bool:
        """Whether it is time to write, after so many steps; the same in all processes."""
        if engine.processes > 1 and steps % AGREED:
            return False
        return engine.broadcast_float(float(time.monotonic() >= self._due)) > 0.0

    def write(self, state: dict[str, Any], engine: Engine, *, last: bool = False) -> None:
        """Replace what the file holds by tensors and plain values in dicts and lists.

        The first process writes. Whoever reads sees the old or the new state. The ``last`` state of
        a run is written whatever that takes.
        """
        if engine.rank != 0:
            return
        begin, buffer = time.monotonic(), io.BytesIO()
        buffer.write(MAGIC + bytes(DIGEST))
        torch.save({"identity": self.identity, "state": state}, buffer)
        content = buffer.getbuffer()  # large: copied nowhere
        body = len(MAGIC) + DIGEST
        content[len(MAGIC) : body] = hashlib.sha256(content[body:]).digest()
        if self._first and not last:
            self._first = False
            self._due = self._start + WRITING * (time.monotonic() - begin) / SHARE
            if begin < self._due:
                return
        try:
            write_bytes(self.path, content)
        except OSError as error:  # training does not depend on it
            log.warning("%s cannot be written (%s): training continues", self.path, error)
        end = time.monotonic()
        self._due = end + max(EVERY, (end - begin) / SHARE)

    def read(self, engine: Engine) -> dict[str, Any] | None:
        """The state of this very run, for all processes; None if there is none to be used."""
        found = self._read() if engine.rank == 0 else None
        return engine.broadcast(found)

    def _read(self) -> dict[str, Any] | None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        body = content[len(MAGIC) + DIGEST :]
        digest = content[len(MAGIC) : len(MAGIC) + DIGEST]
        if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
            log.warning("%s is damaged: training starts over", self.path)
            return None
        try:
            found: dict[str, Any] = torch.load(
                io.BytesIO(body), weights_only=True, map_location="cpu"
            )
        except (RuntimeError, pickle.UnpicklingError) as error:
            log.warning("%s cannot be read (%s): training starts over", self.path, error)
            return None
        if found["identity"] != self.identity:
            log.info("%s is of another run: training starts from the beginning", self.path)
            return None
        state: dict[str, Any] = found["state"]
        return state


class CtrlC:
    """Lets Ctrl-C wait until the step that it falls into is done, so that its state can be written.

    A second one does not wait, nor does one that the program handles by itself.
    """

    def __init__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self._waits = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self.pressed = False

    def __enter__(self) -> Self:
        if self._waits:
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self._waits:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.pressed and kind is None:
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


class Checkpoint:
    """Remembers weights, buffers, the optimiser's state and the averaged weights of a run."""

    def __init__(
        self, encoder: nn.Module, optimizer: torch.optim.Optimizer, ema: ExponentialMovingAverage
    ) -> None:
        self._encoder, self._optimizer, self._ema = encoder, optimizer, ema
        self.taken: dict[str, Any] = {}

    def take(self) -> None:
        self.taken = copy.deepcopy(self.present())

    def restore(self) -> None:
        if not self.taken:
            raise RuntimeError("the schedule asked for a rollback before any checkpoint")
        self.bring(self.taken)

    def present(self) -> dict[str, Any]:
        """The tensors and numbers of the run as they are, not copied."""
        return {
            "encoder": tensors(self._encoder),
            "optimizer": self._optimizer.state_dict(),
            "averaged": self._ema.mean,
            "averaged steps": self._ema.steps,
        }

    @torch.no_grad()
    def bring(self, past: dict[str, Any]) -> None:
        """Make the run what ``present`` gave, which stays as it is."""
        for name, tensor in tensors(self._encoder).items():
            tensor.copy_(past["encoder"][name])
        self._optimizer.load_state_dict(copy.deepcopy(past["optimizer"]))
        for mean, kept in zip(self._ema.mean, past["averaged"], strict=True):
            mean.copy_(kept)
        self._ema.steps = past["averaged steps"]


def tensors(encoder: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, those that are no part of a state dict too."""
    found = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    return {name: tensor.detach() for name, tensor in found.items()}


class Recorded(LearningRate):
    """A learning rate that remembers what it was asked, to be brought to the same state again."""

    def __init__(self, lr: LearningRate, calls: Tensor | None = None) -> None:
        self._lr = lr
        self.watches = lr.watches  # type: ignore[misc]
        self._calls = array("d")
        for value, observed in [] if calls is None else calls.tolist():
            ask = self.observe if observed else self.next_lr
            ask(value)

    @property
    def calls(self) -> Tensor:
        """(n, 2): a loss and 1, or how far the run was and 0."""
        return torch.tensor(self._calls, dtype=torch.float64).reshape(-1, 2)

    def observe(self, loss: float) -> Verdict | None:
        self._calls.extend((loss, 1.0))
        return self._lr.observe(loss)

    def next_lr(self, progress: float) -> float:
        self._calls.extend((progress, 0.0))
        return self._lr.next_lr(progress)

    def state(self) -> ScheduleState:
        return self._lr.state()


def identity(
    encoder: nn.Module,
    schedule_state: ScheduleState,
    domain: Domain,
    increment: Increment,
    *settings: object,
) -> str:
    """Tells runs apart: by what they begin with, by their data, and by settings."""
    data = [digest(domain, items) for items in (increment.old, increment.new)]
    found = hashlib.sha256(repr((*settings, *data)).encode())
    for name, tensor in (tensors(encoder) | schedule_state).items():
        content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(name.encode() + content.numpy().tobytes())
    return found.hexdigest()


def described(settings: object) -> str:
    """Settings as text; functions of one's own without the address, which differs every time."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(settings))


def digest(domain: Domain, items: Collection | None, some: int | None = None) -> str:
    """Items as one short text: other data, or the same in another order, have another.

    All of them, or the contents of ``some``, evenly spaced.
    """
    found = hashlib.blake2b(digest_size=16)
    count = 0 if items is None else len(items)
    chosen = torch.arange(count)
    if some is not None:
        chosen = torch.linspace(0, count - 1, min(count, some), dtype=torch.float64).long()
    for places in torch.split(chosen, DIGESTED):
        if isinstance(items, StoredCollection):
            ids = items.ids[places]  # which never stand for other items in one store
            contents = [ids.numpy().tobytes()] if some is None else items.store.read(ids.tolist())
            found.update(b"".join(contents))
        elif items is not None:
            found.update(b"".join(domain.pack(items, places)))
    return found.hexdigest()


def training_state(training: Training) -> dict[str, Any]:
    """All that a run has come to and that its seed does not tell. All processes call it."""
    task, device = training.task, training.task.engine.device
    generators = [torch.get_rng_state()]  # of dropout and the like, which each process has its own
    if device.type == "cuda":
        generators.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        generators.append(torch.mps.get_rng_state())
    return {
        "weights": training.checkpoint.present(),
        "checkpoint": training.checkpoint.taken,
        "best": training.best,
        "losses": training.losses.state_dict(),
        "history": [asdict(epoch) for epoch in training.history],
        **{name: getattr(training, name) for name in OF_RUN},
        **{name: getattr(task, name) for name in OF_TASK},
        "seconds": training.seconds(),
        "once": {name: _plain(value) for name, value in task.made_once.items()},
        "schedules": {purpose: lr.calls for purpose, lr in task.recorded.items()},
        "generators": task.engine.gather_objects(generators),
    }


def restore(training: Training, state: dict[str, Any]) -> None:
    """Bring a run that has not begun to where ``training_state`` found it."""
    task = training.task
    training.checkpoint.bring(state["weights"])
    training.checkpoint.taken = state["checkpoint"]
    training.best = [weights.to(task.engine.device) for weights in state["best"]]
    training.losses.load_state_dict(state["losses"])
    training.history = [Epoch(**epoch) for epoch in state["history"]]
    for owner, names in ((training, OF_RUN), (task, OF_TASK)):
        for name in names:
            setattr(owner, name, state[name])
    training.start -= state["seconds"]
    if len(state["generators"]) != task.engine.processes:
        log.warning(
            "training was interrupted with %d processes and resumes with %d: dropout and the like "
            "draw other numbers",
            len(state["generators"]),
            task.engine.processes,
        )
        return
    cpu, *other = state["generators"][task.engine.rank]
    torch.set_rng_state(cpu)
    if other and task.engine.device.type == "cuda":
        torch.cuda.set_rng_state(other[0], task.engine.device)
    elif other:
        torch.mps.set_rng_state(other[0])


def _plain(value: Any) -> Any:
    """What of a strategy's own state a file can hold; None is made again by the strategy."""
    if hasattr(value, "state_dict"):
        return {"state_dict": value.state_dict()}
    return {"value": value} if isinstance(value, PLAIN) else None


def restore_once(value: Any, saved: Any) -> Any:
    """A strategy's own state as it was: ``value`` is what the strategy makes at first."""
    if saved is None:
        return value
    if "value" in saved:
        kept = saved["value"]
        return kept.to(value.device) if isinstance(kept, Tensor) else kept
    value.load_state_dict(saved["state_dict"])
    return value
