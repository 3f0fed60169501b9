"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from incontrast.report.page import Cell, Table


def table_as_markdown(table: Table) -> str:
    """A table, its notes in brackets; one that is wider than long is transposed."""
    headings = [" ".join(filter(None, (c.group, c.title))) for c in table.columns]
    lines = [[_text(cell) for cell in row] for row in table.rows]
    if len(headings) > len(lines):
        columns = list(zip(headings, *lines, strict=True))
        headings = ["", *columns[0][1:]]
        lines = [list(column) for column in columns[1:]]
    rule = "|---|" + "---:|" * (len(headings) - 1)
    return "\n".join([_line(headings), rule, *map(_line, lines)])


def _text(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.mark == "best" else cell.text
    return f"{text} ({cell.note})" if cell.note else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
