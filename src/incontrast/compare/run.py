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
SPARE = 0.1  # of the time, for the table and whatever is slower than expected
SAMPLE, FEWEST = 512, 64  # old and new items, each, to evaluate on; fewest if that is slow
MEASURING = 0.25  # limit of the evaluations along the way, as a multiple of training
EVALUATIONS = 3  # that a run also takes: before, after, statistics and the map
EVALUATING = 0.3  # limit of these, as a share of the time
LEAST = 0.1  # of a run's share of the time, to train in even if evaluation takes all of it
UNEQUAL = 0.8  # of retraining's time: a run that had less is named

Show = Callable[[str], AbstractContextManager[ProgressCallback]]
"""A context for the run of this name, with a callback for its progress."""


@dataclass
class Clock:
    """Gives every run the same time to train; less if the end would be missed otherwise."""

    end: float  # of the last run, by ``time.perf_counter``
    runs: int  # still to come
    closing: float  # seconds that a run takes after its last step; at least the longest so far
    training: float = math.inf  # seconds of training of the runs so far

    def limits(self) -> dict[str, Any]:
        """Arguments of ``trace`` for the next run."""
        now = time.perf_counter()
        share = max(self.end - now, 0.01) / self.runs
        most, least = share - self.closing, LEAST * share
        self.training = min(self.training, max(most / (1 + MEASURING), least))
        self.runs -= 1
        budget = Budget(seconds=self.training)
        return {"budget": budget, "until": now + max(most, least), "measuring": MEASURING}


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
        return replace(result, reasons=(*result.reasons, *self._doubts()))

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

    A quarter of the time is for the first fit; retraining and the updates share the rest equally.
    Evaluation counts: if it is slow, it uses fewer items, and if the machine becomes slower, later
    runs are shorter.

    Args:
        domain: The kind of data.
        old: Items that came first.
        new: Items that came later.
        seconds: Time limit, with reading and evaluation.
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
    sample, closing = _affordable(learner, old, new, end, len(runs))
    result = side_by_side(
        learner,
        old,
        new,
        {name: replace(run, max_epochs=UNLIMITED, patience=None) for name, run in runs.items()},
        clock=Clock(end, len(runs), closing),
        before=learner.evaluation_loss(old, new, sample=sample),
        sample=sample,
        progress=progress,
    )
    falling = still_falling([(epoch.seconds, epoch.loss) for epoch in fitted.history])
    return replace(result, first_falling=falling)


def _affordable(
    learner: Learner, old: Collection, new: Collection, end: float, runs: int
) -> tuple[int, float]:
    """How many old and new items to evaluate on, and seconds that this takes in a run."""
    begin = time.perf_counter()
    learner.evaluation_loss(old, new, sample=FEWEST)
    now = time.perf_counter()
    per_item = (now - begin) / sum(min(len(part), FEWEST) for part in (old, new))
    affordable = EVALUATING * max(end - now, 0.0) / (runs * EVALUATIONS * per_item)
    sample = int(min(max(affordable / 2, FEWEST), SAMPLE))
    return sample, EVALUATIONS * per_item * sum(min(len(part), sample) for part in (old, new))


def side_by_side(
    learner: Learner,
    old: Any,
    new: Any,
    strategies: Mapping[str, Strategy],
    *,
    progress: Show,
    clock: Clock | None = None,
    before: EvaluationLoss | None = None,
    sample: int = SAMPLE,
) -> Comparison:
    """Update copies of a learner, fitted on the old items, by every strategy.

    "retraining" must be among them: the others are compared with it. "no update" is not an attempt.
    """
    traces: dict[str, Trace] = {}
    diverged: dict[str, str] = {}
    for name, strategy in strategies.items():
        limits = {} if clock is None else clock.limits()
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
            diverged[name] = str(error)
        else:
            if clock is not None:
                clock.closing = max(clock.closing, traces[name].closing_seconds)
    first, *_, last = traces["retraining"].points
    attempts = {name: Attempt.of(name, run, last.loss) for name, run in traces.items()}
    for name, error in diverged.items():
        attempts[name] = Attempt(name, seconds=0.0, loss=first.loss, failed=error)
    return Comparison(
        before=first.loss,
        retraining=attempts["retraining"],
        attempts=tuple(
            attempts[name] for name in strategies if name not in ("no update", "retraining")
        ),
        traces=traces,
        sample=sample,
    )


def sampled(old: Any, new: Any, items: int, seed: int = 0) -> tuple[Any, Any]:
    """At most so many random items in all, with the same proportion of old and new ones."""
    share = min(1.0, items / (len(old) + len(new)))

    def draw(part: Any, name: str) -> Any:
        count = max(2, round(share * len(part)))
        order = torch.randperm(len(part), generator=generator(seed, "compare", name))
        return pick(part, order[:count].sort().values)

    return draw(old, "old"), draw(new, "new")
