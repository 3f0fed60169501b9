"""Figures as SVG that take their colours from the page around them, by day and by night."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

INK = "#010203"
"""Draw with this where the page's text colour is wanted."""

SERIES = tuple(f"#0a0b{number:02x}" for number in range(8))
"""Draw with these: the page has a colour for each, one set by day, another by night."""

SIDE, GAP, BREAK, TOP = 56, 6, 22, 22  # pixels, of pictures of items

_STYLE = {
    "svg.fonttype": "none",  # text stays text: readable, searchable, in the page's own type
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def can_draw() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def svg(
    draw: Callable[[Any], None], *, name: str, title: str, width: float = 9.0, height: float = 3.6
) -> str:
    """The text of an SVG; sizes are in inches, of which a page shows as many as fit.

    ``draw`` draws on a matplotlib figure, ``name`` is a word of its own for each figure of a page,
    ``title`` what a reader hears who cannot see it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0.0)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _fitted(out.getvalue(), name, title)


def _fitted(text: str, name: str, title: str) -> str:
    """Less its preamble, with the page's colours, and with no id that another figure has too."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{escape(title)}">',
        text,
        count=1,
    )
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', text))

    def identity(found: re.Match[str]) -> str:
        return f' id="{name}-{found[1]}"' if found[1] in used else ""

    text = re.sub(r' id="([\w.-]+)"', identity, text)
    text = re.sub(r'(url\(#|href="#)([\w-]+)', rf"\g<1>{name}-\g<2>", text)
    text = text.replace("xlink:href", "href").replace(INK, "currentColor")
    for number, colour in enumerate(SERIES):
        text = text.replace(colour, f"var(--series-{number})")
    return text.strip()


def neighbour_figure(examples: Sequence[Mapping[str, Any]], pictures: Mapping[int, str]) -> str:
    """Items and their nearest neighbours before and after, as the text of an SVG of pictures.

    ``pictures`` are data URIs by id; an id that is missing was forgotten since.
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
