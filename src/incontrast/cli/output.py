"""What commands print: plain lines for people, JSON for machines, progress on stderr."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table as Grid
from rich.text import Text

from incontrast.report.page import Cell, Table
from incontrast.text import counted, duration

if TYPE_CHECKING:
    from incontrast.training.progress import Progress, ProgressCallback

REFRESH = 0.1  # seconds between two updates of a bar, so that they cost nothing
LINE = 5.0  # seconds between two lines
STYLES = {"best": "bold", "good": "green", "bad": "red", "quiet": "dim", "second": "italic"}

# Control characters, which a terminal obeys, and lone surrogates, which it cannot print; the name
# of a file may have both.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Text with unprintable characters escaped as in JSON.

    >>> print(plain("week\x1b[2J.npy"))
    week\u001b[2J.npy
    """
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def processes() -> int:
    """How many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_first() -> bool:
    """Whether this process is the first or the only one, which prints."""
    return processes() == 1 or os.environ.get("RANK", "0") == "0"


def stdout() -> Console:
    """For results."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 110
    return console


def stderr() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not is_first())


def say(line: str, style: str = "") -> None:
    """Print a line of a result, without markup."""
    stdout().print(Text(plain(line), style=style))


def note(line: str) -> None:
    """Print a remark on stderr, without markup."""
    stderr().print(Text(plain(line)))


def note_skipped(reasons: Sequence[str]) -> None:
    """Name the first few items that were skipped."""
    if reasons:
        note(f"{counted(len(reasons), 'item')} {'was' if len(reasons) == 1 else 'were'} skipped:")
    for reason in reasons[:10]:
        note(f"  {reason}")
    if len(reasons) > 10:
        note(f"  and {len(reasons) - 10} more (--json lists them all)")


def emit(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON."""
    typer.echo(plain(json.dumps(value, indent=indent, ensure_ascii=False, default=str)))


def print_table(console: Console, table: Table) -> None:
    """Print a table with its title and caption."""
    if table.title:
        console.print(Text(plain(table.title), style="bold"))
    grid = Grid(header_style="bold")
    for column in table.columns:
        heading = Text(plain(f"{column.group} {column.title}".strip()))
        grid.add_column(heading, justify="right" if column.number else "left")
    for row in table.rows:
        grid.add_row(*map(_text, row))
    console.print(grid)
    if table.caption:
        caption = Text(plain(re.sub(r"\*\*|`", "", table.caption)), style="dim")
        console.print(Padding(caption, (0, 0, 1, 0)), soft_wrap=False)


def _text(cell: Cell) -> Text:
    text = Text(plain(cell.text), style=STYLES.get(cell.mark, ""))
    for line in filter(None, cell.note.split(" · ")):
        text.append(f"\n{plain(line)}", style="dim")
    return text


@contextmanager
def counting_bar(
    console: Console, title: str, unit: str = "items"
) -> Iterator[Callable[..., None]]:
    """A callback that shows how much is done: in a bar on a terminal, in lines elsewhere."""
    shown, interval = time.perf_counter(), REFRESH if console.is_terminal else LINE
    with Bars(
        TextColumn(f"{title:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(f"{unit}{{task.fields[details]}}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bars:
        task = bars.add_task(title, total=None, details="")

        def show(done: int, total: int, details: Callable[[], str] = str) -> None:
            nonlocal shown
            if time.perf_counter() - shown < interval:
                return  # details may have to wait for the device
            shown, text = time.perf_counter(), details()
            bars.update(task, completed=done, total=total, details=text)
            if not console.is_terminal:
                console.print(f"{title}: {done:,} of {total:,} {unit}{text}")

        yield show


@contextmanager
def training_bar(console: Console, title: str) -> Iterator[ProgressCallback]:
    """A callback that shows epochs, loss and learning rate during training."""
    with counting_bar(console, title, "epochs") as count:

        def show(progress: Progress) -> None:
            def details() -> str:
                text = f", loss {progress.loss:.3f}, lr {progress.lr:.1e}"
                if progress.done > progress.begun[1]:
                    text += f", at most {duration(progress.seconds_left)} left"
                return text

            count(progress.epoch - (progress.finished is None), progress.epochs, details)

        yield show
