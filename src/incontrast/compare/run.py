"""Strategies side by side on one data set, within a time limit."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from incontrast.compare.recommend import Attempt, Recommendation, recommend, still_falling
from incontrast.compare.trace import Trace, trace
from incontrast.domains.base import Collection, Domain
from incontrast.learner import Learner
from incontrast.parity import EvaluationLoss
from incontrast.randomness import generator
from incontrast.strategies import ICL, Distill, FineTune, Replay, Retrain, Strategy, WarmStart
from incontrast.streams import pick
from incontrast.text import counted
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback

STRATEGIES: dict[str, Strategy] = {
    "fine-tuning": FineTune(),
    "replay": Replay(),
    "distillation": Distill(),
    "warm start": WarmStart(),
    "ICL": ICL(),
}
UNLIMITED = 1_000_000  # epochs: time ends a run
FIRST_FIT = 0.25  # of the time; retraining and the updates share the rest equally
SPARE = 0.1  # of the time, for the table and for what is slower than expected
SAMPLE, FEWEST = 512, 64  # old and new items, each, to evaluate on; the fewest if that is slow
EVALUATING = 0.3  # of a run's time, for the evaluation before and after
EVALUATIONS = 3  # what that takes, as a multiple of an evaluation
MEASURING = 0.25  # limit of the evaluations along the way, as a multiple of the training
FEWEST_STEPS = 5  # of retraining, below which nothing can be said
UNEQUAL = 0.8  # of retraining's time: a run that had less is named

Show = Callable[[str], AbstractContextManager[ProgressCallback]]
"""A context for the run of this name, with a callback for its progress."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a comparison."""

    before: EvaluationLoss  # without an update
    retraining: Attempt
    attempts: tuple[Attempt, ...]  # of the other strategies
    traces: Mapping[str, Trace]  # by strategy
    sample: int = SAMPLE  # old and new items, each, at most that losses are measured on
    first_falling: bool = False  # whether the first fit had not converged

    @property
    def growth_ratio(self) -> float:
        """α."""
        return self.traces["retraining"].outcome.growth_ratio

    @property
    def recommendation(self) -> Recommendation:
        """Which strategy to use, and why."""
        result = recommend(self.before, self.retraining, self.attempts)
        return replace(result, reasons=(*self._too_short(), *result.reasons, *self._doubts()))

    def _too_short(self) -> Iterator[str]:
        steps = self.traces["retraining"].outcome.steps
        if steps < FEWEST_STEPS:
            yield (
                f"The time was too short to tell: retraining had {counted(steps, 'step')}. Give it "
                "many times as many minutes, or fewer or smaller items."
            )

    def _doubts(self) -> Iterator[str]:
        if self.first_falling:
            yield "The first fit had not converged: part of every gain is longer training."
        enough = UNEQUAL * self.retraining.seconds
        short = [a.strategy for a in self.attempts if not a.failed and a.seconds < enough]
        if short:
            yield (
                f"Less time than for retraining, because the machine became slower: "
                f"{', '.join(short)}. They may do better than shown."
            )


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
    """Fit on the old items, then update with the new ones by every strategy, within a time limit.

    A quarter of the time is for the first fit; retraining and the updates share the rest equally,
    with evaluation, which uses fewer items if it is slow. If the machine becomes slower, later
    runs are shorter.

    Args:
        domain: The kind of data.
        old: Items that came first.
        new: Items that came later.
        seconds: Time limit, reading included.
        strategies: What to compare with retraining, by name; ``STRATEGIES`` if None.
        seed: Determines all random choices.
        progress: Shows what is running.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    end = time.perf_counter() + seconds * (1 - SPARE)
    # Read once, so that no strategy waits for files.
    parts = (domain.collect(items) for items in (old, new))
    old, new = (domain.materialise(part, torch.arange(len(part))) for part in parts)
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=UNLIMITED, patience=None), seed=seed)
    learner.evaluation_sample = 32  # outcomes are not used here
    learner.seconds_for_training = True  # the clock allows for the rest
    with progress("first fit") as callback:
        fitted = learner.fit(old, budget=Budget(seconds=FIRST_FIT * seconds), callbacks=[callback])
    runs = {"retraining": Retrain(), **(STRATEGIES if strategies is None else strategies)}
    sample = _affordable(learner, old, new, end, len(runs))
    result = side_by_side(
        learner,
        old,
        new,
        {name: replace(run, max_epochs=UNLIMITED, patience=None) for name, run in runs.items()},
        end=end,
        sample=sample,
        progress=progress,
    )
    falling = still_falling([(epoch.seconds, epoch.loss) for epoch in fitted.history])
    return replace(result, first_falling=falling)


def _affordable(learner: Learner, old: Collection, new: Collection, end: float, runs: int) -> int:
    """How many old and new items each run has time to evaluate on."""
    begin = time.perf_counter()
    learner.evaluation_loss(old, new, sample=FEWEST)
    now = time.perf_counter()
    per_item = (now - begin) / sum(min(len(part), FEWEST) for part in (old, new))
    items = EVALUATING * max(end - now, 0.0) / (runs * EVALUATIONS * per_item)
    return int(min(max(items / 2, FEWEST), SAMPLE))


def side_by_side(
    learner: Learner,
    old: Any,
    new: Any,
    strategies: Mapping[str, Strategy],
    *,
    progress: Show,
    end: float | None = None,
    sample: int = SAMPLE,
) -> Comparison:
    """Update copies of a learner, fitted on the old items, by every strategy.

    "retraining" must be among them: the others are compared with it. "no update" is not an attempt.
    ``end`` is when the last run must end, by ``time.perf_counter``.
    """
    before = learner.evaluation_loss(old, new, sample=sample)
    traces: dict[str, Trace] = {}
    attempts: dict[str, Attempt] = {}
    training = math.inf
    for number, (name, strategy) in enumerate(strategies.items()):
        limits: dict[str, Any] = {}
        if end is not None:
            limits = _limits(end, len(strategies) - number, training)
            training = limits["budget"].seconds
        try:
            with progress(name) as callback:
                traces[name] = trace(
                    learner,
                    old,
                    new,
                    strategy,
                    before=before,
                    sample=sample,
                    progress=callback,
                    **limits,
                )
        except TrainingDiverged as error:
            if name == "retraining":
                raise
            attempts[name] = Attempt(name, seconds=0.0, loss=before, failed=str(error))
    target = traces["retraining"].points[-1].loss
    attempts |= {name: Attempt.of(name, run, target) for name, run in traces.items()}
    return Comparison(
        before=before,
        retraining=attempts["retraining"],
        attempts=tuple(
            attempts[name] for name in strategies if name not in ("no update", "retraining")
        ),
        traces=traces,
        sample=sample,
    )


def _limits(end: float, runs: int, training: float) -> dict[str, Any]:
    """Arguments of ``trace``: as much training as the runs before had, or less to end in time."""
    now = time.perf_counter()
    share = (1 - EVALUATING) * max(end - now, 0.01) / runs
    budget = Budget(seconds=min(training, share / (1 + MEASURING)))
    return {"budget": budget, "until": now + share, "measuring": MEASURING}


def sampled(old: Any, new: Any, items: int, seed: int = 0) -> tuple[Any, Any]:
    """At most so many random items in all, with the same proportion of old and new ones."""
    share = min(1.0, items / (len(old) + len(new)))

    def draw(part: Any, name: str) -> Any:
        count = max(2, round(share * len(part)))
        order = torch.randperm(len(part), generator=generator(seed, "compare", name))
        return pick(part, order[:count].sort().values)

    return draw(old, "old"), draw(new, "new")
