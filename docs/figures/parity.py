"""Draws parity.svg: precision on unseen items of new classes against a share of retraining's cost.

    python docs/figures/parity.py

From the rows of benchmarks/parity.py, MNIST with three new classes, medians over seeds.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

from result import style, text

HERE = Path(__file__).parent
ROWS = HERE.parents[1] / "benchmarks" / "results" / "parity.jsonl"
SET = "MNIST by class"
STRATEGIES = {  # a class of the style sheet: in the rows, in the picture, light and dark colour
    "icl": ("ICL", "ICL()", "#0072b2", "#56b4e9"),
    "before": ("ICL, free", "emphasis alone", "#b34f00", "#f0853a"),
    "warm": ("warm start", "warm start", "#007a58", "#2fc598"),
}
ENDS = {"retraining": "retraining", "no update": "no update"}
PANELS = {0.01: 50, 0.05: 270, 0.3: 490}  # growth ratio: left end
WIDTH, HEIGHT = 880, 330
TOP, BOTTOM, SIDE = 64, 266, 180
LEAST, MOST = 0.01, 0.3  # of retraining's forward passes

Points = dict[tuple[float, str], dict[float, float]]


def medians() -> Points:
    """Median precision over seeds at each share, by growth ratio and strategy."""
    found: dict[tuple[float, str], dict[float, list[float]]] = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["set"] == SET:
            shares = found.setdefault((row["alpha"], row["strategy"]), {})
            shares.setdefault(row["share"], []).append(row["unseen"]["precision_new"])
    return {
        place: {share: median(values) for share, values in sorted(shares.items())}
        for place, shares in found.items()
    }


def panel(alpha: float, left: float, points: Points) -> str:
    """One pair of axes; its height goes from below no update to above the best."""
    curves = {name: points[alpha, told] for name, (told, *_) in STRATEGIES.items()}
    ends = {name: next(iter(points[alpha, name].values())) for name in ENDS}
    values = [*ends.values(), *(value for curve in curves.values() for value in curve.values())]
    low, high = math.floor(min(values) * 20) / 20, math.ceil(max(values) * 20) / 20

    def y(value: float) -> float:
        return round(BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP), 1)

    def x(share: float) -> float:
        return round(left + SIDE * math.log(share / LEAST) / math.log(MOST / LEAST), 1)

    parts = [text(left, TOP - 14, f"α = {alpha:g}", "name")]
    for value in (low, (low + high) / 2, high):
        parts.append(f'<path class="grid" d="M{left} {y(value)} h{SIDE}"/>')
        parts.append(text(left - 6, y(value) + 4, f"{value:.2f}", "note", "end"))
    for share in (0.01, 0.03, 0.1, 0.3):
        parts.append(text(x(share), BOTTOM + 20, f"{share:.0%}", "note", "middle"))
    for name, value in ends.items():
        parts.append(f'<path class="target" d="M{left} {y(value)} h{SIDE}"/>')
        parts.append(text(left + SIDE, y(value) - 4, ENDS[name], "note", "end"))
    for name, curve in curves.items():
        places = " L".join(f"{x(share)} {y(value)}" for share, value in curve.items())
        parts.append(f'<path class="line {name}" d="M{places}"/>')
    return "\n".join(parts)


def picture() -> str:
    points = medians()
    title = "Precision@10 on unseen items of new classes (higher is better)"
    parts = [text(50, 26, title, "name")]
    parts += [panel(alpha, left, points) for alpha, left in PANELS.items()]
    axis = "forward passes, as a share of retraining's"
    parts.append(text(360, BOTTOM + 46, axis, "note", "middle"))
    for number, (name, (_, label, *_)) in enumerate(STRATEGIES.items()):
        y = TOP + 24 * number
        parts.append(f'<path class="line {name}" d="M700 {y} h24"/>')
        parts.append(text(732, y + 4, label, "note"))
    return "\n".join(parts)


def main() -> None:
    colours = {name: entry[1:] for name, entry in STRATEGIES.items()}
    (HERE / "parity.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>Precision of updates against their share of retraining's cost</title>\n"
        f"<style>{style(colours)}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>\n{picture()}\n</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
