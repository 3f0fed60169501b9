"""A report's tables and verdicts on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from incontrast.report import Cell, Table, Verdict

__all__ = ["print_table", "print_verdicts"]

STYLES = {"best": "bold", "good": "green", "bad": "red", "quiet": "dim", "second": "italic"}
STANDING = {
    "holds": ("holds", "green"),
    "fails": ("does not hold", "red"),
    "mixed": ("in part", "yellow"),
    "open": ("not decided", "dim"),
}


def print_table(console: Console, table: Table) -> None:
    """A wide table is turned: its columns become lines, which a terminal has more room for."""
    wide = len(table.columns) > len(table.rows)
    grid = Grid(header_style="bold")
    if wide:
        grid.add_column(no_wrap=True)
        for row in table.rows:
            grid.add_column(row[0].text, justify="right")
        for number, column in enumerate(table.columns[1:], start=1):
            heading = " ".join(filter(None, (column.group, column.title)))
            grid.add_row(heading, *(_text(row[number]) for row in table.rows))
    else:
        for column in table.columns:
            heading = " ".join(filter(None, (column.group, column.title)))
            grid.add_column(heading, justify="right" if column.number else "left")
        for row in table.rows:
            grid.add_row(*(_text(cell) for cell in row))
    console.print(Text(table.title, style="bold"))
    console.print(grid)
    console.print(Padding(Text(_plain(table.caption), style="dim"), (0, 0, 1, 0)))


def print_verdicts(console: Console, title: str, verdicts: Sequence[Verdict]) -> None:
    """Claims, each with its standing and its reasons."""
    grid = Grid.grid(padding=(0, 2))
    for verdict in verdicts:
        word, style = STANDING[verdict.standing]
        text = Text(_plain(verdict.claim))
        text.append(f"\n{_plain(verdict.because)}", style="dim")
        grid.add_row(Text(word, style=style), text)
    console.print(Text(title, style="bold"))
    console.print(Padding(grid, (0, 0, 1, 0)))


def _text(cell: Cell) -> Text:
    text = Text(cell.text, style=STYLES.get(cell.mark, ""))
    if cell.note:
        text.append(f"\n{cell.note}", style="dim")
    return text


def _plain(text: str) -> str:
    return re.sub(r"\*\*|`", "", text)
