"""Strategies side by side on somebody's own data."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from incontrast.compare.recommend import Attempt, Recommendation, recommend, still_falling
from incontrast.compare.trace import Trace, trace
from incontrast.domains.base import Collection, Domain
from incontrast.learner import Learner
from incontrast.parity import EvaluationLoss
from incontrast.randomness import generator
from incontrast.strategies import ICL, Distill, FineTune, Replay, Retrain, Strategy, WarmStart
from incontrast.streams import pick
from incontrast.text import counted, duration
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, Progress, ProgressCallback

STRATEGIES: dict[str, Strategy] = {
    "fine-tuning": FineTune(),
    "replay": Replay(),
    "distillation": Distill(),
    "warm start": WarmStart(),
    "ICL": ICL(),
}
MANY = 1_000_000  # epochs: the budget ends a run, not their number
FIT = 0.25  # of the time; retraining and the updates share the rest equally
SAMPLE = 512  # old and new items, each, to evaluate on
FEWEST = 64  # of them where evaluation is slow
MEASURING = 0.25  # times the training: what evaluation along the way may take
LOOKS = 3  # evaluations that a run takes besides: before, after, statistics and the map
EVALUATING = 0.3  # of the time, which these may take
SPARE = 0.1  # of the time, for the table, and for what nobody has foreseen
FEWEST_STEPS, FEWEST_SECONDS = 5, 1.0  # of retraining, below which nothing can be told
LEAST = 0.1  # of a run's share of the time, to train in even where evaluation takes all of it
UNEQUAL = 0.8  # of retraining's time: who had less is named

Show = Callable[[str], AbstractContextManager[ProgressCallback]]
"""Given the name of what begins, a callback for its progress while it runs."""


class Clock:
    """Gives every run the same time to train; less only if the end would be missed otherwise.

    Args:
        end: When the last run must have ended, by ``time.perf_counter``.
        runs: That are to come.
        ending: Seconds that a run takes besides its steps; corrected by what is seen.
        measuring: Times the training, that evaluation along the way may take.

    A run is within ``with clock:``.
    """

    def __init__(self, end: float, runs: int, *, ending: float, measuring: float) -> None:
        self.end, self.left = end, runs
        self.ending, self.measuring = ending, measuring
        self.training = float("inf")  # seconds that the runs so far had to train in
        self.begun = self.last_step = 0.0

    def __enter__(self) -> Self:
        self.begun = self.last_step = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.left -= 1
        self.ending = max(self.ending, time.perf_counter() - self.last_step)

    def limits(self, callback: ProgressCallback) -> dict[str, Any]:
        """Arguments of ``trace`` for the run that has begun, whose progress is called back."""

        def after(step: Progress) -> bool | None:
            self.last_step = time.perf_counter()
            return callback(step)

        share = max(self.end - self.begun, 0.01) / self.left
        least = LEAST * share
        self.training = min(self.training, max((share - self.ending) / (1 + self.measuring), least))
        until = self.begun + max(share - self.ending, least)
        return {"budget": Budget(seconds=self.training), "until": until, "progress": after}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of a comparison."""

    counts: tuple[int, int]  # old and new items that were used
    before: EvaluationLoss  # without an update
    retraining: Attempt
    attempts: tuple[Attempt, ...]  # of each other strategy
    traces: Mapping[str, Trace]  # the loss along each update, for a picture
    begun_falling: bool = False  # whether the first fit had not converged
    seconds: float | None = None  # that all of it had, where there was a limit
    evaluated: int = SAMPLE  # old and new items, each, at most that losses are measured on

    @property
    def growth_ratio(self) -> float:
        """α."""
        return self.traces["retraining"].outcome.growth_ratio

    @property
    def recommendation(self) -> Recommendation:
        """What to use, and why."""
        found = recommend(self.before, self.retraining, self.attempts)
        return replace(found, reasons=(*self._too_short(), *found.reasons, *self._doubts()))

    def _too_short(self) -> Iterator[str]:
        """Where nothing was trained for long enough, that comes before all else."""
        steps, had = self.traces["retraining"].outcome.steps, self.retraining.seconds
        if self.seconds is None or (steps >= FEWEST_STEPS and had >= FEWEST_SECONDS):
            return
        # Ten times what it takes to be no longer too short, so that a loss can converge.
        factor = 10 * max(FEWEST_STEPS / max(steps, 1), FEWEST_SECONDS / max(had, 0.01))
        minutes = max(1, math.ceil(self.seconds * factor / 60))
        yield (
            f"The time was too short to tell: retraining had {counted(steps, 'step')} in "
            f"{duration(had)}. Give about {counted(minutes, 'minute')} (--minutes {minutes})."
        )

    def _doubts(self) -> Iterator[str]:
        if self.begun_falling:
            yield (
                "The first fit had not converged either: a part of every gain is more training, "
                "and not the new items."
            )
        full = self.retraining.seconds
        less = [a for a in self.attempts if not a.failed and a.seconds < UNEQUAL * full]
        if less:
            told = ", ".join(f"{a.strategy} {a.seconds:.1f} s" for a in less)
            yield (
                f"The machine was slower towards the end, and the time was kept: {told}, where "
                f"retraining had {full:.1f} s. These may do better than they did here."
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
    """Fit on the old items, then update with the new ones in every way, within a time.

    A quarter of the time goes into the first fit; retraining and the updates have as much as each
    other of the rest. Evaluation is within the time: where it is slow, it is of fewer items, and
    where the machine becomes slower on the way, later runs are shorter.

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
    begin = time.perf_counter()
    end = begin + seconds * (1 - SPARE)
    # Once, so that no strategy waits for files.
    parts = (domain.collect(items) for items in (old, new))
    old, new = (domain.materialise(part, torch.arange(len(part))) for part in parts)
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=MANY, patience=None), seed=seed)
    learner.evaluation_sample = 32  # what counts is measured here
    learner.seconds_for_training = True  # the clock of this comparison allows for the rest
    with progress("first fit") as callback:
        fitted = learner.fit(old, budget=Budget(seconds=FIT * seconds), callbacks=[callback])
    runs = {"retraining": Retrain(), **(STRATEGIES if strategies is None else strategies)}
    sample, looking = _affordable(learner, old, new, end, len(runs))
    before = learner.evaluation_loss(old, new, sample=sample)
    result = side_by_side(
        learner,
        old,
        new,
        {name: replace(run, max_epochs=MANY, patience=None) for name, run in runs.items()},
        clock=Clock(end, len(runs), ending=LOOKS * looking, measuring=MEASURING),
        before=before,
        sample=sample,
        measuring=MEASURING,
        progress=progress,
    )
    falling = still_falling([(epoch.seconds, epoch.loss) for epoch in fitted.history])
    return replace(result, begun_falling=falling, evaluated=sample, seconds=seconds)


def _affordable(
    learner: Learner, old: Collection, new: Collection, end: float, runs: int
) -> tuple[int, float]:
    """Old and new items to evaluate on, so that there is time to train, and how long that takes."""
    begin = time.perf_counter()
    learner.evaluation_loss(old, new, sample=FEWEST)
    now = time.perf_counter()
    seconds = (now - begin) / sum(min(len(part), FEWEST) for part in (old, new))  # of an item
    allowed = EVALUATING * max(end - now, 0.0) / (runs * LOOKS * seconds)
    sample = int(min(max(allowed / 2, FEWEST), SAMPLE))
    return sample, seconds * sum(min(len(part), sample) for part in (old, new))


def side_by_side(
    learner: Learner,
    old: Any,
    new: Any,
    strategies: Mapping[str, Strategy],
    *,
    progress: Show,
    clock: Clock | None = None,
    sample: int = SAMPLE,
    **watching: Any,
) -> Comparison:
    """Update copies of a learner, fitted on the old items, in every way.

    Among the strategies, "retraining" is the one that the others are compared with, and
    "no update" is no attempt. ``clock`` ends each run in time; ``watching`` are further arguments
    of ``trace``.
    """
    traces: dict[str, Trace] = {}
    diverged: dict[str, str] = {}
    for name, strategy in strategies.items():
        try:
            with progress(name) as callback, clock or nullcontext():
                how = {"progress": callback} if clock is None else clock.limits(callback)
                how |= {"sample": sample, **watching}
                traces[name] = trace(learner, old, new, strategy, **how)
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
