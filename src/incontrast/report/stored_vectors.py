"""The section on what an update did to vectors that are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from incontrast.report import page
from incontrast.report.page import Cell, columns, figure_cell
from incontrast.text import index_advice

WAYS = {"to_old": "new queries, mapped to the old space", "to_new": "stored vectors, mapped"}
FIGURES = ("recall", "precision")
TITLES = tuple(f"{figure}@10" for figure in FIGURES)


def stored_vectors(found: Mapping[str, Any], pictures: Mapping[int, str]) -> page.Section:
    """Of what the evaluation found about them."""
    advice = page.Text(
        f"**{index_advice(found['expected'], found['items'])}** `incontrast reembed FILE --plan` "
        "says what it takes; `incontrast embed --space` embeds for the index as it is."
    )
    blocks: list[page.Block] = [advice, _maps(found), _shares(found)]
    if pictures:
        blocks.append(
            page.neighbour_figure(
                "Worst served",
                found["examples"],
                pictures,
                "Each row: an item, what a search in mapped vectors finds (before) and what it "
                "finds once they are re-embedded (after). Framed ones were missed.",
            )
        )
    return page.Section("Stored vectors", tuple(blocks))


def _maps(found: Mapping[str, Any]) -> page.Table:
    rows = [
        (
            Cell(WAYS[way]),
            Cell(kind, mark="best" if kind == found["kinds"][way] else ""),
            *(_interval(quality, figure) for figure in FIGURES),
        )
        for way, kinds in found["tried"].items()
        for kind, quality in kinds.items()
    ]
    return page.Table(
        title="Searching stored vectors with the new encoder",
        columns=columns("what is mapped", "map", numbers=TITLES),
        rows=tuple(rows),
        caption=f"Against a search after everything was re-embedded, on held-out items of "
        f"{found['pairs']:,}, with intervals of 95 %. Recall: the share of the 10 nearest that are "
        "among the 10 found. Precision: the share of the 10 found that are among the 50 nearest "
        "(a tenth of fewer than 500 items, at least 10). "
        "The best map each way is saved with the version.",
    )


def _interval(quality: Mapping[str, Any], figure: str) -> Cell:
    lower, upper = quality[f"{figure}_interval"]
    return figure_cell(quality[figure], note=f"{lower:.3f} to {upper:.3f}")


def _shares(found: Mapping[str, Any]) -> page.Table:
    rows = [
        (figure_cell(each["share"], ".0%"), *(figure_cell(each[name]) for name in FIGURES))
        for each in found["expected"]
    ]
    return page.Table(
        title="After re-embedding a part",
        columns=columns(numbers=("re-embedded", *TITLES)),
        rows=tuple(rows),
        caption="The vectors that the map misses most come first; the others are mapped, each by "
        "a map that was fitted without it.",
    )
