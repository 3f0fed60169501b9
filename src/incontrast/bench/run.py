"""Running a grid: what is finished is skipped, what is killed loses one cell."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from incontrast.bench.cells import Bench
from incontrast.bench.grid import SEARCH_SEED, Grid, Group
from incontrast.bench.line_up import RETRAINING, retraining
from incontrast.bench.search import (
    Ledger,
    best_rate,
    fitting_trials,
    identity,
    strategy_trials,
)
from incontrast.rows import Row, append_row, read_rows
from incontrast.strategies import Strategy
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Progress

__all__ = ["FIELDS", "Event", "Tell", "Unfinished", "run", "unfinished"]

log = logging.getLogger(__name__)

FIELDS = (
    *("key", "kind", "scale", "set", "data", "growth_ratio", "seed"),
    *("settings", "strategy", "clock"),
)
"""What every row of a grid has."""

LAST_WORD = 10.0  # seconds until the last word of a task that is done is waited for no more


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


@dataclass(frozen=True)
class Unfinished:
    """A cell that has no row yet."""

    set: str
    growth_ratio: float
    seed: int
    strategy: str


def run(
    grid: Grid,
    path: str | Path,
    *,
    folder: str | Path | None = None,
    work: str | Path,
    jobs: int = 1,
    tell: Tell | None = None,
) -> list[Row]:
    """Run the cells of a grid that have no row yet; returns the new rows.

    Args:
        grid: Which cells.
        path: The file of rows, to which finished ones are added.
        folder: The folder of data sets.
        work: A folder for fitted learners, which a later run goes on from.
        jobs: Processes side by side, each with increments of its own; with more than one they
            disturb each other's times.
        tell: Called with what happens.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    path, work = Path(path), Path(work)
    folder = None if folder is None else Path(folder)
    rows = {identity(row): row for row in read_rows(path, needs=FIELDS)}
    made: list[Row] = []

    def keep(row: Row) -> None:
        append_row(path, row)
        rows[identity(row)] = row
        made.append(row)

    def told(event: Event) -> None:
        if event.row is not None:
            keep(event.row)
        if tell is not None:
            tell(event)

    todo = [group for group in grid.groups() if _open_cells(group, rows)]
    if jobs == 1:
        for group in todo:
            _Group(group, rows, folder, work, told).run()
    else:
        _side_by_side(todo, rows, folder, work, jobs, told, keep)
    return made


def unfinished(grid: Grid, rows: list[Row]) -> list[Unfinished]:
    """The cells that have no row yet, in the order in which they are run."""
    known = {identity(row): row for row in rows}
    return [
        Unfinished(group.name, group.growth_ratio, group.seed, name)
        for group in grid.groups()
        for name in _open_cells(group, known)
    ]


def _open_cells(group: Group, rows: Ledger) -> list[str]:
    """Cells without a row; without the rows of the search, nobody knows of a cell."""
    here = _Group(group, rows, None, Path(), lambda event: None)
    bench = here.bench(search=False)
    names = _names(group)
    if bench is None:
        return names
    strategies = {name: here.strategy(name, bench, search=False) for name in names}
    return [
        name
        for name, strategy in strategies.items()
        if strategy is None or (name, bench.key("cell", strategy)) not in rows
    ]


def _names(group: Group) -> list[str]:
    return [RETRAINING, *(name for name in group.strategies if name != RETRAINING)]


class _Group:
    """The cells of one increment, one after the other."""

    def __init__(
        self, group: Group, rows: Ledger, folder: Path | None, work: Path, tell: Tell
    ) -> None:
        self.group, self.rows, self.folder, self.work = group, rows, folder, work
        self._tell = tell

    def run(self) -> None:
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
        for name in _names(self.group)[1:]:
            try:
                self.cell(bench, name, ceiling)
            except TrainingDiverged as error:
                log.warning(
                    "%s: %s is left out, a first fit that it needs broke off: %s",
                    title,
                    name,
                    error,
                )

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
            return bench.fitting
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

    def _progress(self, doing: str, passes: int | None = None) -> Callable[[Progress], None]:
        self._tell(Event(group=self.group.title, doing=doing))

        def told(step: Progress) -> None:
            if step.finished is not None:
                done = step.epoch / step.epochs if passes is None else step.passes / passes
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


# Several processes: each runs whole increments, the parent alone writes rows. All increments of a
# seed come before those of the next, so that no two processes search for the same rates at once.


def _side_by_side(
    todo: list[Group],
    rows: Ledger,
    folder: Path | None,
    work: Path,
    jobs: int,
    tell: Tell,
    keep: Callable[[Row], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin_worker, initargs=(events, stop)
    ) as pool:
        for _, wave in groupby(enumerate(todo), key=lambda entry: entry[1].seed):
            tasks = {
                number: pool.submit(_work, number, group, dict(rows), folder, work)
                for number, group in wave
            }
            ended: set[int] = set()
            try:
                for event in _until_done(tasks, ended, events):
                    tell(event)
            except BaseException:
                stop.set()  # workers look at it after every epoch
                for task in tasks.values():
                    task.cancel()
                # A worker whose words nobody takes does not end, and a row among them is finished.
                for event in _until_done(tasks, ended, events):
                    if event.row is not None:
                        with suppress(OSError):  # the disk may be what this ends for
                            keep(event.row)
                raise
            for task in tasks.values():
                if not task.cancelled():
                    task.result()


def _until_done(tasks: dict[int, Future[None]], ended: set[int], events: Any) -> Iterator[Event]:
    """What workers tell. When one of them fails, the others finish what they are at.

    A task is done a moment before its last words arrive, for a thread of its worker sends them.

    Args:
        tasks: By number.
        ended: Numbers of tasks whose last word has come; it is filled here.
        events: Where they speak: numbers and events, with None for the last word.
    """
    while True:
        running = [task for task in tasks.values() if not task.done()]
        if any(_fault(task) is not None for task in tasks.values()):
            for task in running:
                task.cancel()
        late = any(_speaks(task) for number, task in tasks.items() if number not in ended)
        try:
            number, event = events.get(timeout=0.2 if running or not late else LAST_WORD)
        except queue.Empty:
            if not running:
                return
            continue
        if event is None:
            ended.add(number)
        else:
            yield event


def _fault(task: Future[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _speaks(task: Future[None]) -> bool:
    """Whether this task has a last word: not if it never began, or if its worker died."""
    return not task.cancelled() and not isinstance(_fault(task), BrokenProcessPool)


_events: Any = None  # of a worker process, set once when it begins
_stop: Any = None


def _begin_worker(events: Any, stop: Any) -> None:
    global _events, _stop
    _events, _stop = events, stop
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker of a parent that was killed would train on with nobody to tell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(number: int, group: Group, rows: Ledger, folder: Path | None, work: Path) -> None:
    def tell(event: Event) -> None:
        _events.put((number, event))
        if _stop.is_set():
            raise InterruptedError("the run was ended")

    try:
        _Group(group, rows, folder, work, tell).run()
    finally:
        _events.put((number, None))
