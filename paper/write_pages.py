"""Write the tables of docs/results.md and docs/results-tables.md from paper/rows.

python -m paper.write_pages           # writes them
python -m paper.write_pages --check   # fails if they no longer fit the rows

Between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` a page has the table of that name;
the text around it is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from incontrast.report.page import Table
from paper.longer import longer_table
from paper.markdown import table_as_markdown
from paper.overview import overview_table
from paper.page import table_sections
from paper.row_file import read_rows
from paper.speed_tables import standings_table
from paper.summary import Summary, published

HERE = Path(__file__).resolve().parent
ROWS, LONGER = HERE / "rows" / "paper.jsonl", HERE / "rows" / "longer.jsonl"
DOCS = HERE.parent / "docs"
TABLE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->.*?<!-- end of table -->", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Table]) -> str:
    """A page with its tables generated again; the rest stays.

    Raises:
        ValueError: It names a table that there is none of.
    """

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in tables:
            raise ValueError(f"there is no table {name!r}: choose from {', '.join(tables)}")
        rows = table_as_markdown(tables[name])
        return f"<!-- table: {name} -->\n\n{rows}\n\n<!-- end of table -->"

    return TABLE.sub(table, text)


def tables_page(summary: Summary, longer: Summary) -> str:
    """docs/results-tables.md.

    Args:
        summary: The rows of the grid.
        longer: Rows of some of its increments with more epochs.
    """
    parts = [
        "# Results: all tables",
        "Generated from `paper/rows` by `make results`. What they mean: [Results](results.md). How "
        "they were measured: [Reproduce the paper](how-to/reproduce-the-paper.md).",
    ]
    more = ("More epochs", [longer_table(summary, longer)])
    for title, tables in (*table_sections(summary), more):
        parts.append(f"## {title}")
        for table in tables:
            parts += [f"### {table.title}", table_as_markdown(table), table.caption]
    parts.append(f"Published figures: {published()['source']}.")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """What the pages should say."""
    summary, longer = Summary(read_rows(ROWS)), Summary(read_rows(LONGER))
    tables = {"overview": overview_table(summary), "standings": standings_table(summary)}
    by_hand = DOCS / "results.md"
    return {
        DOCS / "results-tables.md": tables_page(summary, longer),
        by_hand: with_tables(by_hand.read_text(encoding="utf-8"), tables),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if they differ")
    check = parser.parse_args().check
    stale = {
        page: text
        for page, text in pages().items()
        if not page.exists() or page.read_text(encoding="utf-8") != text
    }
    if check and stale:
        names = ", ".join(page.name for page in stale)
        sys.exit(f"{names} no longer fit paper/rows: run `make results`")
    for page, text in stale.items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
