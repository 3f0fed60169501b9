"""docs/results.md and the README's table, from the rows in this folder.

python results/pages.py           # writes them
python results/pages.py --check   # says whether they still fit the rows
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paper.pages import results_page, with_overview
from paper.row_file import read_rows
from paper.summary import Summary

HERE = Path(__file__).resolve().parent
ROWS, LONGER = HERE / "paper.jsonl", HERE / "longer.jsonl"
PAGE, README = HERE.parent / "docs" / "results.md", HERE.parent / "README.md"


def made() -> dict[Path, str]:
    """What the pages should say."""
    summary, longer = Summary(read_rows(ROWS)), Summary(read_rows(LONGER))
    return {
        PAGE: results_page(summary, longer),
        README: with_overview(README.read_text(encoding="utf-8"), summary),
    }


def stale() -> list[Path]:
    """Pages that say something else."""
    return [
        page
        for page, text in made().items()
        if not page.exists() or page.read_text(encoding="utf-8") != text
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if they differ")
    if parser.parse_args().check:
        names = ", ".join(page.name for page in stale())
        if names:
            sys.exit(f"{names} no longer fit results/: run `make results`")
        return
    for page, text in made().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
