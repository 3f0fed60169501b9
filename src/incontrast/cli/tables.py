"""A report's tables on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from incontrast.cli.output import plain
from incontrast.report.page import Cell, Table

__all__ = ["print_table"]

STYLES = {"best": "bold", "good": "green", "bad": "red", "quiet": "dim", "second": "italic"}


def print_table(console: Console, table: Table, *, turned: bool | None = None) -> None:
    """Print a table; where its columns do not fit beside each other, the rest follow below.

    Args:
        console: Where to.
        table: What to print.
        turned: Whether columns become lines, which a terminal has more room for; by default where
            there are more columns than rows.
    """
    console.print(Text(plain(table.title), style="bold"))
    headings = [" ".join(filter(None, (c.group, c.title))) for c in table.columns]
    if len(table.columns) > len(table.rows) if turned is None else turned:
        for part in _that_fit(table.rows, console.width - max(map(len, headings)) - 4):
            grid = Grid(header_style="bold")
            grid.add_column(no_wrap=True)
            for row in part:
                grid.add_column(Text(plain(row[0].text)), justify="right")
            for number, heading in enumerate(headings[1:], start=1):
                grid.add_row(Text(plain(heading)), *(_text(row[number]) for row in part))
            console.print(grid)
    else:
        grid = Grid(header_style="bold")
        for column, heading in zip(table.columns, headings, strict=True):
            grid.add_column(Text(plain(heading)), justify="right" if column.number else "left")
        for row in table.rows:
            grid.add_row(*(_text(cell) for cell in row))
        console.print(grid)
    caption = Padding(Text(_unmarked(table.caption), style="dim"), (0, 0, 1, 0))
    console.print(caption, soft_wrap=False)


def _that_fit(rows: Sequence[tuple[Cell, ...]], room: int) -> Iterator[list[tuple[Cell, ...]]]:
    """Rows that become columns, as many at a time as this many characters hold."""
    part: list[tuple[Cell, ...]] = []
    left = room
    for row in rows:
        words = [word for cell in row for word in (cell.text, *cell.note.split(" · "))]
        # A name may be broken between its words, a figure not.
        width = max(len(word) for word in (*row[0].text.split(), *words[1:])) + 3
        if part and width > left:
            yield part
            part, left = [], room
        part.append(row)
        left -= width
    yield part


def _text(cell: Cell) -> Text:
    text = Text(plain(cell.text), style=STYLES.get(cell.mark, ""))
    for note in filter(None, cell.note.split(" · ")):
        text.append(f"\n{plain(note)}", style="dim")
    return text


def _unmarked(text: str) -> str:
    return plain(re.sub(r"\*\*|`", "", text))
