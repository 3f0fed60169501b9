"""The true loss of an encoder while it is being updated, against the time it took."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from incontrast.evaluate.population import TrueLoss, measure
from incontrast.learner import Learner
from incontrast.outcome import Outcome
from incontrast.strategies import Strategy
from incontrast.training.increment import Increment
from incontrast.training.progress import Budget, Progress

__all__ = ["Point", "Trace", "trace"]

SPACING = 1.08  # a curve has a point whenever this many times more steps have been taken


@dataclass(frozen=True)
class Point:
    """The encoder that an update would have given if it had ended here."""

    seconds: float
    passes: int
    epochs: float
    loss: TrueLoss


@dataclass(frozen=True, eq=False)
class Trace:
    """An update, watched."""

    strategy: Strategy
    points: tuple[Point, ...]  # the first is the encoder of before, the last the one after
    outcome: Outcome
    learner: Learner  # as it is after the update

    def reaches(self, target: TrueLoss, tolerance: float = 0.02) -> Point | None:
        """The first point after the start that is as good as ``target``; None if there is none.

        As good means: at or below it over X′, and on old and on new items apart within
        ``tolerance`` of it.
        """
        for point in self.points[1:]:
            loss = point.loss
            apart = loss.old <= target.old * (1 + tolerance) and loss.new <= target.new * (
                1 + tolerance
            )
            if apart and loss.all <= target.all:
                return point
        return None


def trace(
    learner: Learner,
    old: Any,
    new: Any,
    strategy: Strategy,
    *,
    sample: int | None = None,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Trace:
    """Update a copy of a learner and measure its true loss as it goes; measuring costs no time.

    Args:
        learner: Fitted on the old items; stays as it is.
        old: All old items, to measure on (memory may hold only some of them).
        new: The new items.
        strategy: How to update.
        sample: Old and new items, each, to measure on; all of them if None.
        budget: What the update may cost.
        progress: Told about every step as well.
    """
    learner = copy.deepcopy(learner)
    first, later = learner.domain.collect(old), learner.domain.collect(new)
    increment = Increment(first, later, learner.memory.seen)
    points: list[Point] = []
    due = 0.0

    def look(encoder: nn.Module, seconds: float, passes: int, epochs: float) -> None:
        loss = measure(
            encoder,
            learner.domain,
            increment,
            objective=learner.objective,
            engine=learner.engine,
            sample=sample,
            seed=learner.seed,
        ).true_loss()
        points.append(Point(seconds, passes, epochs, loss))

    def watch(told: Progress) -> None:
        nonlocal due
        if progress is not None:
            progress(told)
        if told.finished is not None and told.steps >= due:
            look(told.snapshot(), told.seconds, told.passes, told.epoch)
            due = told.steps * SPACING

    look(learner.encoder, 0.0, 0, 0)
    outcome = learner.update(later, strategy=strategy, budget=budget, progress=watch)
    look(learner.encoder, outcome.seconds, outcome.passes, outcome.epochs)
    return Trace(strategy, tuple(points), outcome, learner)
