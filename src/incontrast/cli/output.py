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

# Terminals obey control characters, also those in a file's name; lone surrogates, which stand for
# bytes of a name that are not UTF-8, cannot be printed at all.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Text that a terminal shows and does not obey; the escapes are those of JSON.

    >>> print(plain("week\x1b[2J.npy"))
    week\u001b[2J.npy
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def stdout() -> Console:
    """For results."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 110
    return console


def stderr() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not speaks())


def say(line: str, style: str = "") -> None:
    """Print a line of a result. Nothing in it is markup."""
    stdout().print(Text(plain(line), style=style))


def note(line: str) -> None:
    """Print a remark on stderr. Nothing in it is markup."""
    stderr().print(Text(plain(line)))


def note_skipped(reasons: Sequence[str]) -> None:
    """Name what was left out, the first few."""
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
    """Print a table, with its title and its caption where it has them."""
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
    for note in filter(None, cell.note.split(" · ")):
        text.append(f"\n{plain(note)}", style="dim")
    return text


def processes() -> int:
    """How many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def speaks() -> bool:
    """Whether this process is the only one, or the first, and so prints."""
    return processes() == 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def counting_bar(
    console: Console, title: str, unit: str = "items"
) -> Iterator[Callable[..., None]]:
    """A callback that shows how many of how many are done; in lines where there is no terminal."""
    shown, wait = time.perf_counter(), REFRESH if console.is_terminal else LINE
    with Bars(
        TextColumn(f"{title:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(f"{unit}{{task.fields[about]}}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bars:
        task = bars.add_task(title, total=None, about="")

        def show(done: int, total: int, about: Callable[[], str] = str) -> None:
            nonlocal shown
            if time.perf_counter() - shown < wait:
                return  # what is told may be read from the device, and wait for it
            shown, told = time.perf_counter(), about()
            bars.update(task, completed=done, total=total, about=told)
            if not console.is_terminal:
                console.print(f"{title}: {done:,} of {total:,} {unit}{told}")

        yield show


@contextmanager
def training_bar(console: Console, title: str) -> Iterator[ProgressCallback]:
    """A callback that shows epochs, loss and learning rate while training runs."""
    with counting_bar(console, title, "epochs") as count:

        def show(progress: Progress) -> None:
            def about() -> str:
                told = f", loss {progress.loss:.3f}, lr {progress.lr:.1e}"
                if progress.done > progress.begun[1]:
                    told += f", at most {duration(progress.seconds_left)} left"
                return told

            count(progress.epoch - (progress.finished is None), progress.epochs, about)

        yield show
