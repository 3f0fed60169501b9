"""Draws result.svg, the picture of docs/results.md: loss of old and new items against time.

    python docs/figures/result.py

From the published rows of MNIST with three new classes (`mnist-class`), medians over seeds; time is
relative to that of retraining with the same seed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "paper" / "rows" / "paper.jsonl"
STRATEGIES = {  # in the rows: in the picture, Okabe & Ito's colours in light and in dark mode
    "icl": ("ICL()", "#0072b2", "#56b4e9"),
    "warm-start": ("warm start", "#007a58", "#2fc598"),
    "paper": ("the paper's ICL", "#b34f00", "#f0853a"),
    "fine-tuning": ("fine-tuning", "#a3497a", "#e08cbb"),
    "replay": ("replay", "#8a6d00", "#e6c02c"),
    "retraining": ("retraining", "#5c636b", "#a8b0b9"),
}
WIDTH, HEIGHT = 880, 360
TOP, BOTTOM, SIDE = 64, 296, 315  # of the axes
PANELS = {"old": ("Old items (digits 0 to 6)", 50), "new": ("New items (digits 7 to 9)", 415)}
LOWEST, HIGHEST = 0.3, 1.2  # of the loss
POINTS = 60


def runs() -> dict[str, dict[int, dict[str, Any]]]:
    """The rows of the set, by strategy and seed."""
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in STRATEGIES}
    with ROWS.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            chosen = row["set"] == "mnist-class" and row["growth_ratio"] == 0.3
            if chosen and row["strategy"] in found and "curve" in row:
                found[row["strategy"]][row["seed"]] = row
    return found


def curve(
    by_seed: dict[int, dict[str, Any]], whole: dict[int, float], kind: str
) -> list[tuple[float, float]]:
    """(part of retraining's time, median loss over seeds), at equally spaced times."""
    last = min(row["curve"]["seconds"][-1] / whole[seed] for seed, row in by_seed.items())
    points = []
    for number in range(POINTS + 1):
        part = min(last, 1.0) * number / POINTS
        losses = [at(row["curve"], part * whole[seed], kind) for seed, row in by_seed.items()]
        points.append((part, median(losses)))
    return points


def at(curve: dict[str, list[float]], seconds: float, kind: str) -> float:
    """The loss of old or of new items at a time, between the points that were measured."""
    times, losses = curve["seconds"], curve[kind]
    after = min(max(bisect_right(times, seconds), 1), len(times) - 1)
    before = after - 1
    share = (seconds - times[before]) / (times[after] - times[before])
    return losses[before] + min(share, 1.0) * (losses[after] - losses[before])


def height(loss: float) -> float:
    return round(BOTTOM - (loss - LOWEST) / (HIGHEST - LOWEST) * (BOTTOM - TOP), 1)


def panel(kind: str) -> str:
    """One pair of axes, with a line for each strategy."""
    found = runs()
    title, left = PANELS[kind]
    whole = {seed: row["curve"]["seconds"][-1] for seed, row in found["retraining"].items()}
    parts = [text(left, TOP - 14, title, "name")]
    for step in range(4, 13, 2):
        y = height(step / 10)
        parts.append(f'<path class="grid" d="M{left} {y} h{SIDE}"/>')
        parts.append(text(left - 8, y + 4, f"{step / 10:.1f}", "note", "end"))
    for percent in (0, 50, 100):
        x = left + SIDE * percent / 100
        parts.append(text(x, BOTTOM + 20, f"{percent} %", "note", "middle"))
    y = height(median(row["curve"][kind][-1] for row in found["retraining"].values()))
    parts.append(f'<path class="target" d="M{left} {y} h{SIDE}"/>')
    for name in STRATEGIES:
        points = curve(found[name], whole, kind)
        if name == "retraining":  # it begins with random weights, far above
            worst = max(number for number, (_, loss) in enumerate(points) if loss > HIGHEST)
            points = points[worst + 1 :]
        places = (f"{left + SIDE * part:.1f} {height(loss)}" for part, loss in points)
        parts.append(f'<path class="line {name}" d="M{" L".join(places)}"/>')
    return "\n".join(parts)


def picture() -> str:
    """Both panels, and which line is which."""
    parts = [text(50, 26, "Evaluation loss against training time (lower is better)", "name")]
    parts += [panel(kind) for kind in PANELS]
    axis = "training time, as a share of retraining's"
    parts.append(text(390, BOTTOM + 46, axis, "note", "middle"))
    for number, (name, (label, *_)) in enumerate(STRATEGIES.items()):
        y = TOP + 24 * number
        parts.append(f'<path class="line {name}" d="M748 {y} h24"/>')
        parts.append(text(780, y + 4, label, "note"))
    y = TOP + 24 * len(STRATEGIES)
    parts.append(f'<path class="target" d="M748 {y} h24"/>')
    parts.append(text(780, y + 4, "its final loss", "note"))
    return "\n".join(parts)


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def style(strategies: dict[str, tuple[str, str, str]]) -> str:
    """The style sheet, with the colours of these strategies' lines in light and in dark mode."""

    def lines(dark: bool) -> str:
        return " ".join(
            f".line.{name} {{ stroke: {colours[dark]} }}"
            for name, (_, *colours) in strategies.items()
        )

    return f"""
  .page {{ fill: #ffffff }}
  text {{ fill: #1b1f24; font: 14px system-ui, sans-serif }}
  .name {{ font-weight: 600 }}
  .note {{ font-size: 12px; fill: #4b535d }}
  .grid {{ stroke: #dde1e6 }}
  .target {{ stroke: #5c636b; stroke-dasharray: 2 4; stroke-width: 1.6 }}
  .line {{ fill: none; stroke-width: 2.4 }}
  .line.retraining {{ stroke-dasharray: 8 5 }}
  {lines(False)}
  @media (prefers-color-scheme: dark) {{
    .page {{ fill: #12161c }}
    text {{ fill: #e8ecf1 }}
    .note {{ fill: #b3bcc7 }}
    .grid {{ stroke: #2b323b }}
    .target {{ stroke: #a8b0b9 }}
    {lines(True)}
  }}
"""


def svg() -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>Evaluation loss against training time, by strategy</title>\n"
        f"<style>{style(STRATEGIES)}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>\n{picture()}\n</svg>\n'
    )


def main() -> None:
    (HERE / "result.svg").write_text(svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
