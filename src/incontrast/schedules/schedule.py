"""What chooses learning rates: a schedule (settings), and its learning rate in one run (state).

``Fixed`` and ``Cosine`` look at nothing but how far the run is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

__all__ = [
    "Cosine",
    "Fixed",
    "LearningRate",
    "Schedule",
    "ScheduleState",
    "Verdict",
    "as_schedule",
    "check_lr",
]

ScheduleState = dict[str, Tensor]
"""What a schedule has learned, for a later run to resume from."""

Verdict = Literal["checkpoint", "rollback"]

FLOOR = 1e-3  # of the peak: a first step at a learning rate of 0 would be a step for nothing


class LearningRate(ABC):
    """The learning rate of one training run, asked for before every step."""

    watches: ClassVar[bool] = False
    """Whether ``observe`` wants the loss of every step. Reading it makes an accelerator wait."""

    @abstractmethod
    def next_lr(self, progress: float) -> float:
        """The learning rate of this step.

        Args:
            progress: The part of the run that is done, from 0 to 1, by its epochs or its budget.
        """

    def observe(self, loss: float) -> Verdict | None:
        """The loss of this step under the weights as they are, before ``next_lr`` is asked.

        ``"checkpoint"`` remembers the weights (with the optimiser's state and the averaged
        weights), ``"rollback"`` returns to the last checkpoint and drops this step.
        """
        return None

    def state(self) -> ScheduleState:
        """What to keep for the next run."""
        return {}


class Schedule(ABC):
    """How learning rates are chosen. One of your own is a frozen dataclass with ``begin``."""

    @property
    def guarded(self) -> bool:
        """Whether an update that ends above the loss it began with is reverted as a whole."""
        return False

    @abstractmethod
    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearningRate:
        """The learning rate of one run.

        Args:
            generator: For a schedule that draws.
            state: What an earlier run has learned, for a schedule that learns.
        """


def check_lr(lr: float) -> None:
    """Raise unless a learning rate is positive and finite."""
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"a learning rate must be positive and finite, got {lr}")


def as_schedule(lr: Schedule | float) -> Schedule:
    """A number is a fixed schedule."""
    return lr if isinstance(lr, Schedule) else Fixed(lr)


def _check_warmup(warmup: float) -> None:
    if not 0.0 <= warmup < 1.0:
        raise ValueError(f"warmup must be in [0, 1), got {warmup}: it is a part of the run")


def _risen(progress: float, warmup: float) -> float:
    """The share of the highest learning rate that a linear warm-up has come to."""
    return max(progress / warmup, FLOOR) if progress < warmup else 1.0


@dataclass(frozen=True)
class Fixed(Schedule):
    """The same learning rate at every step; ``lr=1e-3`` in a strategy means ``Fixed(1e-3)``.

    Args:
        lr: The learning rate.
        warmup: The part of the run in which it rises to ``lr``, linearly.
    """

    lr: float
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_lr(self.lr)
        _check_warmup(self.warmup)

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearningRate:
        return _Constant(self)


class _Constant(LearningRate):
    def __init__(self, schedule: Fixed) -> None:
        self._schedule = schedule

    def next_lr(self, progress: float) -> float:
        return self._schedule.lr * _risen(progress, self._schedule.warmup)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Up to ``lr`` in a linear warm-up, then down to 0 along half a cosine (SGDR, ICLR 2017).

    It ends where the run ends: by the run's epochs or its budget, whichever comes first. A budget
    in seconds makes the learning rate depend on the machine's speed.

    Args:
        lr: The highest learning rate.
        warmup: The part of the run in which it rises to ``lr``.
    """

    lr: float
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_lr(self.lr)
        _check_warmup(self.warmup)

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearningRate:
        return _Falling(self)


class _Falling(LearningRate):
    def __init__(self, schedule: Cosine) -> None:
        self._schedule = schedule

    def next_lr(self, progress: float) -> float:
        peak, warmup = self._schedule.lr, self._schedule.warmup
        if progress < warmup:
            return peak * _risen(progress, warmup)
        fallen = min((progress - warmup) / (1.0 - warmup), 1.0)
        return peak * (1.0 + math.cos(math.pi * fallen)) / 2.0
