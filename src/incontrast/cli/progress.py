"""Progress of training on a terminal: a bar, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from incontrast.training.progress import Progress, ProgressCallback

__all__ = ["counting_bar", "training_bar"]

REFRESH = 0.1  # seconds between two looks of a bar, so that looks cost nothing
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
    bars = Bars(
        TextColumn(f"{title:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("epochs  {task.fields[figures]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    shown = 0.0
    with bars:
        task = bars.add_task(title, total=None, figures="")

        def show(progress: Progress) -> None:
            nonlocal shown
            now = time.perf_counter()
            if progress.finished is None and now - shown < REFRESH:
                return
            if lines and not console.is_terminal:
                if progress.finished is not None and now - shown >= LINE:
                    shown = now
                    console.print(
                        f"{title}: epoch {progress.epoch} of {progress.epochs}, "
                        f"loss {progress.loss:.3f}, rate {progress.lr:.1e}"
                    )
                return
            shown = now
            bars.update(
                task,
                total=progress.epochs,
                completed=progress.epoch - (progress.finished is None),
                figures=f"loss {progress.loss:.3f}  rate {progress.lr:.1e}",
            )

        yield show
    if not console.is_terminal and not lines:
        console.print(f"{title}: done")


@contextmanager
def counting_bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that shows how many of how many items are done."""
    bars = Bars(
        TextColumn(f"{title:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("items"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
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
