"""What a grid is doing: a table that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from incontrast.bench import Event, Grid, unfinished
from incontrast.bench.estimate import seconds_left
from incontrast.bench.run import Tell
from incontrast.rows import Row

__all__ = ["grid_progress"]


@contextmanager
def grid_progress(console: Console, grid: Grid, rows: list[Row], *, jobs: int) -> Iterator[Tell]:
    """A callback that shows what runs, what is left and how long it should take."""
    display = _Display(grid, rows, jobs)
    if console.is_terminal:
        with Live(display, console=console, refresh_per_second=4, transient=True):
            yield display.told
        return

    def told(event: Event) -> None:
        display.told(event)
        if event.row is not None:
            console.print(display.line(event, event.row), soft_wrap=True)

    yield told


class _Display:
    def __init__(self, grid: Grid, rows: list[Row], jobs: int) -> None:
        self._grid, self._rows, self._jobs = grid, list(rows), jobs
        self._left = unfinished(grid, self._rows)
        self._total = grid.count()
        self._running: dict[str, Event] = {}
        self._begin = time.monotonic()

    def told(self, event: Event) -> None:
        if event.row is None:
            self._running[event.group] = event
            return
        self._running.pop(event.group, None)
        self._rows.append(event.row)
        self._left = unfinished(self._grid, self._rows)

    def line(self, event: Event, row: Row) -> str:
        """One finished row, for a log."""
        rate = f" at {row['rate']:g}" if "rate" in row else ""
        kind = "" if row["kind"] == "cell" else f"{row['kind']}: "
        return (
            f"{time.strftime('%H:%M:%S')}  {event.group}  {kind}{row['strategy']}{rate}  "
            f"{row['cost']['seconds']:.0f} s; {self.rest()}"
        )

    def rest(self) -> str:
        """What is left, in words."""
        if not self._left:
            return "nothing left"
        seconds = seconds_left(self._left, self._rows, jobs=self._jobs)
        about = "" if seconds is None else f", about {_duration(seconds)}"
        return f"{len(self._left)} of {self._total} cells left{about}"

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for event in self._running.values():
            bar = ProgressBar(total=1.0, completed=event.share or 0.0, width=24)
            epochs = f"epoch {event.epoch}" if event.epoch else ""
            table.add_row(event.group, event.doing, bar, epochs)
        spent = _duration(time.monotonic() - self._begin)
        return Group(table, f"{self.rest()}; running for {spent}")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
