"""Figures of matplotlib in a page."""

from __future__ import annotations

import re

from paper.drawing import INK, SERIES, svg


def drawing(name: str) -> str:
    def draw(figure) -> None:
        axes = figure.subplots()
        axes.plot([1, 2, 3], [3, 1, 2], color=SERIES[1], label="ICL()")
        axes.scatter([1, 2], [1, 2], color=SERIES[2])
        axes.legend()

    return svg(draw, name=name, title='loss "of all" & more')


def test_a_figure_takes_its_colours_from_the_page() -> None:
    drawn = drawing("one")
    assert INK not in drawn
    assert "var(--series-1)" in drawn
    assert "currentColor" in drawn
    assert ">ICL()<" in drawn, "text stays text"
    assert drawn == drawing("one"), "the same figure twice is the same text"


def test_figures_of_one_page_share_no_ids() -> None:
    used = [set(re.findall(r' id="([^"]+)"', drawing(name))) for name in ("one", "two")]
    assert used[0]
    assert not used[0] & used[1]
