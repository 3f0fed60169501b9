"""Items and their nearest neighbours before and after, as a picture of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["neighbour_figure"]

SIDE, GAP, BREAK, TOP = 56, 6, 22, 22  # pixels


def neighbour_figure(examples: Sequence[Mapping[str, Any]], pictures: Mapping[int, str]) -> str:
    """The text of an SVG.

    Args:
        examples: Items with the ids of their neighbours ``before`` and ``after``.
        pictures: Data URIs by id; an id that is missing was forgotten since.
    """
    columns = max((len(example["before"]) for example in examples), default=0)
    starts = [0, SIDE + BREAK, SIDE + BREAK + columns * (SIDE + GAP) + BREAK]
    width = starts[2] + columns * (SIDE + GAP)
    height = TOP + len(examples) * (SIDE + GAP)
    parts = [
        f'<text x="{x}" y="14" font-size="12" fill="currentColor">{title}</text>'
        for x, title in zip(starts, ("item", "before", "after"), strict=True)
    ]
    for row, example in enumerate(examples):
        y = TOP + row * (SIDE + GAP)
        parts.append(_picture(starts[0], y, example["item"], pictures))
        for start, when in zip(starts[1:], ("before", "after"), strict=True):
            for place, item in enumerate(example[when]):
                fresh = when == "after" and item not in example["before"]
                x = start + place * (SIDE + GAP)
                parts.append(_picture(x, y, item, pictures, framed=fresh))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Nearest neighbours before and after">{"".join(parts)}</svg>'
    )


def _picture(
    x: int, y: int, item: int, pictures: Mapping[int, str], *, framed: bool = False
) -> str:
    place = f'x="{x}" y="{y}" width="{SIDE}" height="{SIDE}"'
    if item not in pictures:
        return f'<rect {place} fill="currentColor" opacity="0.15"><title>forgotten</title></rect>'
    image = (
        f'<image {place} href="{pictures[item]}" style="image-rendering: pixelated">'
        f"<title>item {item}</title></image>"
    )
    frame = f'<rect {place} fill="none" stroke="var(--series-1)" stroke-width="3"/>'
    return image + (frame if framed else "")
