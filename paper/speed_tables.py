"""Speed-ups over retraining: the paper's Tables 3 and 4, and by the time to parity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import cast

from incontrast.report.page import Cell, Column, Mark, Table
from paper.names import GRAPHS, IMAGES, PUBLISHED, RETRAINING, strategy_title
from paper.statistics import Estimate
from paper.summary import RATIOS, Metric, Place, Summary, published, published_speed_up
from paper.tables import NOTHING, by_place, columns


def standings_table(summary: Summary) -> Table:
    """Who comes to parity with retraining, over all places: the whole comparison at a glance."""
    places = [place for place in summary.places if place.usual]
    rows = []
    for name in summary.strategies:
        if name == RETRAINING:
            continue
        found = {place: summary.parity_speed_up(place, name, "time") for place in places}
        # Where the old encoder was at parity with every seed there was nothing to gain.
        open_ = {p: e for p, e in found.items() if e is not None and e.before < e.total}
        every = [p for p, e in open_.items() if not e.never and not summary.parity_lost(p, name)]
        speeds = [e.value for e in open_.values() if e.value is not None]
        forgets = [place for place in open_ if summary.forgets(place, name)]
        median = statistics.median(speeds) if speeds else None
        rows.append(
            (
                Cell(strategy_title(name)),
                Cell(f"{len(every)} of {len(open_)}", sort=len(every)),
                Cell(f"{len(speeds)} of {len(open_)}", sort=len(speeds)),
                NOTHING if median is None else Cell(f"{median:.1f}×", sort=median),
                Cell(f"{len(forgets)} of {len(open_)}", sort=len(forgets)),
            )
        )
    return Table(
        title="Who comes to parity with retraining",
        columns=columns(
            *("strategy", "with every seed", "with most seeds", "median speed-up there", "forgets")
        ),
        rows=tuple(rows),
        caption="Data sets and growth ratios at which a strategy comes to retraining's evaluation "
        "loss, on old and on new items, with as many forward passes (with every seed: and stays "
        "there); its median speed-up in time where it does with most seeds; and where it ends "
        "with the old items' loss more than 2 % above what it was. Seeds whose old encoder was at "
        "parity before are left out, unless an update loses that.",
    )


def sweep_table(summary: Summary) -> Table:
    """Speed-ups of ``ICL()`` at all growth ratios, of sets that have more than the usual ones."""
    places = [place for place in summary.places if summary.runs(place, "icl")]
    swept = {place.set for place in places if not place.usual}
    rows = []
    for place in (place for place in places if place.set in swept):
        paper = summary.paper_speed_up(place, "icl", "time")
        parity = summary.parity_speed_up(place, "icl", "time")
        sign = "≤ " if summary.cut_short(place, "icl") else ""
        rows.append(
            (
                Cell(place.title),
                Cell(f"{len(summary.seeds(place, 'icl'))}"),
                speed_up_cell(summary, place, paper, never="diverged", sign=sign),
                speed_up_cell(summary, place, parity),
            )
        )
    return Table(
        title="The sweep of α: speed-up of ICL() over retraining, in time",
        columns=columns("data", "seeds", "by the paper's protocol", "to parity"),
        rows=tuple(rows),
        caption="The paper: 2.2× to 18.3×, falling with α. ≤ and notes: as in the tables above.",
    )


def speed_up_table(summary: Summary, number: int) -> Table:
    """Table 3 (images) or Table 4 (graphs), by the paper's protocol."""
    sets, family = (IMAGES, "images") if number == 3 else (GRAPHS, "graphs")
    places = [Place(name, ratio) for name in sets for ratio in RATIOS]
    names = [name for name in summary.strategies if name not in (RETRAINING, "no-update")]
    metrics: tuple[Metric, ...] = ("time", "epoch")
    ranks = {metric: summary.average_rank(places, PUBLISHED, metric) for metric in metrics}
    theirs = published()["average_ranks"][family]

    def cell(place: Place, name: str, part: str) -> Cell:
        metric = cast(Metric, part)
        found = summary.paper_speed_up(place, name, metric)
        cut = summary.cut_short(place, name)
        rivals = [other for other in names if not cut and not summary.cut_short(place, other)]
        return speed_up_cell(
            summary,
            place,
            found,
            others=[summary.paper_speed_up(place, other, metric) for other in rivals],
            note=_published_note(place, name, metric),
            never="diverged",
            sign="≤ " if cut else "",
        )

    return by_place(
        f"Table {number}: speed-up over retraining by the paper's protocol, {family}",
        places,
        metrics,
        names,
        cell,
        more=[Column(metric, number=True, group="average rank") for metric in metrics],
        more_cells=lambda name: [
            _rank_cell(ranks[metric].get(name), theirs.get(name, {}).get(metric))
            for metric in metrics
        ],
        caption="Time and epochs to the lowest training loss, retraining's over the strategy's: "
        "geometric mean over seeds, with 95 % intervals from three seeds on. In brackets: the "
        "paper's figure. ≤: with at least one seed an update had had as many forward passes as "
        "retraining before its stop rule ended it; its lowest loss may lie later. **Bold** is the "
        "best of the others. Ranks are among the paper's seven and take bounds as they are.",
    )


def speed_up_tables(summary: Summary) -> list[Table]:
    """Tables 3 and 4, as far as there are rows for them."""
    there = {place.set for place in summary.places}
    return [
        speed_up_table(summary, number)
        for number, sets in ((3, IMAGES), (4, GRAPHS))
        if there & set(sets)
    ]


def parity_table(summary: Summary, sets: Sequence[str], title: str) -> Table:
    """Speed-ups to parity with retraining."""
    places = [place for place in summary.places if place.set in sets and place.usual]
    names = [name for name in summary.strategies if name != RETRAINING]

    def cell(place: Place, name: str, part: str) -> Cell:
        metric = cast(Metric, part)
        if name == "no-update":
            reached, seeds = summary.parity_seeds(place, name)
            return Cell(f"{reached} of {seeds} at once", sort=reached) if reached else NOTHING
        rivals = [other for other in names if other != "no-update" and summary.sure(place, other)]
        return speed_up_cell(
            summary,
            place,
            summary.parity_speed_up(place, name, metric),
            others=[
                summary.parity_speed_up(place, other, metric) for other in rivals if name in rivals
            ],
            note=_published_note(place, "paper", metric) if name == "icl" else "",
            lost=summary.parity_lost(place, name),
        )

    return by_place(
        f"Speed-up to parity with retraining, {title}",
        places,
        ("time", "forward passes"),
        names,
        cell,
        caption="Time and forward passes to parity, retraining's own over the strategy's. Never: "
        "not with as many forward passes as retraining had. Geometric mean over seeds; where some "
        "never come to parity, the median, in which never is infinitely slow, or that mean over "
        "the others if it is lower. Seeds whose old encoder is at parity before any update are "
        "left out, unless the update loses that. Lost again: more than 4 % above retraining on "
        "old or on new items when the run ended. **Bold** is the best of those that came to "
        "parity with every seed and stayed. With `ICL()`: the paper's figure for its ICL.",
    )


def parity_tables(summary: Summary) -> list[Table]:
    """The same for every kind of data set that has rows."""
    tables = [parity_table(summary, sets, title) for sets, title in summary.kinds()]
    return [table for table in tables if len(table.columns) > 1]


def speed_up_cell(
    summary: Summary,
    place: Place,
    found: Estimate | None,
    *,
    others: Sequence[Estimate | None] = (),
    note: str = "",
    never: str = "never",
    sign: str = "",
    lost: int = 0,
) -> Cell:
    """A speed-up with its interval and what to know about its seeds.

    Args:
        summary: The rows.
        place: Where it was measured.
        found: The speed-up; None if the strategy was not run.
        others: Those that it is compared with, itself among them: the best is bold.
        note: The figure to compare with.
        never: What to call a seed without a figure.
        sign: Stands before it.
        lost: Seeds that lost parity again.
    """
    if found is None:
        return Cell("–", mark="quiet", note=note)
    seeds = []
    if found.never and found.total > 1:
        seeds.append(f"{found.never} of {found.total} {never}")
    elif found.total < (run := len(summary.seeds(place, RETRAINING))):
        seeds.append(f"{found.total} of {run} seeds run")
    if found.before:
        seeds.append(f"{found.before} of {found.total} at parity before")
    if lost:
        seeds.append(f"{lost} of {found.total} lost again")
    if found.value is None:
        text = "at parity before" if found.before == found.total else never
        return Cell(text, mark="quiet", note=" · ".join(filter(None, (*seeds, note))))
    sure = [other.value for other in others if other and not other.never and other.value]
    mark: Mark = "best" if found.value in sure and found.value == max(sure) else ""
    interval = f"[{found.interval}]" if found.interval else ""
    notes = " · ".join(filter(None, (interval, *seeds, note)))
    return Cell(f"{sign}{found.value:.1f}×", sort=found.value, mark=mark, note=notes)


def _published_note(place: Place, name: str, metric: Metric) -> str:
    theirs = published_speed_up(place, name, metric)
    return "" if theirs is None else f"paper {theirs:g}×"


def _rank_cell(ours: float | None, theirs: float | None) -> Cell:
    note = "" if theirs is None else f"paper {theirs:g}"
    if ours is None:
        return Cell("–", mark="quiet", note=note)
    return Cell(f"{ours:.1f}", sort=ours, note=note)
