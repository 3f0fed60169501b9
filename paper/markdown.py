"""Tables and verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from incontrast.report.page import Cell, Table, Verdict

__all__ = ["table_as_markdown", "verdicts_as_markdown"]

STANDING = {"holds": "holds", "fails": "does not hold", "mixed": "in part", "open": "not decided"}


def table_as_markdown(table: Table, *, turned: bool = False) -> str:
    """A table, its notes in brackets.

    Args:
        table: The table.
        turned: Whether its columns become rows: for tables that are wider than a page.
    """
    headings = [" ".join(filter(None, (c.group, c.title))) for c in table.columns]
    lines = [[_text(cell) for cell in row] for row in table.rows]
    if turned:
        columns = list(zip(headings, *lines, strict=True))
        headings = ["", *columns[0][1:]]
        lines = [list(column) for column in columns[1:]]
    rule = "|---|" + "---:|" * (len(headings) - 1)
    return "\n".join(["| " + " | ".join(headings) + " |", rule, *map(_line, lines)])


def verdicts_as_markdown(verdicts: Sequence[Verdict]) -> str:
    """A list of claims."""
    return "\n".join(
        f"- **{STANDING[verdict.standing]}**: {verdict.claim} {verdict.because}"
        for verdict in verdicts
    )


def _text(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.mark == "best" else cell.text
    return f"{text} ({cell.note})" if cell.note else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
