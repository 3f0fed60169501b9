"""Tables and verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from incontrast.report.page import Table, Verdict

__all__ = ["table_as_markdown", "verdicts_as_markdown"]

STANDING = {"holds": "holds", "fails": "does not hold", "mixed": "in part", "open": "not decided"}


def table_as_markdown(table: Table) -> str:
    """A table, its notes in brackets."""
    headings = [" ".join(filter(None, (c.group, c.title))) for c in table.columns]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for row in table.rows:
        cells = []
        for cell in row:
            text = f"**{cell.text}**" if cell.mark == "best" else cell.text
            cells.append(f"{text} ({cell.note})" if cell.note else text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdicts_as_markdown(verdicts: Sequence[Verdict]) -> str:
    """A list of claims."""
    return "\n".join(
        f"- **{STANDING[verdict.standing]}**: {verdict.claim} {verdict.because}"
        for verdict in verdicts
    )
