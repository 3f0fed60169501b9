"""The evaluation loss of an encoder during an update, against the time the update took."""

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

SPACING = 1.08  # the encoder is evaluated after every 8 % more steps


@dataclass(frozen=True)
class Point:
    """A moment of an update, with the averaged weights; without averaging, the current ones.

    The last point is the encoder that the update returned; without averaging, of its best epoch.
    """

    seconds: float
    forward_passes: int
    epochs: float
    loss: EvaluationLoss


@dataclass(frozen=True, eq=False)
class Trace:
    """An update with the losses along the way."""

    strategy: Strategy
    points: tuple[Point, ...]  # the first is before the update, the last after it
    outcome: Outcome
    learner: Learner  # after the update

    def reaches(self, target: EvaluationLoss) -> Point | None:
        """The first point after the start that is at parity with ``target``."""
        return next((point for point in self.points[1:] if at_parity(point.loss, target)), None)


def trace(
    learner: Learner,
    old: Any,  # all old items, to evaluate on: memory may hold only some of them
    new: Any,
    strategy: Strategy,
    *,
    sample: int | None = None,  # old and new items, each, to evaluate on; all of them if None
    spacing: float = SPACING,
    measuring: float = math.inf,  # limit of evaluation along the way, as a multiple of training
    until: float = math.inf,  # when training must end, by ``time.perf_counter``
    budget: Budget | None = None,
    before: EvaluationLoss | None = None,  # the loss before the update, if known
    progress: ProgressCallback | None = None,
    seen: Callable[[Point, nn.Module], None] | None = None,  # gets every later point, its encoder
) -> Trace:
    """Update a copy of a fitted learner, evaluated along the way, which does not count as time.

    It is evaluated at ends of epochs, once the steps have grown by the factor ``spacing``.
    """
    learner = copy.deepcopy(learner)
    first, later = learner.domain.collect(old), learner.domain.collect(new)
    increment = Increment(first, later, learner.memory.seen)
    points: list[Point] = []
    due = measured = longest = 0.0

    def evaluate(encoder: nn.Module, seconds: float, forward_passes: int, epochs: float) -> None:
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

    def after_step(step: Progress) -> bool | None:
        nonlocal due, measured, longest
        if progress is not None:
            progress(step)
        begin = time.perf_counter()
        if begin >= until:
            return False
        if step.finished is None or step.steps < due or measured > measuring * step.seconds:
            return None
        if begin + longest < until:
            evaluate(step.snapshot(), step.seconds, step.forward_passes, step.epoch)
            seconds = time.perf_counter() - begin
            longest, measured = max(longest, seconds), measured + seconds
            due = step.steps * spacing
        return None

    if before is None:
        evaluate(learner.encoder, 0.0, 0, 0)
    else:
        points.append(Point(0.0, 0, 0, before))
    outcome = learner.update(later, strategy=strategy, budget=budget, callbacks=[after_step])
    evaluate(learner.encoder, outcome.seconds, outcome.forward_passes, outcome.epochs)
    return Trace(strategy, tuple(points), outcome, learner)
