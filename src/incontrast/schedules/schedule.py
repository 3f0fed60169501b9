"""What chooses learning rates: a schedule (settings), and its learning rate in one run (state).

``Fixed`` and ``Cosine`` look at nothing but how far the run is.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

from torch import Generator, Tensor

from incontrast.names import NamedArguments

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


class Schedule(NamedArguments, ABC):
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


def check_lr(lr: Any) -> None:
    if isinstance(lr, bool) or not isinstance(lr, Real):
        raise TypeError(
            f"a learning rate must be a number, or a schedule such as Cosine, got {lr!r}"
        )
    if not 0 < float(lr) < math.inf:
        raise ValueError(f"a learning rate must be positive and finite, got {lr}")


def as_schedule(lr: Schedule | float) -> Schedule:
    """A number is a fixed schedule."""
    return lr if isinstance(lr, Schedule) else Fixed(lr)


@dataclass(frozen=True)
class _Warmup(Schedule, LearningRate):
    """Of schedules that keep no state and so are their own learning rate in every run."""

    lr: float
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_lr(self.lr)
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError(
                f"warmup must be in [0, 1), got {self.warmup}: it is a part of the run"
            )

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearningRate:
        return self

    def next_lr(self, progress: float) -> float:
        return self.lr * (max(progress / self.warmup, FLOOR) if progress < self.warmup else 1.0)


@dataclass(frozen=True)
class Fixed(_Warmup):
    """The same learning rate at every step; ``lr=1e-3`` in a strategy means ``Fixed(1e-3)``.

    Args:
        lr: The learning rate.
        warmup: The part of the run in which it rises to ``lr``, linearly.
    """


@dataclass(frozen=True)
class Cosine(_Warmup):
    """Up to ``lr`` in a linear warm-up, then down to 0 along half a cosine (SGDR, ICLR 2017).

    It ends where the run ends: by the run's epochs or its budget, whichever comes first. A budget
    in seconds makes the learning rate depend on the machine's speed.

    Args:
        lr: The highest learning rate.
        warmup: The part of the run in which it rises to ``lr``.
    """

    def next_lr(self, progress: float) -> float:
        fallen = min(max(progress - self.warmup, 0.0) / (1.0 - self.warmup), 1.0)
        return super().next_lr(progress) * (1.0 + math.cos(math.pi * fallen)) / 2.0
