"""Strategies side by side: a table, and their losses against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from incontrast.compare.recommend import Attempt
from incontrast.compare.trace import Trace
from incontrast.parity import EvaluationLoss
from incontrast.report.page import Cell, Column, Table

__all__ = ["CAPTION", "plot_losses", "strategies_table"]

CAPTION = (
    "Evaluation loss: fixed views, all items as negatives; lower is better. Parity with "
    "retraining: over all items at or below its final loss, on old and on new items within 2 % of "
    "it. Green: within 2 %. One seed."
)
NONE = Cell("–", mark="quiet")


def strategies_table(
    title: str,
    before: EvaluationLoss,
    retraining: Attempt,
    attempts: Sequence[Attempt],
    *,
    more: Mapping[str, Mapping[str, float]] | None = None,
    caption: str = CAPTION,
) -> Table:
    """One row for each strategy, no update first and retraining last.

    Args:
        title: Of the table.
        before: The evaluation loss without an update.
        retraining: What retraining did.
        attempts: What the others did.
        more: Further columns: by title, then by strategy.
        caption: What the columns mean.
    """
    more = more or {}
    none = (Cell("no update"), NONE, NONE, NONE, *_losses(before, retraining.loss))
    rows = [none, *(_row(attempt, retraining) for attempt in (*attempts, retraining))]
    return Table(
        title=title,
        columns=(
            Column("strategy"),
            *(Column(name, number=True) for name in ("time", "parity after", "speed-up")),
            *(Column(part, number=True, group="loss") for part in ("old", "new", "all")),
            *(Column(name, number=True) for name in more),
        ),
        rows=tuple(
            (*row, *(Cell(f"{values[row[0].text]:.3f}") for values in more.values()))
            for row in rows
        ),
        caption=caption,
    )


def _row(attempt: Attempt, retraining: Attempt) -> tuple[Cell, ...]:
    if attempt.failed:
        failed = Cell("diverged", mark="bad", note=attempt.failed)
        return (Cell(attempt.strategy), failed, *[NONE] * 5)
    reached, against = attempt.parity_seconds, retraining.parity_seconds or retraining.seconds
    parity = (Cell(f"not in {attempt.seconds:.1f} s", mark="quiet"), NONE)
    if reached is not None:
        speed_up = against / max(reached, 1e-9)
        parity = (Cell(f"{reached:.1f} s", sort=reached), Cell(f"{speed_up:.1f}×", sort=speed_up))
    return (
        Cell(attempt.strategy),
        Cell(f"{attempt.seconds:.1f} s", sort=attempt.seconds),
        *parity,
        *_losses(attempt.loss, retraining.loss),
    )


def _losses(loss: EvaluationLoss, target: EvaluationLoss) -> list[Cell]:
    return [
        Cell(f"{value:.3f}", sort=value, mark="good" if value <= 1.02 * limit else "")
        for value, limit in zip(loss, target, strict=True)
    ]


def plot_losses(figure: Any, traces: Mapping[str, Trace], colours: Sequence[str]) -> None:
    """Draw old and new items beside each other on a figure of matplotlib."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, part in zip(axes, ("old", "new"), strict=True):
        for (name, trace), colour in zip(traces.items(), colours, strict=False):
            # Retraining does not begin with the encoder of before.
            points = trace.points[1:] if trace.strategy.from_scratch else trace.points
            losses = [getattr(point.loss, part) for point in points]
            if trace.outcome.steps == 0:
                axis.axhline(losses[-1], color=colour, linestyle=":", label=name)
            else:
                seconds = [max(point.seconds, 0.05) for point in points]
                axis.plot(seconds, losses, color=colour, label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        for formatter in (axis.xaxis.set_major_formatter, axis.yaxis.set_major_formatter):
            formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.set_xlabel("seconds of training")
        axis.set_title(f"{part} items")
        axis.grid(True)
    axes[0].set_ylabel("evaluation loss")
    axes[1].legend(frameon=False, fontsize="small")
