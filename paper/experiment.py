"""One increment: its data, the encoder fitted on its old items, and the runs on it, as rows."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from incontrast import (
    Budget,
    Learner,
    Outcome,
    Progress,
    ProgressCallback,
    Strategy,
    TrainingDiverged,
)
from incontrast.compare.trace import Point, trace
from incontrast.parity import at_parity
from paper.clock import Clock
from paper.grid import Group, settings_of
from paper.machine import AddedMemory, load, machine, software, today
from paper.metrics import (
    accuracies,
    biases,
    curve,
    paper_protocol,
    parity_protocol,
    target_of,
    totals,
)
from paper.row_file import Row, append_row, key_of, read_rows
from paper.sets import Splits
from paper.stop import StopRule

log = logging.getLogger(__name__)


class Experiment:
    """An increment: its data are read and its encoder is fitted when they are first needed.

    Args:
        group: The increment.
        fit_strategy: How the initial training is done, and retraining.
        folder: The folder of data sets.
        work: Where fitted learners are kept, to resume from.
    """

    def __init__(
        self, group: Group, fit_strategy: Strategy, folder: Path | None, work: Path
    ) -> None:
        self.group, self.fit_strategy = group, fit_strategy
        self._folder, self._work = folder, work

    @cached_property
    def splits(self) -> Splits:
        """Old, new and held-out items."""
        return self.group.data.splits(self._folder, self.group.growth_ratio, self.group.seed)

    def settings(self, kind: str, strategy: Strategy) -> dict[str, Any]:
        """What a row of this kind depends on."""
        return settings_of(self.group, kind=kind, fit_strategy=self.fit_strategy, strategy=strategy)

    def key(self, kind: str, strategy: Strategy) -> str:
        """The key of such a row."""
        return key_of(self.settings(kind, strategy))

    def fit(self, callback: ProgressCallback) -> tuple[Learner, Row]:
        """Fit an encoder on the old items; its row says what that took."""
        learner = self._fresh()
        circumstances = _Circumstances(learner)
        outcome = learner.fit(self.splits.old.items, callbacks=[callback])
        head = self._head("fit", "fit", self.fit_strategy)
        return learner, {**head, "outcome": _summary(outcome), **circumstances.row()}

    def learner(self, callback: ProgressCallback, add: Callable[[Row], None]) -> Learner:
        """The encoder fitted on the old items, from the work folder if it is there.

        It always comes from the folder in the end: one that was just fitted is the same as one
        that an earlier run has left. One that cannot be read is fitted again. Its row is kept
        beside it and added again, for a run that was killed may not have come to write it.
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
                add(row)
            return learner
        learner, row = self.fit(callback)
        add(row)
        beside.unlink(missing_ok=True)
        append_row(beside, row)
        learner.save(place)
        return Learner.load(place)

    def budget(self, retrained: Row) -> Budget:
        """What an update may cost, from retraining's row."""
        passes = retrained["total"]["forward_passes"]
        return Budget(forward_passes=int(self.group.data.limit * passes))

    def run(
        self,
        name: str,
        strategy: Strategy,
        learner: Learner,
        *,
        retrained: Row | None,
        callback: ProgressCallback,
    ) -> Row:
        """Run a strategy on a copy of this learner, and measure everything.

        Args:
            name: Of the strategy.
            strategy: How to update.
            learner: Fitted on the old items.
            retrained: Retraining's row; None if this is retraining.
            callback: Called after every step.
        """
        head = self._head("run", name, strategy)
        circumstances, memory = _Circumstances(learner), AddedMemory()
        data, clock = self.group.data, Clock(learner.engine.device)
        target = None if retrained is None else target_of(retrained)
        stop = StopRule(data.patience, data.max_epochs)
        at_target: nn.Module | None = None

        def step(progress: Progress) -> None:
            clock.stop(progress.seconds, epoch_ended=progress.finished is not None)
            callback(progress)
            stop(progress)
            clock.go()

        def seen(point: Point, encoder: nn.Module) -> None:
            nonlocal at_target
            if at_target is None and target is not None and at_parity(point.loss, target):
                at_target = encoder
            clock.point(point.seconds)

        try:
            traced = trace(
                learner,
                self.splits.old.items,
                self.splits.new.items,
                strategy,
                sample=data.sample,
                spacing=data.spacing,
                budget=None if retrained is None else self.budget(retrained),
                progress=step,
                seen=seen,
            )
        except TrainingDiverged as error:
            return {**head, "failed": str(error), **circumstances.row()}
        items = learner.memory.items
        row = {
            **head,
            "counts": {
                "old": len(self.splits.old),
                "new": len(self.splits.new),
                "held_out": len(self.splits.held_out_old) + len(self.splits.held_out_new or ()),
            },
            "alpha": traced.outcome.growth_ratio,
            "total": totals(traced, clock),
            "paper": paper_protocol(traced, data, clock),
            "parity": parity_protocol(traced, target or traced.points[-1].loss, clock),
            "bias": biases(traced.learner, self.splits, data.sample),
            "curve": curve(traced, clock),
            "memory_of_items": None if items is None else items.nbytes,
        }
        # The encoder where the paper's rule stops (it really does stop retraining), and the one
        # that was first at parity; where there is none, the one that the whole run gave.
        final = traced.learner.encoder
        stopped = final if target is None else stop.encoder or final
        found: dict[nn.Module, dict[str, Any]] = {}
        for protocol, encoder in (("paper", stopped), ("parity", at_target or final)):
            if encoder not in found:
                found[encoder] = accuracies(encoder, traced.learner, self.splits, data.folds)
            row[protocol]["accuracy"] = found[encoder]
        row |= circumstances.row()
        row["cost"]["added_memory"] = memory.bytes()
        return row

    def trial(self, name: str, lr: float, strategy: Strategy, learner: Learner | None) -> Row:
        """A short run at one learning rate, judged by the evaluation loss it ends with.

        Without a learner it is the initial training that is tried, judged on the old items.
        """
        head = {**self._head("trial", name, strategy), "lr": lr}
        updated = learner or self._fresh()
        circumstances, loss, summary = _Circumstances(updated), None, None
        old, new = self.splits.old.items, self.splits.new.items
        try:
            if learner is None:
                outcome = updated.fit(old)
                loss = outcome.loss.after.new
            else:
                sample = self.group.data.sample
                traced = trace(learner, old, new, strategy, sample=sample, spacing=1e9)
                outcome, loss = traced.outcome, traced.points[-1].loss.all
            summary = _summary(outcome)
        except TrainingDiverged as error:
            head["failed"] = str(error)
        return {**head, "loss": loss, "outcome": summary, **circumstances.row()}

    def _head(self, kind: str, name: str, strategy: Strategy) -> dict[str, Any]:
        """What a row is found by."""
        settings = self.settings(kind, strategy)
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
            "strategy": name,
        }

    def _fresh(self) -> Learner:
        return Learner(
            self.group.data.domain,
            fit_strategy=self.fit_strategy,
            head=None,  # the paper has none: its loss sees what is embedded
            seed=self.group.seed,
        )


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": round(outcome.seconds, 3),
        "epochs": outcome.epochs,
        "forward_passes": outcome.forward_passes,
        "stopped": outcome.stopped,
        "loss": outcome.loss.after.new,
    }


class _Circumstances:
    """When, where and on what a row comes about, from now on."""

    def __init__(self, learner: Learner) -> None:
        self._clock = Clock(learner.engine.device).name
        self._begin, self._load = time.perf_counter(), load()

    def row(self) -> dict[str, Any]:
        return {
            "clock": self._clock,
            "date": today(),
            "software": software(),
            "machine": machine() | {"load_before": self._load, "load_after": load()},
            "cost": {"seconds": round(time.perf_counter() - self._begin, 2)},
        }
