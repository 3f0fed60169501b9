"""What longer training changes: the same increments, with few epochs and with many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.page import Cell, Table
from paper.names import RETRAINING, strategy_title
from paper.speed_tables import speed_up_cell
from paper.summary import Place, Summary, last_third, published_speed_up
from paper.tables import columns

STRATEGIES = ("warm-start", "icl", "icl-learned")


def longer_table(summary: Summary, longer: Summary) -> Table:
    """Speed-ups to parity at the places that both have, over the seeds that both have."""
    names = [name for name in STRATEGIES if name in longer.strategies]
    rows = []
    for place in longer.places:
        seeds = set(summary.seeds(place, RETRAINING)) & set(longer.seeds(place, RETRAINING))
        if seeds:
            rows += [_row(each.of_seeds(seeds), place, names) for each in (summary, longer)]
    return Table(
        title="Trained longer",
        columns=columns(
            *("data", "epochs at most", "seeds", "still falling", "old encoder"),
            *map(strategy_title, names),
            "the paper's ICL, published",
        ),
        rows=tuple(rows),
        caption="The same increments with few epochs and with many: how much retraining's "
        "evaluation loss still fell in the last third of its forward passes, how far the old "
        "encoder's was above it (medians over seeds), and speed-ups in time to parity.",
    )


def _row(summary: Summary, place: Place, names: Sequence[str]) -> tuple[Cell, ...]:
    retrained = summary.finished(place, RETRAINING)
    falls = statistics.median(map(last_third, retrained))
    above = statistics.median(
        row["parity"]["before"]["all"] / row["parity"]["target"]["all"] - 1.0 for row in retrained
    )
    epochs = retrained[0]["settings"]["max_epochs"]
    theirs = published_speed_up(place, "paper", "time")
    return (
        Cell(place.title),
        Cell(f"{epochs}", sort=epochs),
        Cell(f"{len(retrained)}", sort=len(retrained)),
        Cell(f"{100 * falls:.0f} %", sort=falls),
        Cell(f"{100 * above:+.0f} %", sort=above),
        *(
            speed_up_cell(summary, place, summary.parity_speed_up(place, name, "time"))
            for name in names
        ),
        Cell("–" if theirs is None else f"{theirs:g}×", sort=theirs),
    )
