"""Draws architecture.svg, the picture of the README: one loop, and what is around it.

python docs/figures/architecture.py
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 880, 440
# The background changes with the colours, so that text is readable whatever lies behind.
STYLE = """
  .page { fill: #ffffff }
  .box { fill: #eef3fa; stroke: #6b87ab }
  .core { fill: #fff3dc; stroke: #c28a1c }
  text { fill: #1b1f24; font: 14px system-ui, sans-serif }
  .name { font-weight: 600 }
  .note { font-size: 12px; fill: #4b535d }
  .file { font: 12px ui-monospace, monospace; fill: #4b535d }
  .arrow { stroke: #4b535d; fill: none; stroke-width: 1.6 }
  .head { fill: #4b535d }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12161c }
    .box { fill: #1c2a3d; stroke: #6b93c7 }
    .core { fill: #3a2d10; stroke: #d9a441 }
    text { fill: #e8ecf1 }
    .note, .file { fill: #b3bcc7 }
    .arrow { stroke: #b3bcc7 }
    .head { fill: #b3bcc7 }
  }
"""
CALLERS = (
    ("Command line", "fit, update, embed, …", "cli/"),
    ("Workspace", "a learner on disk: versions, journal", "workspace/"),
    ("Learner", "works on copies, keeps what succeeds", "learner.py, call.py"),
    ("Evaluation", "loss before and after, bias, probes", "evaluate/"),
)
STEPS = (
    ("sample", "old and new items"),
    ("views", "two of every item"),
    ("forward", "both views in one pass"),
    ("loss", "(1−α) · old + α · new"),
    ("step", "and average the weights"),
)
PARTS = (
    ("Memory", "which old items are kept", "memory/"),
    ("Domain", "one kind of data: items, views, encoder", "domains/"),
    ("Engine", "one process, or many with its result", "training/engine.py"),
    ("Strategy", "which items, which loss: ICL, rivals", "strategies/, loss.py"),
    ("Schedule", "the learning rate; the optimiser steps", "schedules/"),
)


def box(left: int, top: int, words: tuple[str, str, str], height: int = 70) -> str:
    """A part: its name, what it does, where it is."""
    centre = left + 125
    rows = zip(words, ("name", "note", "file"), (22, 41, 59), strict=True)
    return "\n".join(
        [
            f'<rect class="box" x="{left}" y="{top}" width="250" height="{height}" rx="8"/>',
            *(text(centre, top + down, row, kind) for row, kind, down in rows),
        ]
    )


def text(x: int, y: int, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<path class="arrow" d="M{x1} {y1} L{x2} {y2}" marker-end="url(#head)"/>'


def picture() -> str:
    """From left to right: who calls the loop, its steps, what each of them asks."""
    parts = [
        '<rect class="core" x="315" y="15" width="250" height="410" rx="8"/>',
        text(440, 38, "One training loop", "name"),
        text(440, 56, "training/loop.py", "file"),
    ]
    for number, caller in enumerate(CALLERS):
        top = 20 + 110 * number
        parts.append(box(20, top, caller))
        if number < 2:
            parts.append(arrow(145, top + 70, 145, top + 108))
    parts += [arrow(270, 275, 313, 275), arrow(313, 385, 272, 385)]
    for number, ((name, what), part) in enumerate(zip(STEPS, PARTS, strict=True)):
        top = 74 + 70 * number
        parts += [
            f'<rect class="box" x="330" y="{top}" width="220" height="54" rx="8"/>',
            text(440, top + 22, name, "name"),
            text(440, top + 41, what, "note"),
            box(610, 15 + 85 * number, part),
            arrow(608, 50 + 85 * number, 552, top + 27),
        ]
        if number:
            parts.append(arrow(440, top - 16, 440, top - 1))
    return "\n".join(parts)


def svg() -> str:
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>One training loop, who calls it, and what each of its steps asks</title>\n"
        f"<style>{STYLE}</style>\n<defs>{head}</defs>\n"
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>\n{picture()}\n</svg>\n'
    )


def main() -> None:
    Path(__file__).with_suffix(".svg").write_text(svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
