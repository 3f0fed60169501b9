"""A small, budgeted comparison of strategies on somebody's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from incontrast.compare.recommend import Attempt, Recommendation, recommend
from incontrast.compare.trace import Trace, trace
from incontrast.domains.base import Domain
from incontrast.learner import Learner
from incontrast.parity import TOLERANCE, EvaluationLoss
from incontrast.randomness import generator
from incontrast.strategies import ICL, Distill, FineTune, Replay, Retrain, Strategy, WarmStart
from incontrast.streams import pick
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback

__all__ = ["RIVALS", "Comparison", "compare", "sampled"]

RIVALS: dict[str, Strategy] = {
    "fine-tuning": FineTune(),
    "replay": Replay(),
    "distillation": Distill(),
    "warm start": WarmStart(),
    "ICL()": ICL(),
}
MANY = 1_000_000  # epochs: the budget ends a run, not their number
FIT = 0.25  # of the time; retraining and the updates share the rest equally
SAMPLE = 512
MEASURING = 1.0  # times the training: what measuring along the way may take

Tell = Callable[[str], ProgressCallback]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of a comparison.

    Args:
        counts: Old and new items that were used.
        growth_ratio: α.
        before: The true loss without an update.
        retraining: What retraining did.
        attempts: What each other strategy did.
        recommendation: What to use, and why.
        traces: The loss along each update, for a picture.
    """

    counts: tuple[int, int]
    growth_ratio: float
    before: EvaluationLoss
    retraining: Attempt
    attempts: tuple[Attempt, ...]
    recommendation: Recommendation
    traces: Mapping[str, Trace]


def compare(
    domain: Domain,
    old: Any,
    new: Any,
    *,
    seconds: float,
    rivals: Mapping[str, Strategy] | None = None,
    seed: int = 0,
    tell: Tell = lambda doing: lambda step: None,
) -> Comparison:
    """Fit on the old items, then update with the new ones in every way, within a time.

    A quarter of the time goes into the first fit; retraining and the updates have as much as each
    other of the rest. Measuring comes on top.

    Args:
        domain: The kind of data.
        old: Items that came first.
        new: Items that came later.
        seconds: Of training, altogether.
        rivals: The strategies, by name; ``RIVALS`` if None.
        seed: Determines everything.
        tell: Given the name of what begins, gives a callback for its progress.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    rivals = RIVALS if rivals is None else rivals
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=MANY, patience=None), seed=seed)
    learner.fit(old, budget=Budget(seconds=FIT * seconds), callbacks=[tell("first fit")])

    budget = Budget(seconds=(1 - FIT) / (1 + len(rivals)) * seconds)

    def attempt(name: str, strategy: Strategy) -> Trace:
        return trace(
            learner,
            old,
            new,
            replace(strategy, max_epochs=MANY, patience=None),
            sample=SAMPLE,
            measuring=MEASURING,
            budget=budget,
            progress=tell(name),
        )

    retrained = attempt("retraining", Retrain())
    before, target = retrained.points[0].loss, retrained.points[-1].loss
    ceiling = replace(_attempt("retraining", retrained, target), falling=_falling(retrained))
    attempts, traces = [], {"retraining": retrained}
    for name, strategy in rivals.items():
        try:
            traces[name] = attempt(name, strategy)
            attempts.append(_attempt(name, traces[name], target))
        except TrainingDiverged as error:
            attempts.append(
                Attempt(
                    strategy=name, seconds=0.0, loss=before, level_seconds=None, failed=str(error)
                )
            )
    return Comparison(
        counts=(len(old), len(new)),
        growth_ratio=retrained.outcome.growth_ratio,
        before=before,
        retraining=ceiling,
        attempts=tuple(attempts),
        recommendation=recommend(before, ceiling, attempts),
        traces=traces,
    )


def sampled(old: Any, new: Any, items: int, seed: int = 0) -> tuple[Any, Any]:
    """At most so many items in all, drawn at random, old and new in the proportion they have."""
    total = len(old) + len(new)
    share = min(1.0, items / total)

    def some(part: Any, name: str) -> Any:
        count = max(2, round(share * len(part)))
        order = torch.randperm(len(part), generator=generator(seed, "compare", name))
        return pick(part, order[: min(count, len(part))].sort().values)

    return some(old, "old"), some(new, "new")


def _falling(traced: Trace) -> bool:
    """Whether the last third of a training still lowered its loss by more than the tolerance."""
    last = traced.points[-1]
    earlier = [p for p in traced.points[1:] if p.seconds <= last.seconds * 2 / 3]
    return not earlier or last.loss.all < earlier[-1].loss.all * (1 - TOLERANCE)


def _attempt(name: str, traced: Trace, target: EvaluationLoss) -> Attempt:
    reached = traced.reaches(target)
    return Attempt(
        strategy=name,
        seconds=traced.outcome.seconds,
        loss=traced.points[-1].loss,
        level_seconds=None if reached is None else reached.seconds,
    )
