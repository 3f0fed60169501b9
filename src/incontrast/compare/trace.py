"""The evaluation loss of an encoder while it is being updated, against the time it took."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from incontrast.evaluate.population import measure
from incontrast.learner import Learner
from incontrast.outcome import Outcome
from incontrast.parity import EvaluationLoss, at_parity
from incontrast.strategies import Strategy
from incontrast.training.progress import Budget, Progress, ProgressCallback
from incontrast.training.task import Increment

SPACING = 1.08  # a curve has a point whenever this many times more steps have been taken


@dataclass(frozen=True)
class Point:
    """A moment of an update: with averaged weights, or without averaging with those of then.

    The last one is what the update gave; without averaging, that has the weights of its best epoch.
    """

    seconds: float
    forward_passes: int
    epochs: float
    loss: EvaluationLoss


@dataclass(frozen=True, eq=False)
class Trace:
    """An update, watched."""

    strategy: Strategy
    points: tuple[Point, ...]  # the first is the encoder of before, the last the one after
    outcome: Outcome
    learner: Learner  # as it is after the update

    def reaches(self, target: EvaluationLoss) -> Point | None:
        """The first point after the start that is as good as ``target``; None if there is none."""
        return next((point for point in self.points[1:] if at_parity(point.loss, target)), None)


def trace(
    learner: Learner,
    old: Any,
    new: Any,
    strategy: Strategy,
    *,
    sample: int | None = None,
    spacing: float = SPACING,
    measuring: float = math.inf,
    until: float = math.inf,
    budget: Budget | None = None,
    before: EvaluationLoss | None = None,
    progress: ProgressCallback | None = None,
    seen: Callable[[Point, nn.Module], None] | None = None,
) -> Trace:
    """Update a copy of a learner and evaluate it as it goes; evaluation costs no time.

    Args:
        learner: Fitted on the old items; stays as it is.
        old: All old items, to evaluate on (memory may hold only some of them).
        new: The new items.
        strategy: How to update.
        sample: Old and new items, each, to evaluate on; all of them if None.
        spacing: Evaluated whenever this many times more steps have been taken, at ends of epochs.
        measuring: How many times the training so far evaluation may have taken; else it waits.
        until: When training must have ended, by ``time.perf_counter``.
        budget: What the update may cost.
        before: The loss of the learner as it is, if it is known.
        progress: Called after every step as well.
        seen: Called at every point but the first, with its encoder.
    """
    learner = copy.deepcopy(learner)
    first, later = learner.domain.collect(old), learner.domain.collect(new)
    increment = Increment(first, later, learner.memory.seen)
    points: list[Point] = []
    due = measured = longest = 0.0

    def look(encoder: nn.Module, seconds: float, forward_passes: int, epochs: float) -> None:
        loss = measure(
            encoder,
            learner.domain,
            increment,
            objective=learner.objective,
            engine=learner.engine,
            sample=sample,
            seed=learner.seed,
        ).evaluation_loss()
        points.append(Point(seconds, forward_passes, epochs, loss))
        if seen is not None and len(points) > 1:
            seen(points[-1], encoder)

    def after(step: Progress) -> bool | None:
        nonlocal due, measured, longest
        if progress is not None:
            progress(step)
        begin = time.perf_counter()
        if begin >= until:
            return False
        if step.finished is None or step.steps < due or measured > measuring * step.seconds:
            return None
        if begin + longest < until:
            look(step.snapshot(), step.seconds, step.forward_passes, step.epoch)
            longest = max(longest, time.perf_counter() - begin)
            measured += time.perf_counter() - begin
            due = step.steps * spacing
        return None

    if before is None:
        look(learner.encoder, 0.0, 0, 0)
    else:
        points.append(Point(0.0, 0, 0, before))
    outcome = learner.update(later, strategy=strategy, budget=budget, callbacks=[after])
    look(learner.encoder, outcome.seconds, outcome.forward_passes, outcome.epochs)
    return Trace(strategy, tuple(points), outcome, learner)
