"""Progress of training on a terminal: a bar, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from incontrast.training.progress import Progress, ProgressCallback

__all__ = ["training_bar"]

REFRESH = 0.1  # seconds between two looks of a bar, so that looks cost nothing


@contextmanager
def training_bar(console: Console, title: str) -> Iterator[ProgressCallback]:
    """A callback that shows epochs, loss and learning rate while training runs."""
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
            shown = now
            bars.update(
                task,
                total=progress.epochs,
                completed=progress.epoch - (progress.finished is None),
                figures=f"loss {progress.loss:.3f}  rate {progress.rate:.1e}",
            )

        yield show
    if not console.is_terminal:
        console.print(f"{title}: done")
