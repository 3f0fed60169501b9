"""What training may cost, how it goes, and what it tells about itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from incontrast.schedules.schedule import ScheduleState
from incontrast.training.engine import Engine

__all__ = [
    "Budget",
    "Callback",
    "Epoch",
    "Losses",
    "Progress",
    "ProgressCallback",
    "Run",
    "Stop",
    "Stopwatch",
    "TrainingDiverged",
    "check_budget",
]

UNREAD = 50  # losses that may wait on the device: one that is not finite is noticed by then

Stop = Literal["patience", "epochs", "budget", "callback", "nothing to do"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What training may cost at most; it ends at the first limit it reaches.

    Args:
        seconds: Training time.
        forward_passes: Views that go through the encoder (a step on n items takes 2n).
    """

    seconds: float | None = None
    forward_passes: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "forward_passes"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"a budget's {name} must be positive, got {limit}")

    def spent(self, seconds: float, forward_passes: int) -> float:
        """The part of it that is spent; 1 and more is all of it."""
        return max(
            0.0 if self.seconds is None else seconds / self.seconds,
            0.0 if self.forward_passes is None else forward_passes / self.forward_passes,
        )


def check_budget(budget: object) -> Budget:
    """The budget, unlimited if None; an error for anything else."""
    if budget is None:
        return Budget()
    if not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget, got {budget!r}: use Budget(seconds=...) "
            "or Budget(forward_passes=...)"
        )
    return budget


@dataclass(frozen=True)
class Epoch:
    """One line of a run's history; steps, passes and seconds count from the start of the run."""

    number: int
    loss: float  # mean over the epoch's steps, each under the weights it found
    lr: float  # of the last step
    steps: int
    forward_passes: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """Where training is, after each step and each epoch."""

    epoch: int  # from 1
    epochs: int  # at most
    lr: float
    steps: int
    forward_passes: int
    seconds: float
    done: float  # the part of the run that is done, by its epochs or its budget
    finished: Epoch | None  # the epoch that has just ended, if one has
    snapshot: Callable[[], nn.Module]  # the encoder that training would give if it ended here
    step_loss: Tensor  # () on the device

    @property
    def loss(self) -> float:
        """The loss of the last step, or the mean of the epoch that ended.

        Reading the loss of a step makes an accelerator wait for it.
        """
        return self.step_loss.item() if self.finished is None else self.finished.loss


ProgressCallback = Callable[[Progress], bool | None]
"""Called after every step and, with ``finished``, after every epoch; False ends the run."""


class Callback:
    """What follows a run, step by step: override what you need.

    ``on_step`` and ``on_epoch`` may return False, which ends the run in good order: with averaged
    weights and fresh BatchNorm statistics, as if its budget were spent.
    """

    def on_step(self, progress: Progress) -> bool | None:
        """After every step."""
        return None

    def on_epoch(self, progress: Progress) -> bool | None:
        """After every epoch; ``progress.finished`` describes it."""
        return None

    def on_end(self, run: Run) -> None:
        """After the last step of a run that did not fail."""

    def __call__(self, progress: Progress) -> bool | None:
        return self.on_step(progress) if progress.finished is None else self.on_epoch(progress)


@dataclass(frozen=True)
class Run:
    """What a training run did."""

    history: tuple[Epoch, ...]
    steps: int
    forward_passes: int
    seconds: float
    stopped: Stop
    rollbacks: int  # times that steps were rolled back
    schedule_state: ScheduleState  # what the schedule has learned


class Stopwatch:
    """Time since it was created, less what was spent inside ``paused``."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before


class TrainingDiverged(RuntimeError):
    """Training was stopped: its loss was not finite or had risen out of bounds."""


class Losses:
    """The loss of every step of an epoch, and the lowest mean of the epochs so far.

    Args:
        engine: All processes go by the first one's losses.
    """

    def __init__(self, engine: Engine) -> None:
        self.added = 0  # steps of the run, those that were rolled back too
        self.best = math.inf  # lowest mean of an epoch
        self.waited = 0  # epochs since then
        self._engine = engine
        self._read: list[float] = []  # of this epoch
        self._unread: list[Tensor] = []
        self._checkpoint = 0  # how many of them were read at the last checkpoint
        self._bound = math.nan

    def add(self, loss: Tensor) -> None:
        self.added += 1
        self._unread.append(loss)
        if len(self._unread) >= UNREAD:
            self.check()

    def last(self) -> float:
        """The loss of the last step, finite or not."""
        self._flush()
        return self._read[-1]

    def check(self) -> None:
        """Raise if a loss is not finite."""
        self._flush()
        for value in self._read:
            if not math.isfinite(value):
                raise TrainingDiverged(
                    f"the loss became {value}: look for extreme values in the data, "
                    "or lower the learning rate"
                )
        if math.isnan(self._bound) and self._read:
            # From here on a loss is no longer that of training. A collapsed encoder has
            # log(1 + K), far above this where training began from good weights.
            self._bound = self._read[0] + max(1.0, abs(self._read[0]))

    def checkpoint(self) -> None:
        """Remember where the epoch is."""
        self._checkpoint = len(self._read)

    def rollback(self) -> None:
        """Drop the losses since the last checkpoint."""
        del self._read[self._checkpoint :]

    def end_epoch(self, number: int) -> float:
        """The mean over the epoch's steps; the next epoch begins.

        Raises:
            TrainingDiverged: It has risen out of bounds.
        """
        self.check()
        mean = sum(self._read) / len(self._read) if self._read else self.best
        if mean > self._bound:
            raise TrainingDiverged(
                f"the loss rose to {mean:.3g} in epoch {number}, beyond {self._bound:.3g}: "
                "lower the learning rate"
            )
        self.best, self.waited = (mean, 0) if mean < self.best else (self.best, self.waited + 1)
        self._read, self._checkpoint = [], 0
        return mean

    def _flush(self) -> None:
        if self._unread:
            values: list[float] = torch.stack(self._unread).tolist()
            self._read += self._engine.broadcast(values)
            self._unread = []
