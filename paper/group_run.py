"""The cells of one increment, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from incontrast.strategies import Strategy
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Progress
from paper.cells import Bench
from paper.grid import SEARCH_SEED, Group
from paper.row_file import Row
from paper.search import Ledger, best_rate, fitting_trials, identity, strategy_trials
from paper.strategies import RETRAINING, retraining

__all__ = ["Event", "GroupRun", "Tell"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to tell about a run.

    Args:
        group: The increment.
        doing: What is being run there.
        epoch: Epochs finished of it.
        share: How much of what it may take at most is done, in [0, 1]; None where nobody knows.
        row: A row that was just finished.
    """

    group: str
    doing: str
    epoch: int = 0
    share: float | None = None
    row: Row | None = None


Tell = Callable[[Event], None]


class GroupRun:
    """The cells of one increment, one after the other."""

    def __init__(
        self, group: Group, rows: Ledger, folder: Path | None, work: Path, tell: Tell
    ) -> None:
        self.group, self.rows, self.folder, self.work = group, rows, folder, work
        self._tell = tell

    def run(self) -> None:
        """Run the cells that have no row yet, retraining first."""
        title = self.group.title
        try:
            bench = self.bench(search=True)
            assert bench is not None
            ceiling = self.cell(bench, RETRAINING, None)
        except TrainingDiverged as error:
            log.warning("%s: its first fit broke off and it is left out: %s", title, error)
            return
        if "failed" in ceiling:
            log.warning(
                "%s: retraining broke off, there is nothing to compare with: %s",
                title,
                ceiling["failed"],
            )
            return
        for name in self._names[1:]:
            try:
                self.cell(bench, name, ceiling)
            except TrainingDiverged as error:
                log.warning(
                    "%s: %s is left out, a first fit that it needs broke off: %s",
                    title,
                    name,
                    error,
                )

    @property
    def _names(self) -> list[str]:
        return [RETRAINING, *(name for name in self.group.strategies if name != RETRAINING)]

    def open_cells(self) -> list[str]:
        """Cells without a row; without the rows of the search, nobody knows of a cell."""
        bench = self.bench(search=False)
        if bench is None:
            return self._names
        strategies = {name: self.strategy(name, bench, search=False) for name in self._names}
        return [
            name
            for name, strategy in strategies.items()
            if strategy is None or (name, bench.key("cell", strategy)) not in self.rows
        ]

    def bench(self, *, search: bool, seed: int | None = None) -> Bench | None:
        """The increment with the fitting rate that was found; None if it was not to be searched."""
        group = self.group if seed is None else self.group.of_seed(seed)
        trials = fitting_trials(group, self.folder, self.work)
        tell_row = self._row("rate of the first fit") if search else None
        rate = best_rate("fitting", trials, self.rows, tell_row=tell_row)
        if rate is None:
            return None
        return Bench(group, retraining(group.data, rate), self.folder, self.work)

    def strategy(self, name: str, bench: Bench, *, search: bool) -> Strategy | None:
        """The strategy at the rate that was found for it; None if it was not to be searched."""
        if name == RETRAINING:
            return bench.fit_strategy
        entry, data = self.group.line_up[name], self.group.data
        if not entry.searched:
            return entry.make(data.rates[0])
        on = (
            bench if self.group.seed == SEARCH_SEED else self.bench(search=search, seed=SEARCH_SEED)
        )
        if on is None:
            return None
        doing = f"rate of {name}"
        rate = best_rate(
            name,
            strategy_trials(self.group, name, on),
            self.rows,
            learner=lambda: on.learner(self._progress(doing), self._row("first fit")),
            tell_row=self._row(doing) if search else None,
        )
        return None if rate is None else entry.make(rate)

    def cell(self, bench: Bench, name: str, ceiling: Row | None) -> Row:
        strategy = self.strategy(name, bench, search=True)
        assert strategy is not None
        found = self.rows.get((name, bench.key("cell", strategy)))
        if found is not None:
            return found
        learner = bench.learner(self._progress("first fit"), self._row("first fit"))
        limit = None if ceiling is None else bench.limit(ceiling)
        row = bench.cell(
            name, strategy, learner, ceiling=ceiling, progress=self._progress(name, limit)
        )
        self._row(name)(row)
        return row

    def _progress(
        self, doing: str, forward_passes: int | None = None
    ) -> Callable[[Progress], None]:
        self._tell(Event(group=self.group.title, doing=doing))

        def told(step: Progress) -> None:
            if step.finished is not None:
                done = (
                    step.epoch / step.epochs
                    if forward_passes is None
                    else step.forward_passes / forward_passes
                )
                epoch = Event(
                    group=self.group.title, doing=doing, epoch=step.epoch, share=min(done, 1.0)
                )
                self._tell(epoch)

        return told

    def _row(self, doing: str) -> Callable[[Row], None]:
        def told(row: Row) -> None:
            if identity(row) in self.rows:
                return  # a fit whose learner was lost has been made again
            self.rows[identity(row)] = row
            self._tell(Event(group=self.group.title, doing=doing, row=row))

        return told
