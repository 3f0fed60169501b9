"""The section on what an update did to vectors that are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from incontrast.report import page
from incontrast.report.figures import neighbour_figure
from incontrast.text import index_advice

WAYS = {"to_old": "new queries, mapped to the old space", "to_new": "stored vectors, mapped"}


def stored_vectors(
    evaluation: Mapping[str, Any], pictures: Mapping[int, str]
) -> Iterator[page.Section]:
    """None after a first fit, or where no map was fitted."""
    if "stored_vectors" in evaluation:
        found = evaluation["stored_vectors"]
        advice = page.Text(
            f"**{index_advice(found['expected'])}** `incontrast reembed FILE --plan` says what it "
            "takes; `incontrast embed --space` embeds for the index as it is."
        )
        blocks: tuple[page.Block, ...] = (
            advice,
            _maps(found),
            _shares(found),
            *_worst(found, pictures),
        )
        yield page.Section("Stored vectors", blocks)


def _maps(found: Mapping[str, Any]) -> page.Table:
    rows = [
        (
            page.Cell(WAYS[way]),
            page.Cell(kind, mark="best" if kind == found["kinds"][way] else ""),
            *(_interval(quality, figure) for figure in ("recall", "precision")),
        )
        for way, kinds in found["tried"].items()
        for kind, quality in kinds.items()
    ]
    return page.Table(
        title="Searching stored vectors with the new encoder",
        columns=(
            page.Column("what is mapped"),
            page.Column("map"),
            page.Column("recall@10", number=True),
            page.Column("precision@10", number=True),
        ),
        rows=tuple(rows),
        caption=f"Against a search after everything was re-embedded, on held-out items of "
        f"{found['pairs']:,}, with intervals of 95 %. Recall: the share of the 10 nearest that are "
        "among the 10 found. Precision: the share of the 10 found that are among the 50 nearest. "
        "The best map each way is saved with the version.",
    )


def _interval(quality: Mapping[str, Any], figure: str) -> page.Cell:
    lower, upper = quality[f"{figure}_interval"]
    return page.Cell(
        f"{quality[figure]:.3f}", sort=quality[figure], note=f"{lower:.3f} to {upper:.3f}"
    )


def _shares(found: Mapping[str, Any]) -> page.Table:
    return page.Table(
        title="After re-embedding a part",
        columns=tuple(
            page.Column(title, number=True)
            for title in ("re-embedded", "recall@10", "precision@10")
        ),
        rows=tuple(
            (
                page.Cell(f"{each['share']:.0%}", sort=each["share"]),
                *(page.Cell(f"{each[name]:.3f}", sort=each[name]) for name in FIGURES),
            )
            for each in found["expected"]
        ),
        caption="The vectors that the map misses most come first; the others are mapped.",
    )


FIGURES = ("recall", "precision")


def _worst(found: Mapping[str, Any], pictures: Mapping[int, str]) -> Iterator[page.Figure]:
    if pictures:
        yield page.Figure(
            title="Worst served",
            svg=neighbour_figure(found["examples"], pictures),
            caption="Each row: an item, what a search in mapped vectors finds (before) and what it "
            "finds once they are re-embedded (after). Framed ones were missed.",
        )
