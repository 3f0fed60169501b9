"""Progress on a terminal: a bar, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from incontrast.training.progress import Progress, ProgressCallback

__all__ = ["counting_bar", "training_bar"]

REFRESH = 0.1  # seconds between two updates of a bar, so that they cost nothing
LINE = 5.0  # seconds between two lines


@contextmanager
def training_bar(
    console: Console, title: str, *, lines: bool = False
) -> Iterator[ProgressCallback]:
    """A callback that shows epochs, loss and learning rate while training runs.

    Args:
        console: Where to.
        title: What is running.
        lines: Where there is no terminal, print a line every few seconds.
    """
    bars = _bars(console, title, "epochs  {task.fields[about]}")
    shown = 0.0
    with bars:
        task = bars.add_task(title, total=None, about="")

        def show(progress: Progress) -> None:
            nonlocal shown
            now = time.perf_counter()
            interval = REFRESH if console.is_terminal else LINE
            if now - shown < interval and (progress.finished is None or not console.is_terminal):
                return
            about = f"loss {progress.loss:.3f}, lr {progress.lr:.1e}"
            if console.is_terminal:
                shown = now
                done = progress.epoch - (progress.finished is None)
                bars.update(task, total=progress.epochs, completed=done, about=about)
            elif lines and progress.finished is not None:
                shown = now
                console.print(f"{title}: epoch {progress.epoch} of {progress.epochs}, {about}")

        yield show
    if not console.is_terminal and not lines:
        console.print(f"{title}: done")


@contextmanager
def counting_bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that shows how many of how many items are done."""
    bars = _bars(console, title, "items")
    shown = time.perf_counter()
    with bars:
        task = bars.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            nonlocal shown
            bars.update(task, completed=done, total=total)
            if not console.is_terminal and time.perf_counter() - shown >= LINE:
                shown = time.perf_counter()
                console.print(f"{title}: {done:,} of {total:,} items")

        yield show


def _bars(console: Console, title: str, unit: str) -> Bars:
    return Bars(
        TextColumn(f"{title:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
