"""The loss against time, as a picture."""

from __future__ import annotations

from pathlib import Path

from incontrast.compare.trace import Trace

__all__ = ["draw_traces"]

COLOURS = ("#7f7f7f", "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#d55e00")  # Okabe & Ito


def draw_traces(traces: dict[str, Trace], path: Path) -> str:
    """Draw old and new items side by side; returns a sentence about what was done."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return 'No picture: matplotlib is missing, pip install "incontrast[plot]" brings it.'
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for part, title, axis in zip(("old", "new"), ("old items", "new items"), axes, strict=True):
        for (name, trace), colour in zip(traces.items(), COLOURS, strict=False):
            # Retraining does not begin with the encoder of before.
            points = trace.points[1:] if trace.strategy.from_scratch else trace.points
            seconds = [max(point.seconds, 0.05) for point in points]
            losses = [getattr(point.loss, part) for point in points]
            if trace.outcome.steps == 0:
                axis.axhline(losses[-1], color=colour, linestyle=":", label=name)
            else:
                axis.plot(seconds, losses, color=colour, label=name, marker=".", markersize=4)
        axis.set_xscale("log")
        axis.set_yscale("log")
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.set_xlabel("seconds of training")
        axis.set_title(title)
        axis.grid(alpha=0.25, which="both")
    axes[0].set_ylabel("true loss over old and new data")
    axes[1].legend(frameon=False, fontsize="small")
    figure.savefig(path)
    return f"The loss against time: {path}"
