"""Pages: one file, nothing from elsewhere, nothing that a reader's words could break."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from incontrast.report import page as parts
from incontrast.report.chart import Panel, chart


def drawing() -> str:
    series = {"no update": [(1.0, 2.0)], "ICL(<1>)": [(1, 3), (2, 1), (3, 2)]}
    panel = Panel(series, "old & new", x="epoch", y="loss")
    return chart([panel], title='loss "of all" & more', legend=True)


def page() -> parts.Page:
    table = parts.Table(
        title="Speed-ups",
        columns=(
            parts.Column("strategy"),
            parts.Column("time", number=True, group="PROTEINS", hint="why"),
        ),
        rows=(
            (parts.Cell("a < b"), parts.Cell("2.0×", sort=2.0, mark="best", note="paper 3×")),
            (parts.Cell("c"), parts.Cell("never")),
        ),
        caption="What to see.",
    )
    return parts.Page(
        title="A <b>page</b>",
        lead="With `code` and **strong** words.",
        sections=(
            parts.Section(
                "One", (parts.Text("First.\n\nSecond."), parts.Facts((("cells", "3", "of 4"),)))
            ),
            parts.Section(
                "Two",
                (
                    table,
                    parts.Figure(title="Curve", svg=drawing(), caption="Down."),
                    parts.Figure(title="Again", svg=drawing(), caption="Down."),
                ),
            ),
            parts.Section("Three", ()),
        ),
        foot="Made today.",
    )


class Well(HTMLParser):
    """Notices tags that are not closed, and attributes that are given twice."""

    EMPTY = frozenset({"meta", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_a_page_is_well_formed_and_stands_alone(tmp_path: Path) -> None:
    parts.save(page(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    parser = Well()
    parser.feed(text)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids)), "two things have one id"
    for link in parser.links:
        assert link.startswith("#"), f"{link} is not in the page"
        assert link[1:] in parser.ids
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_words_of_others_are_only_words() -> None:
    text = parts.render(page())
    assert "A &lt;b&gt;page&lt;/b&gt;" in text
    assert "a &lt; b" in text
    assert "<code>code</code>" in text
    assert "<strong>strong</strong>" in text


def test_cells_sort_by_what_they_mean() -> None:
    text = parts.render(page())
    assert 'data-sort="2.0"' in text
    assert "paper 3×" in text
    assert text.count("data-sort=") == 1, "a cell without a figure comes last"


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="table 'T' has 1 columns, got a row of 2 cells"):
        parts.Table(
            title="T", columns=(parts.Column("a"),), rows=((parts.Cell("1"), parts.Cell("2")),)
        )


def test_reports_need_no_torch() -> None:
    code = "import sys, incontrast.report, paper.row_file; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
