"""Strategies side by side on somebody's own data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from incontrast.compare.recommend import Attempt, Recommendation, recommend, still_falling
from incontrast.compare.trace import Trace, trace
from incontrast.domains.base import Collection, Domain
from incontrast.learner import BudgetTooSmall, Learner
from incontrast.parity import EvaluationLoss
from incontrast.randomness import generator
from incontrast.strategies import ICL, Distill, FineTune, Replay, Retrain, Strategy, WarmStart
from incontrast.streams import pick
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback

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
MEASURING = 0.25  # times the training: what evaluation along the way may take
SPARE = 0.1  # of the time, for imports, and for what nobody has foreseen

Show = Callable[[str], AbstractContextManager[ProgressCallback]]
"""Given the name of what begins, a callback for its progress while it runs."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of a comparison."""

    counts: tuple[int, int]  # old and new items that were used
    before: EvaluationLoss  # without an update
    retraining: Attempt
    attempts: tuple[Attempt, ...]  # of each other strategy
    traces: Mapping[str, Trace]  # the loss along each update, for a picture
    begun_falling: bool = False  # whether the first fit had not converged

    @property
    def growth_ratio(self) -> float:
        """α."""
        return self.traces["retraining"].outcome.growth_ratio

    @property
    def recommendation(self) -> Recommendation:
        """What to use, and why."""
        found = recommend(self.before, self.retraining, self.attempts)
        if not self.begun_falling:
            return found
        doubt = (
            "The first fit had not converged either: a part of every gain is more training, and "
            "not the new items."
        )
        return replace(found, reasons=(*found.reasons, doubt))


def compare(
    domain: Domain,
    old: Any,
    new: Any,
    *,
    seconds: float,
    strategies: Mapping[str, Strategy] | None = None,
    seed: int = 0,
    progress: Show = lambda name: nullcontext(lambda step: None),
) -> Comparison:
    """Fit on the old items, then update with the new ones in every way, within a time.

    A quarter of the time goes into the first fit; retraining and the updates have as much as each
    other of the rest. Evaluation is within the time.

    Args:
        domain: The kind of data.
        old: Items that came first.
        new: Items that came later.
        seconds: Altogether, with reading and evaluation.
        strategies: What to compare with retraining, by name; ``STRATEGIES`` if None.
        seed: Determines everything.
        progress: Shows what runs.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    try:
        return _compared(domain, old, new, seconds, strategies or STRATEGIES, seed, progress)
    except BudgetTooSmall as error:
        raise BudgetTooSmall(
            f"{seconds:.0f} s are too few on this machine, where evaluation alone takes most of "
            "them: give more minutes, or fewer items"
        ) from error


def _compared(
    domain: Domain,
    old: Any,
    new: Any,
    seconds: float,
    strategies: Mapping[str, Strategy],
    seed: int,
    progress: Show,
) -> Comparison:
    begin = time.perf_counter()
    # Once, so that no strategy waits for files.
    old, new = (_in_memory(domain, items) for items in (old, new))
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=MANY, patience=None), seed=seed)
    learner.evaluation_sample = 32  # what counts is measured here
    with progress("first fit") as callback:
        fitted = learner.fit(old, budget=Budget(seconds=FIT * seconds), callbacks=[callback])
    runs = {"retraining": Retrain(), **strategies}
    looked = time.perf_counter()
    before = learner.evaluation_loss(old, new, sample=SAMPLE)
    looks = 2 * (time.perf_counter() - looked)  # one after, one more along the way than foreseen
    left = seconds * (1 - SPARE) - (time.perf_counter() - begin)
    # In a few seconds evaluation alone would take them all; then it comes on top.
    least = (1 - FIT) / 2 * seconds / len(runs)
    each = max((left / len(runs) - looks) / (1 + MEASURING), least)
    result = side_by_side(
        learner,
        old,
        new,
        {name: replace(run, max_epochs=MANY, patience=None) for name, run in runs.items()},
        budget=Budget(seconds=each),
        before=before,
        measuring=MEASURING,
        progress=progress,
    )
    losses = [(epoch.seconds, epoch.loss) for epoch in fitted.history]
    return replace(result, begun_falling=still_falling(losses))


def _in_memory(domain: Domain, items: Any) -> Collection:
    collection = domain.collect(items)
    return domain.materialise(collection, torch.arange(len(collection)))


def side_by_side(
    learner: Learner,
    old: Any,
    new: Any,
    strategies: Mapping[str, Strategy],
    *,
    progress: Show,
    **watching: Any,
) -> Comparison:
    """Update copies of a learner, fitted on the old items, in every way.

    Among the strategies, "retraining" is the one that the others are compared with, and
    "no update" is no attempt. ``watching`` are further arguments of ``trace``.
    """
    traces: dict[str, Trace] = {}
    diverged: dict[str, str] = {}
    for name, strategy in strategies.items():
        try:
            with progress(name) as callback:
                traces[name] = trace(
                    learner, old, new, strategy, sample=SAMPLE, progress=callback, **watching
                )
        except TrainingDiverged as error:
            if name == "retraining":
                raise
            diverged[name] = str(error)
    first, *_, last = traces["retraining"].points
    attempts = {
        name: Attempt.of(name, traces[name], last.loss)
        if name in traces
        else Attempt(name, seconds=0.0, loss=first.loss, failed=diverged[name])
        for name in strategies
        if name != "no update"
    }
    return Comparison(
        counts=(len(old), len(new)),
        before=first.loss,
        retraining=attempts.pop("retraining"),
        attempts=tuple(attempts.values()),
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
