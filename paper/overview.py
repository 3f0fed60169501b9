"""The README's table: what a reader wants to know first."""

from __future__ import annotations

from incontrast.report.page import Cell, Column, Mark, Table
from paper.names import RETRAINING, strategy_title
from paper.summary import Metric, Place, Summary

OVERVIEW = "mnist-class"  # the data set of the table
METRICS: tuple[Metric, ...] = ("time", "forward passes")


def overview_table(summary: Summary) -> Table:
    """Who comes to parity with retraining where new classes arrive, and how fast."""
    place = next((place for place in summary.places if place.set == OVERVIEW), None)
    rows = [_row(summary, place, name) for name in summary.strategies] if place else []
    return Table(
        title="Overview",
        columns=(
            Column("strategy"),
            Column("loss of old items", number=True),
            Column("of new items", number=True),
            Column("accuracy", number=True),
            Column("at parity with retraining", number=True),
            Column("speed-up in time", number=True),
            Column("in forward passes", number=True),
        ),
        rows=tuple(rows),
    )


def _row(summary: Summary, place: Place, name: str) -> tuple[Cell, ...]:
    losses = [summary.loss(place, name, part).value for part in ("old", "new")]
    accuracy = summary.accuracy(place, name, "held_out", "parity").value
    shown = [
        Cell("–") if value is None else Cell(f"{value:.3f}", sort=value)
        for value in (*losses, accuracy)
    ]
    head = (Cell(strategy_title(name)), *shown)
    if name == RETRAINING:
        return (*head, Cell("by definition"), *2 * (Cell("1×", sort=1.0),))
    reached = Cell("{} of {} seeds".format(*summary.parity_seeds(place, name)))
    return (*head, reached, *(_speed(summary, place, name, metric) for metric in METRICS))


def _speed(summary: Summary, place: Place, name: str, metric: Metric) -> Cell:
    found = summary.parity_speed_up(place, name, metric)
    if found is None or name == "no-update":
        return Cell("–")
    if found.value is None:
        return Cell("at parity before" if found.before == found.total else "never")
    mark: Mark = "best" if name == _fastest(summary, place, metric) else ""
    return Cell(f"{found.value:.1f}×", sort=found.value, mark=mark)


def _fastest(summary: Summary, place: Place, metric: Metric) -> str:
    """The fastest of the strategies that come to parity with every seed."""
    speeds = {}
    for name in summary.strategies:
        found = summary.parity_speed_up(place, name, metric)
        sure = name not in (RETRAINING, "no-update") and summary.sure(place, name)
        if sure and found is not None and found.value is not None:
            speeds[name] = found.value
    return max(speeds, key=lambda name: speeds[name], default="")
