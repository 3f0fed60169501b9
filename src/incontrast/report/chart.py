"""Line charts as SVG, in the page's own type and colours.

Drawn here because a plotting library takes longer to import than everything else in a report.

>>> svg = chart([Panel({"ICL": [(1, 0.9), (2, 0.5)]}, x="epoch")], title="Loss")
>>> svg.count("<polyline")
1
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

WIDTH = 648
LEFT, RIGHT, BELOW, LINE = 52, 12, 40, 18  # space beside a panel, below it, and per line of text
COLOURS = 8  # in the page's style sheet
LEGEND_COLUMNS = 3

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Series of points (x, y) by name; a point that is not finite leaves a gap."""

    series: Mapping[str, Points]
    title: str = ""
    x: str = ""  # titles of the axes
    y: str = ""
    dots: bool = False  # whether to mark points; if not, a single point is a dotted level line
    logs: tuple[bool, bool] = (False, False)  # whether the axes are logarithmic


def chart(panels: Sequence[Panel], *, title: str, legend: bool = False, height: int = 200) -> str:
    """The panels side by side; a series has the same colour in all. ``title`` is read aloud."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colours = {name: f"var(--series-{place % COLOURS})" for place, name in enumerate(names)}
    parts, top = [], LINE
    for place, name in enumerate(names if legend else ()):
        row, column = divmod(place, LEGEND_COLUMNS)
        x, y = LEFT + column * (WIDTH - LEFT) // LEGEND_COLUMNS, LINE * row
        top = y + 2 * LINE
        parts.append(f'<rect x="{x}" y="{y + 6}" width="14" height="3" fill="{colours[name]}"/>')
        parts.append(_text(x + 20, y + 12, name))
    width = WIDTH // len(panels)
    for place, panel in enumerate(panels):
        left = place * width + LEFT
        parts += _panel(panel, left, top, width - LEFT - RIGHT, height - LINE - BELOW, colours)
    return (
        f'<svg viewBox="0 0 {WIDTH} {top + height - LINE}" role="img" aria-label="{escape(title)}" '
        f'font-size="10">{"".join(parts)}</svg>'
    )


def _panel(
    panel: Panel, left: int, top: int, width: int, height: int, colours: Mapping[str, str]
) -> Iterator[str]:
    right, bottom = left + width, top + height
    points = [point for series in panel.series.values() for point in series]
    across = _Axis([x for x, _ in points], panel.logs[0], left, width, whole=not panel.logs[0])
    up = _Axis([y for _, y in points], panel.logs[1], bottom, -height)
    yield _text(left + width / 2, top - 6, panel.title, "middle", size=11)
    yield _text(left + width / 2, bottom + 32, panel.x, "middle")
    yield _text(left - LEFT + 4, top - 6, panel.y)
    for value, y in up.ticks():
        yield _line(left, y, right, y, opacity=0.15)
        yield _text(left - 6, y + 3, f"{value:g}", "end")
    for value, x in across.ticks():
        yield _line(x, top, x, bottom, opacity=0.15)
        yield _text(x, bottom + 16, f"{value:g}", "middle")
    yield _line(left, bottom, right, bottom)
    yield _line(left, top, left, bottom)
    for name, series in panel.series.items():
        level = len(series) == 1 and not panel.dots
        dashes = ' stroke-dasharray="2 3"' if level else ""
        for drawn, run in groupby(series, lambda point: across.has(point[0]) and up.has(point[1])):
            if not drawn:
                continue
            places = [(across(x), up(y)) for x, y in run]
            ends = [(left, places[0][1]), (right, places[0][1])]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (ends if level else places))
            yield (
                f'<polyline points="{path}" fill="none" stroke="{colours[name]}" '
                f'stroke-width="1.8"{dashes}/>'
            )
            for x, y in places if panel.dots else ():
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"/>'


class _Axis:
    """Maps values to places: ``length`` pixels from ``start``, with some space at both ends."""

    def __init__(
        self, values: Sequence[float], log: bool, start: int, length: int, *, whole: bool = False
    ) -> None:
        self.log, self.whole, self.start, self.length = log, whole, start, length
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

    def ticks(self) -> Iterator[tuple[float, float]]:
        """Round values and their places."""
        low, high = (10.0**end if self.log else end for end in (self.low, self.high))
        values = _round_values(low, high, self.whole)
        if self.log and self.high - self.low > 1.0:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            values = [factor * 10.0**power for power in powers for factor in factors]
        return ((value, self(value)) for value in values if low <= value <= high)


def _round_values(low: float, high: float, whole: bool) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 10) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="currentColor">{escape(text)}</text>' if text else ""


def _line(x: float, y: float, until_x: float, until_y: float, opacity: float = 1.0) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{until_x:.1f}" y2="{until_y:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="0.8" opacity="{opacity}"/>'
