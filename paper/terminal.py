"""Wide tables on a terminal, which has more room for lines than for columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console

from incontrast.cli.output import print_table
from incontrast.report.page import Cell, Column, Table


def print_wide(console: Console, table: Table) -> None:
    """Print a table; where it has more columns than rows, its columns become lines."""
    if len(table.columns) <= len(table.rows):
        print_table(console, table)
        return
    headings = [f"{column.group} {column.title}".strip() for column in table.columns]
    parts = list(_that_fit(table.rows, console.width - max(map(len, headings)) - 4))
    for number, part in enumerate(parts):
        turned = replace(
            table,
            title=table.title if number == 0 else "",
            columns=(Column(""), *(Column(row[0].text, number=True) for row in part)),
            rows=tuple(
                (Cell(heading), *(row[place] for row in part))
                for place, heading in enumerate(headings)
                if place
            ),
            caption=table.caption if part is parts[-1] else "",
        )
        print_table(console, turned)


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
