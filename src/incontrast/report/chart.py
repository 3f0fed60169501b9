"""Charts of lines and bars as SVG, in the page's own type and colours.

Drawn by hand: a plotting library takes longer to import than all else that a report needs.

>>> drawn = chart([Panel({"ICL": [(1, 0.9), (2, 0.5)]}, x="epoch")], title="Loss")
>>> drawn.count("<polyline")
1
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

WIDTH = 648
LEFT, RIGHT, BELOW, LINE = 52, 12, 40, 18  # space beside a panel, below it, and for a line of text
COLOURS = 8  # that a page has, by day and by night

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Series by name, each of points (x, y); a point that is not finite leaves a gap."""

    series: Mapping[str, Points]
    title: str = ""
    x: str = ""  # what the axes show
    y: str = ""
    bars: bool = False
    dots: bool = False  # whether to mark the points; without, a single one is a dotted level
    logs: tuple[bool, bool] = (False, False)  # which axes are logarithmic


def chart(panels: Sequence[Panel], *, title: str, legend: bool = False, height: int = 200) -> str:
    """The panels side by side; ``title`` is what a reader hears who cannot see them.

    A series has the same colour in all panels.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colours = {name: f"var(--series-{place % COLOURS})" for place, name in enumerate(names)}
    parts, top = [], LINE
    if legend:
        across = 3
        for place, name in enumerate(names):
            x, y = LEFT + place % across * (WIDTH - LEFT) // across, LINE * (place // across)
            parts.append(
                f'<rect x="{x}" y="{y + 6}" width="14" height="3" fill="{colours[name]}"/>'
            )
            parts.append(_text(x + 20, y + 12, name))
        top += LINE * -(-len(names) // across)
    for place, panel in enumerate(panels):
        left = place * WIDTH // len(panels) + LEFT
        frame = (left, top, WIDTH // len(panels) - LEFT - RIGHT, height - LINE - BELOW)
        parts += _panel(panel, frame, colours)
    return (
        f'<svg viewBox="0 0 {WIDTH} {top + height - LINE}" role="img" aria-label="{escape(title)}" '
        f'font-size="10">{"".join(parts)}</svg>'
    )


def _panel(
    panel: Panel, frame: tuple[int, int, int, int], colours: Mapping[str, str]
) -> Iterator[str]:
    left, top, width, height = frame
    points = [point for series in panel.series.values() for point in series]
    beside = (-0.4, 0.0, 0.4) if panel.bars else (0.0,)  # a bar is wider than its place
    reached = [x + more for x, _ in points for more in beside]
    across = _Axis(reached, panel.logs[0], left, width, whole=not panel.logs[0])
    floor = [0.0] if panel.bars else []
    up = _Axis([*floor, *(y for _, y in points)], panel.logs[1], top + height, -height)
    yield _text(left + width / 2, top - 6, panel.title, "middle", size=11)
    yield _text(left + width / 2, top + height + 32, panel.x, "middle")
    yield _text(left - LEFT + 4, top - 6, panel.y)
    for value, y in up.ticks():
        yield _line(left, y, left + width, y, faint=True)
        yield _text(left - 6, y + 3, f"{value:g}", "end")
    for value, x in across.ticks():
        yield _line(x, top, x, top + height, faint=True)
        yield _text(x, top + height + 16, f"{value:g}", "middle")
    yield _line(left, top + height, left + width, top + height)
    yield _line(left, top, left, top + height)
    for name, series in panel.series.items():
        colour = colours[name]
        for drawn, run in groupby(series, lambda point: across.has(point[0]) and up.has(point[1])):
            if not drawn:
                continue
            places = [(across(x), up(y)) for x, y in run]
            if panel.bars:
                wide = across(0.6) - across(0.0)
                for x, y in places:
                    yield (
                        f'<rect x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                        f'height="{up(0.0) - y:.1f}" fill="{colour}"/>'
                    )
                continue
            if level := len(series) == 1 and not panel.dots:
                places = [(left, places[0][1]), (left + width, places[0][1])]
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            dotted = ' stroke-dasharray="2 3"' if level else ""
            yield (
                f'<polyline points="{way}" fill="none" stroke="{colour}" '
                f'stroke-width="1.8"{dotted}/>'
            )
            if panel.dots:
                for x, y in places:
                    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


class _Axis:
    """Where values go: ``length`` pixels from ``start``, some space at both ends."""

    def __init__(
        self, values: Sequence[float], log: bool, start: int, length: int, *, whole: bool = False
    ) -> None:
        self.log, self.whole, self.start, self.length = log, whole, start, length
        found = [self._scaled(value) for value in values if self.has(value)] or [0.0, 1.0]
        self.low, self.high = min(found), max(found)
        space = 0.05 * (self.high - self.low) or max(0.5, 0.05 * abs(self.high))
        self.low, self.high = self.low - space, self.high + space

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
    if not text:
        return ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="currentColor">{escape(text)}</text>'
    )


def _line(x: float, y: float, until_x: float, until_y: float, *, faint: bool = False) -> str:
    shade = ' opacity="0.15"' if faint else ""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{until_x:.1f}" y2="{until_y:.1f}" '
        f'stroke="currentColor" stroke-width="0.8"{shade}/>'
    )
