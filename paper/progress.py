"""What a grid is doing: a table that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from paper.grid import Grid
from paper.grid import Group as Increment
from paper.group_run import Event, Notify
from paper.row_file import Row
from paper.run import unfinished

REDRAWS = 4  # a second, at most


@contextmanager
def grid_progress(console: Console, grid: Grid, rows: list[Row], *, jobs: int) -> Iterator[Notify]:
    """A callback that shows what runs, what is left and how long it should take."""
    display = _Display(grid, rows, jobs)
    if console.is_terminal:
        with Live(
            display,
            console=console,
            auto_refresh=jobs > 1,
            refresh_per_second=REDRAWS,
            transient=True,
        ) as live:
            yield display.update if jobs > 1 else _redrawing(display, live)
        return

    def print_rows(event: Event) -> None:
        display.update(event)
        if event.row is not None:
            console.print(display.line(event, event.row), soft_wrap=True)

    yield print_rows


def seconds_left(
    runs: Iterable[tuple[Increment, str]], rows: Sequence[Row], *, jobs: int = 1
) -> float | None:
    """The sum over runs of what a similar one took; None if there is nothing to go by.

    Similar is: the same strategy on the same data, else any on the same data, else the same
    strategy anywhere, else any. What fits and trials took is shared out among the runs.
    """
    finished = [row for row in rows if row["kind"] == "run"]
    spent = sum(row["cost"]["seconds"] for row in rows)
    overhead = spent / max(sum(row["cost"]["seconds"] for row in finished), 1e-9)
    total = 0.0
    for group, strategy in runs:
        same_data = [row for row in finished if row["set"] == group.name]
        same_strategy = [row for row in finished if row["strategy"] == strategy]
        both = [row for row in same_data if row["strategy"] == strategy]
        similar = both or same_data or same_strategy or finished
        if not similar:
            return None
        total += overhead * statistics.median(row["cost"]["seconds"] for row in similar)
    return total / jobs


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _redrawing(display: _Display, live: Live) -> Notify:
    """Draws when something happens, which is off the clock.

    With one job training is in this process, and a thread that draws would be part of its time.
    """
    drawn = 0.0

    def redraw(event: Event) -> None:
        nonlocal drawn
        display.update(event)
        now = time.monotonic()
        if event.epoch == 0 or now - drawn >= 1 / REDRAWS:
            live.refresh()
            drawn = now

    return redraw


class _Display:
    def __init__(self, grid: Grid, rows: list[Row], jobs: int) -> None:
        self._grid, self._rows, self._jobs = grid, list(rows), jobs
        self._total = grid.count()
        self._running: dict[str, Event] = {}
        self._begin = time.monotonic()
        self._rest = self._estimate()

    def update(self, event: Event) -> None:
        if event.row is None:
            self._running[event.group] = event
            return
        self._running.pop(event.group, None)
        self._rows.append(event.row)
        self._rest = self._estimate()

    def line(self, event: Event, row: Row) -> str:
        """One finished row, for a log."""
        lr = f" at {row['lr']:g}" if "lr" in row else ""
        kind = "" if row["kind"] == "run" else f"{row['kind']}: "
        return (
            f"{time.strftime('%H:%M:%S')}  {event.group}  {kind}{row['strategy']}{lr}  "
            f"{row['cost']['seconds']:.0f} s; {self._rest}"
        )

    def _estimate(self) -> str:
        """What is left, in words; it takes too long to be computed whenever this is drawn."""
        left = unfinished(self._grid, self._rows)
        if not left:
            return "nothing left"
        seconds = seconds_left(left, self._rows, jobs=self._jobs)
        about = "" if seconds is None else f", about {duration(seconds)}"
        return f"{len(left)} of {self._total} runs left{about}"

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for event in self._running.values():
            bar = ProgressBar(total=1.0, completed=event.share or 0.0, width=24)
            epochs = f"epoch {event.epoch}" if event.epoch else ""
            table.add_row(event.group, event.doing, bar, epochs)
        spent = duration(time.monotonic() - self._begin)
        return Group(table, f"{self._rest}; running for {spent}")
