"""Line charts as SVG, in the page's own type and colours; the template has the drawing.

A plotting library takes longer to import than everything else in a report.

>>> svg = chart([Panel({"ICL": [(1, 0.9), (2, 0.5)]}, x="epoch")], title="Loss")
>>> svg.count("<polyline")
1
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from incontrast.report.page import template

WIDTH = 648
LEFT, RIGHT, BELOW, LINE = 52, 12, 40, 18  # space beside a panel, below it, and per line of text
COLOURS = 8  # in the page's style sheet
LEGEND_COLUMNS = 3

Points = Sequence[tuple[float, float | None]]


class Panel(NamedTuple):
    """Series of points (x, y) by name; None and what is not finite leave a gap."""

    series: Mapping[str, Points]
    title: str = ""
    x: str = ""  # titles of the axes
    y: str = ""
    dots: bool = False  # whether to mark points; if not, a single point is a dotted level line
    logs: tuple[bool, bool] = (False, False)  # whether the axes are logarithmic


def chart(panels: Sequence[Panel], *, title: str, legend: bool = False, height: int = 200) -> str:
    """The panels side by side; a series has the same colour in all. ``title`` is read aloud."""
    names = dict.fromkeys(name for panel in panels for name in panel.series)
    colours = {name: place % COLOURS for place, name in enumerate(names)}
    entries, top = [], LINE
    for place, name in enumerate(names if legend else ()):
        row, column = divmod(place, LEGEND_COLUMNS)
        x = LEFT + column * (WIDTH - LEFT) // LEGEND_COLUMNS
        entries.append({"x": x, "y": LINE * row, "name": name, "colour": colours[name]})
        top = LINE * (row + 2)
    width, bottom = WIDTH // len(panels), top + height - LINE - BELOW
    drawn = []
    for place, panel in enumerate(panels):
        frame = {"left": place * width + LEFT, "right": (place + 1) * width - RIGHT}
        drawn.append(_drawn(panel, {**frame, "top": top, "bottom": bottom}, colours))
    size = {"width": WIDTH, "height": bottom + BELOW}
    svg = template("chart.svg").render(title=title, legend=entries, panels=drawn, **size)
    return str(svg)


def _drawn(panel: Panel, frame: dict[str, int], colours: Mapping[str, int]) -> dict[str, Any]:
    """Where the template draws the parts of a panel."""
    curves = {
        name: [(x, math.nan if y is None else y) for x, y in series]
        for name, series in panel.series.items()
    }
    points = [point for curve in curves.values() for point in curve]
    x_log, y_log = panel.logs
    across = _Axis([x for x, _ in points], x_log, frame["left"], frame["right"], whole=not x_log)
    up = _Axis([y for _, y in points], y_log, frame["bottom"], frame["top"])
    lines = []
    for name, curve in curves.items():
        level = len(curve) == 1 and not panel.dots
        for has_both, run in groupby(curve, lambda p: across.has(p[0]) and up.has(p[1])):
            if has_both:
                places = [(across(x), up(y)) for x, y in run]
                if level:
                    places = [(frame[side], places[0][1]) for side in ("left", "right")]
                lines.append({"points": places, "colour": colours[name], "level": level})
    ticks = {"x_ticks": across.ticks(), "y_ticks": up.ticks()}
    return {**panel._asdict(), **frame, **ticks, "lines": lines}


class _Axis:
    """Maps values to places between ``start`` and ``end``, with some space at both."""

    def __init__(
        self, values: Sequence[float], log: bool, start: int, end: int, *, whole: bool = False
    ) -> None:
        self.log, self.whole, self.start, self.length = log, whole, start, end - start
        scaled = [self._scaled(value) for value in values if self.has(value)] or [0.0, 1.0]
        low, high = min(scaled), max(scaled)
        space = 0.05 * (high - low) or max(0.5, 0.05 * abs(high))
        self.low, self.high = low - space, high + space

    def has(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return self.start + share * self.length

    def ticks(self) -> list[tuple[float, float]]:
        """Round values and their places."""
        low, high = (10.0**end if self.log else end for end in (self.low, self.high))
        values = _round_values(low, high, self.whole)
        if self.log and self.high - self.low > 1.0:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            values = [factor * 10.0**power for power in powers for factor in factors]
        return [(value, self(value)) for value in values if low <= value <= high]


def _round_values(low: float, high: float, whole: bool) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]
