"""A report's tables on a terminal."""

from __future__ import annotations

import re

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from incontrast.cli.output import plain
from incontrast.report.page import Cell, Table

STYLES = {"best": "bold", "good": "green", "bad": "red", "quiet": "dim", "second": "italic"}


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
