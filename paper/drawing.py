"""Figures of matplotlib as SVG in the colours of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

INK = "#010203"
"""Draw with this where the page's text colour is wanted."""

SERIES = tuple(f"#0a0b{number:02x}" for number in range(8))
"""Draw with these: the page has a colour for each, one set by day, another by night."""

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
