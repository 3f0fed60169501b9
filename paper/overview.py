"""What a reader wants to know first."""

from __future__ import annotations

from incontrast.report.page import Cell, Table
from paper.names import RETRAINING, strategy_title
from paper.speed_tables import parity_table
from paper.summary import Summary
from paper.tables import columns, plain_cell

OVERVIEW = "mnist-class"  # the data set of the table


def overview_table(summary: Summary) -> Table:
    """Who comes to parity with retraining where new classes arrive, and how fast."""
    speeds = {
        row[0].text: [cell._replace(note="") for cell in row[1:]]
        for row in parity_table(summary, [OVERVIEW], "").rows
    }
    rows = []
    for place in (place for place in summary.places if place.set == OVERVIEW):
        for name in summary.strategies:
            title, by_definition = strategy_title(name), name == RETRAINING
            reached = "{} of {} seeds".format(*summary.parity_seeds(place, name))
            rows.append(
                (
                    Cell(title),
                    *(plain_cell(summary.loss(place, name, part)) for part in ("old", "new")),
                    plain_cell(summary.accuracy(place, name, "held_out", "parity")),
                    Cell("by definition" if by_definition else reached),
                    *(2 * [Cell("1×", sort=1.0)] if by_definition else speeds[title]),
                )
            )
    return Table(
        title="Overview",
        columns=columns(
            *("strategy", "loss of old items", "of new items", "accuracy"),
            *("at parity with retraining", "speed-up in time", "in forward passes"),
        ),
        rows=tuple(rows),
    )
