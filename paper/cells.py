"""Running one cell: from a group's shared data and encoder to a row."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from incontrast.compare.trace import Point, trace
from incontrast.learner import Learner
from incontrast.outcome import Outcome
from incontrast.parity import at_parity
from incontrast.strategies import Strategy
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, Progress
from paper.grid import Group, key_of, settings_of
from paper.machine import AddedMemory, clock, load, machine, software, today
from paper.metrics import (
    accuracies,
    biases,
    curve,
    level,
    paper_figures,
    target_of,
    totals,
)
from paper.row_file import Row, append_row, read_rows
from paper.sets import Splits
from paper.stop import StopRule

__all__ = ["Bench"]

log = logging.getLogger(__name__)

ProgressCallback = Callable[[Progress], None]


class Bench:
    """One increment on the bench: its data are read and its encoder is fitted when first needed.

    Args:
        group: The increment.
        fit_strategy: How the first fit is done, and retraining.
        folder: The folder of data sets.
        work: Where fitted learners are kept, to go on from.
    """

    def __init__(
        self, group: Group, fit_strategy: Strategy, folder: Path | None, work: Path
    ) -> None:
        self.group = group
        self.fit_strategy = fit_strategy
        self._folder = folder
        self._work = work

    @cached_property
    def splits(self) -> Splits:
        """Old, new and held-out items."""
        return self.group.data.splits(self._folder, self.group.growth_ratio, self.group.seed)

    def identify(self, kind: str, strategy: Strategy) -> dict[str, Any]:
        """The key and the settings of a row, and the words to find it by."""
        settings = settings_of(
            self.group, kind=kind, fit_strategy=self.fit_strategy, strategy=strategy
        )
        return {
            "key": key_of(settings),
            "kind": kind,
            "scale": self.group.scale,
            "set": self.group.name,
            "data": self.group.data.name,
            "split": self.group.data.split,
            "growth_ratio": self.group.growth_ratio,
            "seed": self.group.seed,
            "settings": settings,
        }

    def key(self, kind: str, strategy: Strategy) -> str:
        """The key alone."""
        settings = settings_of(
            self.group, kind=kind, fit_strategy=self.fit_strategy, strategy=strategy
        )
        return key_of(settings)

    def fit(self, progress: ProgressCallback) -> tuple[Learner, Row]:
        """Fit an encoder on the old items, and say what that took."""
        learner = self._fresh()
        begin, before = time.perf_counter(), load()
        outcome = learner.fit(self.splits.old.items, progress=progress)
        row = {
            **self.identify("fit", self.fit_strategy),
            "strategy": "fitting",
            "outcome": _summary(outcome),
            **_circumstances(learner, begin, before),
        }
        return learner, row

    def learner(self, progress: ProgressCallback, tell_row: Callable[[Row], None]) -> Learner:
        """The encoder fitted on the old items, from the work folder if it is there.

        It always comes from the folder in the end: one that was just fitted is the same as one
        that an earlier run has left. One that cannot be read is fitted again. Its row is kept
        beside it and told again, for a run that was killed may not have come to write it.
        """
        place = self._work / self.key("fit", self.fit_strategy)
        beside = place.with_name(f"{place.name}.jsonl")
        try:
            learner, rows = Learner.load(place), read_rows(beside)
        except (ValueError, FileNotFoundError) as error:
            if place.exists():
                log.warning("%s cannot be used, its encoder is fitted again: %s", place, error)
                shutil.rmtree(place)
        else:
            for row in rows:
                tell_row(row)
            return learner
        learner, row = self.fit(progress)
        tell_row(row)
        beside.unlink(missing_ok=True)
        append_row(beside, row)
        learner.save(place)
        return Learner.load(place)

    def limit(self, ceiling: Row) -> int:
        """The encoder passes that an update has, from retraining's row."""
        return int(self.group.data.limit * ceiling["total"]["passes"])

    def cell(
        self,
        name: str,
        strategy: Strategy,
        learner: Learner,
        *,
        ceiling: Row | None,
        progress: ProgressCallback,
    ) -> Row:
        """Run a strategy on a copy of this learner, and measure everything.

        Args:
            name: Of the strategy, in the line-up.
            strategy: How to update.
            learner: Fitted on the old items.
            ceiling: Retraining's row; None if this is retraining.
            progress: Told about every step.
        """
        head = {**self.identify("cell", strategy), "strategy": name}
        begin, before, memory = time.perf_counter(), load(), AddedMemory()
        data, judged = self.group.data, clock(learner.engine.device)
        target = None if ceiling is None else target_of(ceiling)
        stop = StopRule(data.patience, data.max_epochs)
        level_encoder: nn.Module | None = None

        def step(told: Progress) -> None:
            progress(told)
            stop(told)

        def seen(point: Point, encoder: nn.Module) -> None:
            nonlocal level_encoder
            if level_encoder is None and target is not None and at_parity(point.loss, target):
                level_encoder = encoder

        budget = None
        if ceiling is not None:
            budget = Budget(forward_passes=self.limit(ceiling))
        old, new = self.splits.old.items, self.splits.new.items
        try:
            traced = trace(
                learner,
                old,
                new,
                strategy,
                sample=data.sample,
                spacing=data.spacing,
                budget=budget,
                progress=step,
                seen=seen,
            )
        except TrainingDiverged as error:
            return head | {"failed": str(error)} | _circumstances(learner, begin, before)
        row = {
            **head,
            "counts": {
                "old": len(self.splits.old),
                "new": len(self.splits.new),
                "held_out": len(self.splits.held_out_old) + len(self.splits.held_out_new or ()),
            },
            "alpha": traced.outcome.growth_ratio,
            "total": totals(traced, judged),
            "paper": paper_figures(traced, data, judged),
            "ours": level(traced, target or traced.points[-1].loss, judged),
            "bias": biases(traced.learner, self.splits, data.sample),
            "curve": curve(traced, judged),
            "memory_of_items": None
            if learner.memory.items is None
            else learner.memory.items.nbytes,
        }
        # The encoder at the paper's stop, and the one that was first level with retraining; where
        # there is none, the one that the whole run gave.
        final = traced.learner.encoder
        encoders = {"paper": stop.encoder or final, "ours": level_encoder or final}
        if target is None:
            encoders["paper"] = final  # retraining really is stopped by the rule
        same = encoders["paper"] is encoders["ours"]
        for protocol, encoder in encoders.items():
            row[protocol]["accuracy"] = (
                row["paper"]["accuracy"]
                if protocol == "ours" and same
                else accuracies(encoder, traced.learner, self.splits, data.folds)
            )
        row |= _circumstances(learner, begin, before)
        row["cost"]["added_memory"] = memory.bytes()
        return row

    def trial(self, name: str, rate: float, strategy: Strategy, learner: Learner | None) -> Row:
        """A short run at one learning rate, judged by the true loss it ends with.

        Without a learner it is the first fit that is tried, judged on the old items.
        """
        head = {**self.identify("trial", strategy), "strategy": name, "rate": rate}
        begin, before, loss, summary = time.perf_counter(), load(), None, None
        try:
            if learner is None:
                learner = self._fresh()
                outcome = learner.fit(self.splits.old.items)
                loss = outcome.loss_new.after
            else:
                old, new = self.splits.old.items, self.splits.new.items
                traced = trace(
                    learner, old, new, strategy, sample=self.group.data.sample, spacing=1e9
                )
                outcome, loss = traced.outcome, traced.points[-1].loss.all
            summary = _summary(outcome)
        except TrainingDiverged as error:
            head["failed"] = str(error)
        learner = learner or self._fresh()
        return {
            **head,
            "loss": loss,
            "outcome": summary,
            **_circumstances(learner, begin, before),
        }

    def _fresh(self) -> Learner:
        return Learner(self.group.data.domain, fit_strategy=self.fit_strategy, seed=self.group.seed)


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": round(outcome.seconds, 3),
        "epochs": outcome.epochs,
        "passes": outcome.forward_passes,
        "stopped": outcome.stopped,
        "loss": outcome.loss_new.after,
    }


def _circumstances(learner: Learner, begin: float, load_before: float | None) -> dict[str, Any]:
    return {
        "clock": clock(learner.engine.device),
        "date": today(),
        "software": software(),
        "machine": machine() | {"load_before": load_before, "load_after": load()},
        "cost": {"seconds": round(time.perf_counter() - begin, 2)},
    }
