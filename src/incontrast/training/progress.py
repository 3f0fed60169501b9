"""What training may cost, and what it tells about itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from incontrast.bounds import check_number, given
from incontrast.schedules.schedule import ScheduleState

if TYPE_CHECKING:
    from incontrast.learner import Learner
    from incontrast.outcome import Outcome

Stop = Literal["patience", "epochs", "budget", "callback", "nothing to do"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What training may cost at most; it ends at the first limit it reaches.

    Args:
        seconds: Time. ``Learner.fit`` and ``update`` count all they do, from reading the items to
            the last figure of the outcome; what callbacks take does not count.
        forward_passes: Views that go through the encoder (a step on n items takes 2n).
    """

    seconds: float | None = None
    forward_passes: int | None = None

    def __post_init__(self) -> None:
        check_number("(0, inf)", **given(**vars(self)))


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
    begun: tuple[float, float] = (0.0, 0.0)  # seconds and part done after the slow first step

    @property
    def loss(self) -> float:
        """The loss of the last step, or the mean of the epoch that ended.

        Reading the loss of a step makes an accelerator wait for it.
        """
        return self.step_loss.item() if self.finished is None else self.finished.loss

    @property
    def seconds_left(self) -> float:
        """How long training will still take, at most: patience may end it earlier."""
        seconds, done = self.seconds - self.begun[0], self.done - self.begun[1]
        if done <= 0.0:  # there is only the first step to go by
            seconds, done = self.seconds, self.done
        return seconds * (1.0 - self.done) / done if done else math.inf


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

    def on_outcome(self, outcome: Outcome, learner: Learner) -> None:
        """After a fit or an update, with the learner as it is then."""

    def __call__(self, progress: Progress) -> bool | None:
        return self.on_step(progress) if progress.finished is None else self.on_epoch(progress)


@dataclass(frozen=True)
class Run:
    history: tuple[Epoch, ...]
    steps: int
    forward_passes: int
    seconds: float
    stopped: Stop
    rollbacks: int  # times that steps were rolled back
    schedule_state: ScheduleState  # what the schedule has learned
