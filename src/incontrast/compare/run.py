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
from incontrast.parity import EvaluationLoss
from incontrast.randomness import generator
from incontrast.strategies import ICL, Distill, FineTune, Replay, Retrain, Strategy, WarmStart
from incontrast.streams import pick
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback

__all__ = ["STRATEGIES", "Comparison", "compare", "sampled"]

STRATEGIES: dict[str, Strategy] = {
    "fine-tuning": FineTune(),
    "replay": Replay(),
    "distillation": Distill(),
    "warm start": WarmStart(),
    "ICL": ICL(),
}
MANY = 1_000_000  # epochs: the budget ends a run, not their number
FIT = 0.25  # of the time; retraining and the updates share the rest equally
SAMPLE = 512
MEASURING = 1.0  # times the training: what evaluation along the way may take


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of a comparison.

    Args:
        counts: Old and new items that were used.
        growth_ratio: α.
        before: The evaluation loss without an update.
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
    strategies: Mapping[str, Strategy] | None = None,
    seed: int = 0,
    progress: Callable[[str], ProgressCallback] = lambda name: lambda step: None,
) -> Comparison:
    """Fit on the old items, then update with the new ones in every way, within a time.

    A quarter of the time goes into the first fit; retraining and the updates have as much as each
    other of the rest. Evaluation comes on top.

    Args:
        domain: The kind of data.
        old: Items that came first.
        new: Items that came later.
        seconds: Of training, altogether.
        strategies: What to compare with retraining, by name; ``STRATEGIES`` if None.
        seed: Determines everything.
        progress: Given the name of what begins, gives a callback for its progress.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    strategies = STRATEGIES if strategies is None else strategies
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=MANY, patience=None), seed=seed)
    learner.fit(old, budget=Budget(seconds=FIT * seconds), callbacks=[progress("first fit")])
    budget = Budget(seconds=(1 - FIT) / (1 + len(strategies)) * seconds)

    def watched(name: str, strategy: Strategy) -> Trace:
        return trace(
            learner,
            old,
            new,
            replace(strategy, max_epochs=MANY, patience=None),
            sample=SAMPLE,
            measuring=MEASURING,
            budget=budget,
            progress=progress(name),
        )

    traces = {"retraining": watched("retraining", Retrain())}
    points = traces["retraining"].points
    before, target = points[0].loss, points[-1].loss
    ceiling = Attempt.of("retraining", traces["retraining"], target)
    attempts = []
    for name, strategy in strategies.items():
        try:
            traces[name] = watched(name, strategy)
            attempts.append(Attempt.of(name, traces[name], target))
        except TrainingDiverged as error:
            failed = Attempt(
                strategy=name, seconds=0.0, loss=before, parity_seconds=None, failed=str(error)
            )
            attempts.append(failed)
    return Comparison(
        counts=(len(old), len(new)),
        growth_ratio=traces["retraining"].outcome.growth_ratio,
        before=before,
        retraining=ceiling,
        attempts=tuple(attempts),
        recommendation=recommend(before, ceiling, attempts),
        traces=traces,
    )


def sampled(old: Any, new: Any, items: int, seed: int = 0) -> tuple[Any, Any]:
    """At most so many items in all, drawn at random, old and new in the proportion they have."""
    share = min(1.0, items / (len(old) + len(new)))

    def some(part: Any, name: str) -> Any:
        count = max(2, round(share * len(part)))
        order = torch.randperm(len(part), generator=generator(seed, "compare", name))
        return pick(part, order[: min(count, len(part))].sort().values)

    return some(old, "old"), some(new, "new")
