"""Charts: every value is where the axes say, whatever the values are."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from incontrast.report.chart import Panel, chart


def drawn(*panels: Panel, **options) -> ElementTree.Element:
    return ElementTree.fromstring(chart(panels, title="t", **options))


def scale(root: ElementTree.Element, anchor: str, place: str) -> dict[float, float]:
    """The ticks of an axis: value to place."""
    labels = [text for text in root.iter("text") if text.get("text-anchor") == anchor]
    return {
        float(label.text): float(label.get(place))
        for label in labels
        if re.fullmatch(r"[-\d.e+]+", label.text)
    }


@pytest.mark.parametrize("log", [False, True])
def test_points_are_where_the_axes_say(log: bool) -> None:
    points = [(1, 0.5), (2, 20.0), (4, 300.0)]
    root = drawn(Panel({"loss": points}, "loss", x="epoch", logs=(False, log)))
    (line,) = root.iter("polyline")
    found = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    across, up = scale(root, "middle", "x"), scale(root, "end", "y")
    assert {1.0, 2.0, 3.0, 4.0} <= set(across), "epochs are whole"
    assert len(up) >= 3

    def expected(ticks: dict[float, float], value: float, log: bool) -> float:
        change = math.log10 if log else float
        (low, first), (high, last) = min(ticks.items()), max(ticks.items())
        share = (change(value) - change(low)) / (change(high) - change(low))
        return first + share * (last - first)

    for (x, y), (place, height) in zip(points, found, strict=True):
        assert place == pytest.approx(expected(across, x, False), abs=0.3)
        assert height == pytest.approx(expected(up, y, log) - 3, abs=0.3)  # a label is lower


def test_a_value_that_is_missing_leaves_a_gap() -> None:
    points = [(1, 1.0), (2, 2.0), (3, math.nan), (4, 1.0), (5, math.inf), (6, 3.0)]
    root = drawn(Panel({"loss": points}, dots=True))
    assert len(list(root.iter("polyline"))) == 3
    assert len(list(root.iter("circle"))) == 4
    nothing = drawn(Panel({"lr": [(1, 0.0), (2, math.nan)]}, logs=(False, True)))
    assert not list(nothing.iter("polyline"))


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 7.0, 1e12, -4.0])
def test_a_value_that_never_changes_is_in_the_middle(value: float) -> None:
    root = drawn(Panel({"loss": [(1, value), (2, value)]}))
    (line,) = root.iter("polyline")
    heights = {pair.split(",")[1] for pair in line.get("points").split()}
    (height,) = heights
    assert 40 < float(height) < 160


def test_what_has_one_point_is_a_dotted_level_and_colours_are_the_same_everywhere() -> None:
    series = {"no update": [(1.0, 2.0)], "ICL": [(1.0, 3.0), (9.0, 1.0)]}
    root = drawn(Panel(series, "old"), Panel(series, "new"), legend=True)
    lines = list(root.iter("polyline"))
    assert [line.get("stroke-dasharray") is not None for line in lines] == [True, False] * 2
    assert [line.get("stroke") for line in lines] == ["var(--series-0)", "var(--series-1)"] * 2
    words = [text.text for text in root.iter("text")]
    assert words.count("ICL") == words.count("old") == words.count("new") == 1
