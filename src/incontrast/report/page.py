"""The parts of a page, which becomes one self-contained HTML file.

>>> table = Table(title="Losses", columns=columns("strategy"), rows=((Cell("ICL"),),))
>>> render(Page(title="Update 7", sections=(Section("Figures", (table,)),))).count("<table")
1
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from incontrast.files import write_bytes

Mark = Literal["", "best", "second", "good", "bad", "quiet"]


class Column(NamedTuple):
    """A column of a table."""

    title: str
    number: bool = False  # whether its cells are numbers, aligned on the right
    hint: str = ""  # what it means, shown when the mouse is over the heading
    group: str = ""  # a heading above neighbouring columns of the same group


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    sort: float | None = None  # what it is sorted by; cells without come last
    mark: Mark = ""
    note: str = ""  # smaller lines below, separated by " · "


def columns(*titles: str, numbers: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns of text, then columns of numbers."""
    return (*map(Column, titles), *(Column(title, number=True) for title in numbers))


DASH = Cell("–", mark="quiet")


def figure_cell(value: float | None, form: str = ".3f", **more: Any) -> Cell:
    """A number; a dash for None and nan."""
    if value is None or value != value:
        return DASH
    return Cell(format(value, form), sort=value, **more)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; a click on a heading sorts it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r} has {len(self.columns)} columns, "
                    f"got a row of {len(row)} cells"
                )

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Headings above the columns, each with the number of columns it spans."""
        names = groupby(column.group for column in self.columns)
        spans = [(name, len([*columns])) for name, columns in names]
        return spans if any(name for name, _ in spans) else []


class Figure(NamedTuple):
    """An SVG, as made by ``chart``, and what to see in it."""

    title: str
    svg: str
    caption: str


class Text(NamedTuple):
    """Paragraphs, separated by empty lines, with ``code`` and **strong** words."""

    text: str


class Facts(NamedTuple):
    """Key figures, each with a label and a remark."""

    facts: tuple[tuple[str, str, str], ...]


class Item(NamedTuple):
    """An item's text, or its picture as a data URI."""

    text: str = ""
    picture: str = ""


class Neighbours(NamedTuple):
    """Items with their nearest neighbours ``before`` and ``after``, by id.

    Items that were forgotten since are missing from ``items``.
    """

    title: str
    examples: Sequence[Mapping[str, Any]]
    items: Mapping[int, Item]
    caption: str


Block = Table | Figure | Text | Facts | Neighbours


class Section(NamedTuple):
    """A part of a page."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def anchor(self) -> str:
        """The name for links."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


class Page(NamedTuple):
    """A whole page."""

    title: str
    sections: tuple[Section, ...]
    lead: str = ""  # the main results in a few sentences
    foot: str = ""  # the small print


def render(page: Page) -> str:
    """The page as one HTML document with its styles, script and figures."""
    return str(template("page.html").render(page=page))


def save(page: Page, path: str | Path) -> None:
    """Write the page to a file."""
    write_bytes(Path(path), render(page).encode())


@cache
def template(name: str) -> Any:
    """A template of this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("incontrast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"marked": _marked, "kind": lambda block: type(block).__name__}
    return environment.get_template(name)


def _marked(text: str) -> Any:
    """Text with marked words, as HTML."""
    from markupsafe import Markup

    safe = re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escape(text))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))
