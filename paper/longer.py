"""What longer training changes: the same increments, with few epochs and with many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.page import Cell, Column, Table
from paper.captions import last_third
from paper.names import strategy_title
from paper.speed_tables import ratio_cell
from paper.summary import Place, Summary, published_speed_up

__all__ = ["longer_table"]

STRATEGIES = ("warm-start", "icl", "icl-learned")


def longer_table(summary: Summary, longer: Summary) -> Table:
    """Speed-ups until level at the places that both have, over the seeds that both have."""
    names = [name for name in STRATEGIES if name in longer.strategies]
    rows = []
    ahead, places = [0, 0], 0
    for place in longer.places:
        seeds = set(summary.seeds(place, "retraining")) & set(longer.seeds(place, "retraining"))
        if not seeds:
            continue
        places += 1
        for number, each in enumerate((summary.of_seeds(seeds), longer.of_seeds(seeds))):
            rows.append(_row(each, place, names))
            ahead[number] += _at_or_ahead(each, place)
    return Table(
        title="Trained longer",
        columns=(
            Column("data"),
            Column("epochs at most", number=True),
            Column("seeds", number=True),
            Column("still falling", number=True, hint="true loss, last third of retraining"),
            Column("old encoder", number=True, hint="its loss above retraining's"),
            *(Column(strategy_title(name), number=True) for name in names),
            Column("the paper's ICL, published", number=True),
        ),
        rows=tuple(rows),
        caption="The same increments with few epochs and with many: how much retraining's true "
        "loss still fell in the last third of its passes, how far the old encoder was above it "
        "(medians over seeds), and the speed-ups in time until level with retraining. `ICL()` is "
        f"at least as fast as published in {ahead[0]} of {places} places with few epochs, in "
        f"{ahead[1]} with many.",
    )


def _at_or_ahead(summary: Summary, place: Place) -> bool:
    found = summary.our_speed_up(place, "icl", "time")
    theirs = published_speed_up(place, "paper", "time")
    if found is None or found.value is None or theirs is None:
        return False
    return found.value >= theirs


def _row(summary: Summary, place: Place, names: Sequence[str]) -> tuple[Cell, ...]:
    retrained = summary.finished(place, "retraining")
    falls = statistics.median(map(last_third, retrained))
    above = statistics.median(
        row["ours"]["before"]["all"] / row["ours"]["target"]["all"] - 1.0 for row in retrained
    )
    epochs = retrained[0]["settings"]["max_epochs"]
    theirs = published_speed_up(place, "paper", "time")
    return (
        Cell(f"{summary.title(place.set)}, α = {place.growth_ratio:g}"),
        Cell(f"{epochs}", sort=epochs),
        Cell(f"{len(retrained)}", sort=len(retrained)),
        Cell(f"{100 * falls:.0f} %", sort=falls),
        Cell(f"{100 * above:+.0f} %", sort=above),
        *(_speed(summary, place, name) for name in names),
        Cell("–" if theirs is None else f"{theirs:g}×", sort=theirs),
    )


def _speed(summary: Summary, place: Place, name: str) -> Cell:
    found = summary.our_speed_up(place, name, "time")
    if found is None:
        return Cell("–", mark="quiet")
    return ratio_cell(summary, place, found, [], "", never="never")
