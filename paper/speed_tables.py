"""Speed-ups over retraining: the paper's Tables 3 and 4, and by the time until level."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.page import Cell, Column, Mark, Table
from paper import captions
from paper.names import GRAPHS, IMAGES, OF_THE_PAPER, strategy_title
from paper.statistics import Estimate
from paper.summary import (
    RATIOS,
    Metric,
    Place,
    Summary,
    published,
    published_speed_up,
)

__all__ = [
    "level_table",
    "level_tables",
    "ratio_cell",
    "speed_up_table",
    "speed_up_tables",
    "standings_table",
    "standings_told",
    "sweep_table",
]

PAPER = (*IMAGES, *GRAPHS)
NOTHING = Cell("–", mark="quiet")


def standings_table(summary: Summary) -> Table:
    """Who comes to retraining's level, over all places: the whole comparison at a glance."""
    places = [place for place in summary.places if place.usual]
    rows = []
    for name in summary.strategies:
        if name == "retraining":
            continue
        found = {place: summary.our_speed_up(place, name, "time") for place in places}
        # Where the old encoder was level with every seed there was nothing to get to.
        open_ = {p: e for p, e in found.items() if e is not None and e.level < e.total}
        every = [p for p, e in open_.items() if not e.never and not summary.lost_again(p, name)]
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
        title="Who comes to retraining's level",
        columns=(
            Column("strategy"),
            Column("with every seed", number=True),
            Column("with most seeds", number=True),
            Column("speed-up in time there", number=True, hint="median of the places of before"),
            Column("forgets", number=True, hint="old items' loss rises by more than 2 %"),
        ),
        rows=tuple(rows),
        caption="Data sets and growth ratios at which a strategy comes to retraining's true loss, "
        "on old and on new items, with as many encoder passes (with every seed: and stays there), "
        "its median speed-up over retraining where it does with most seeds, and where it ends with "
        "the old items' loss more than 2 % above what it was. Seeds whose old encoder was level "
        "before are left out, unless an update loses that.",
    )


def standings_told(summary: Summary) -> str:
    """The same of a few strategies, as a sentence."""
    told = []
    for cells in standings_table(summary).rows:
        name, _, most, speed, _ = (cell.text for cell in cells)
        if name in map(strategy_title, ("paper", "warm-start", "icl", "icl-learned")):
            median = "" if speed == NOTHING.text else f" (median speed-up {speed})"
            title = f"`{name}`" if "(" in name else name
            told.append(f"{title} in {most}{median}")
    return (
        "Over all data sets and growth ratios that were compared, these come to retraining's level "
        f"with most seeds: {', '.join(told)}."
    )


def sweep_table(summary: Summary) -> Table:
    """Speed-ups of ``ICL()`` at all growth ratios, of sets that have more than the usual ones."""
    places = [place for place in summary.places if summary.runs(place, "icl")]
    swept = {place.set for place in places if not place.usual}
    rows = []
    for place in places:
        if place.set in swept:
            paper = summary.paper_speed_up(place, "icl", "time")
            ours = summary.our_speed_up(place, "icl", "time")
            assert paper is not None
            assert ours is not None
            sign = "≤ " if summary.cut_short(place, "icl") else ""
            rows.append(
                (
                    Cell(f"{summary.title(place.set)}, α = {place.growth_ratio:g}"),
                    Cell(f"{len(summary.seeds(place, 'icl'))}"),
                    ratio_cell(summary, place, paper, [], "", never="broke off", sign=sign),
                    ratio_cell(summary, place, ours, [], "", never="never"),
                )
            )
    return Table(
        title="The sweep of α: speed-up of ICL() over retraining, in time",
        columns=(
            Column("data"),
            Column("seeds", number=True),
            Column("by the paper's protocol", number=True),
            Column("until level", number=True),
        ),
        rows=tuple(rows),
        caption="The paper: 2.2× to 18.3×, falling with α. ≤ and notes: as in the tables above.",
    )


def speed_up_table(summary: Summary, number: int) -> Table:
    """Table 3 (images) or Table 4 (graphs), by the paper's protocol."""
    sets = IMAGES if number == 3 else GRAPHS
    family = "images" if number == 3 else "graphs"
    places = [Place(name, ratio) for name in sets for ratio in RATIOS]
    names = [name for name in summary.strategies if name not in ("retraining", "inference")]
    columns = [Column("strategy")]
    for place in places:
        for metric in ("time", "epoch"):
            columns.append(_column(place, metric, summary.title(place.set)))
    columns += [Column(metric, number=True, group="average rank") for metric in ("time", "epoch")]
    rows = []
    for name in names:
        cells = [Cell(strategy_title(name))]
        for place in places:
            for metric in ("time", "epoch"):
                cells.append(_paper_cell(summary, place, name, metric, names))  # type: ignore[arg-type]
        for metric in ("time", "epoch"):
            ranks = summary.average_rank(places, OF_THE_PAPER, metric)  # type: ignore[arg-type]
            theirs = published()["average_ranks"][family].get(name, {}).get(metric)
            cells.append(_rank_cell(ranks.get(name), theirs))
        rows.append(tuple(cells))
    return Table(
        title=f"Table {number}: speed-up over retraining by the paper's protocol, {family}",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=captions.sizes(summary, sets)
        + " Time and epochs until the training loss was lowest, before it had not fallen for "
        "as many epochs as patience says, or the epochs were over; retraining's over the "
        "strategy's, geometric mean over seeds (where one broke off, the median), with 95 % "
        "intervals from three seeds on. Beside or below: the paper's "
        "figure. ≤: an update had had as many encoder passes as retraining before that rule ended "
        "it, with at least one seed; its lowest loss may lie later. **Bold** is the best of the "
        "others; ranks, which are among the paper's seven, take these as they are."
        + captions.where_retraining_ends(summary, places),
    )


def speed_up_tables(summary: Summary) -> list[Table]:
    """Tables 3 and 4, as far as there are rows for them."""
    there = {place.set for place in summary.places}
    return [
        speed_up_table(summary, number)
        for number, sets in ((3, IMAGES), (4, GRAPHS))
        if there & set(sets)
    ]


def level_table(summary: Summary, sets: Sequence[str], title: str) -> Table:
    """Speed-ups until level with retraining: our protocol."""
    places = [place for place in summary.places if place.set in sets and place.usual]
    names = [name for name in summary.strategies if name != "retraining"]
    columns = [Column("strategy")]
    for place in places:
        for metric in ("time", "passes"):
            columns.append(_column(place, metric, summary.title(place.set)))
    rows = []
    for name in names:
        cells = [Cell(strategy_title(name))]
        for place in places:
            for metric in ("time", "passes"):
                cells.append(_our_cell(summary, place, name, metric, names))  # type: ignore[arg-type]
        rows.append(tuple(cells))
    return Table(
        title=f"Speed-up until level with retraining, {title}",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=captions.sizes(summary, sets)
        + " Time and encoder passes until the true loss over X′ is at retraining's final one, and "
        "on old and on new items within 2 % of it; retraining's own until then over the "
        "strategy's. “Never” is: not with as many passes as retraining had. Geometric mean "
        "over seeds; where some never get there, the median, in which never is infinitely slow "
        "(or that mean over the others, if it is lower). Seeds whose old encoder is level before "
        "any update are left out, unless the update loses that. “Lost again”: level for "
        "a while, and more than 4 % above it on old or on new items when the run ended. **Bold** "
        "is the best of those that were run with every seed, got there with each and stayed."
        + (" With `ICL()`: the paper's figure for its ICL." if set(sets) & set(PAPER) else "")
        + captions.where_retraining_ends(summary, places)
        + captions.resolution(summary, places),
    )


def level_tables(summary: Summary) -> list[Table]:
    """The same for every kind of set that has rows."""
    tables = [level_table(summary, sets, title) for sets, title in summary.kinds()]
    return [table for table in tables if len(table.columns) > 1]


def _column(place: Place, metric: str, title: str) -> Column:
    return Column(metric, number=True, group=f"{title}, α = {place.growth_ratio:g}")


def _paper_cell(
    summary: Summary, place: Place, name: str, metric: Metric, names: Sequence[str]
) -> Cell:
    found = summary.paper_speed_up(place, name, metric)
    theirs = published_speed_up(place, name, metric)
    note = "" if theirs is None else f"paper {theirs:g}×"
    if found is None:
        return Cell("–", mark="quiet", note=note)
    if summary.cut_short(place, name):
        return ratio_cell(summary, place, found, [], note, never="broke off", sign="≤ ")
    others = [
        summary.paper_speed_up(place, other, metric)
        for other in names
        if not summary.cut_short(place, other)
    ]
    return ratio_cell(summary, place, found, others, note, never="broke off")


def _our_cell(
    summary: Summary, place: Place, name: str, metric: Metric, names: Sequence[str]
) -> Cell:
    found = summary.our_speed_up(place, name, metric)
    if found is None:
        return NOTHING
    if name == "inference":
        level, seeds = summary.level_seeds(place, name)
        return Cell(f"{level} of {seeds} at once", sort=level) if level else NOTHING
    theirs = (
        published_speed_up(place, "paper", "time") if name == "icl" and metric == "time" else None
    )
    note = "" if theirs is None else f"paper {theirs:g}×"
    rivals = [other for other in names if other != "inference" and summary.sure(place, other)]
    others = [summary.our_speed_up(place, other, metric) for other in rivals if name in rivals]
    lost = summary.lost_again(place, name)
    return ratio_cell(summary, place, found, others, note, never="never", lost=lost)


def ratio_cell(
    summary: Summary,
    place: Place,
    found: Estimate,
    others: Sequence[Estimate | None],
    note: str,
    *,
    never: str,
    sign: str = "",
    lost: int = 0,
) -> Cell:
    seeds = []
    if found.never and found.total > 1:
        seeds.append(f"{found.never} of {found.total} {never}")
    elif found.total < len(summary.seeds(place, "retraining")):
        seeds.append(f"{found.total} of {len(summary.seeds(place, 'retraining'))} seeds run")
    if found.level:
        seeds.append(f"{found.level} of {found.total} level before")
    if lost:
        seeds.append(f"{lost} of {found.total} lost again")
    if found.value is None:
        text = "level before" if found.level == found.total else never
        return Cell(text, mark="quiet", note=" · ".join((*seeds, *filter(None, (note,)))))
    sure = [other.value for other in others if other is not None and not other.never]
    mark: Mark = "best" if found.value in sure and not _beaten(found.value, sure) else ""
    notes = (found.interval and f"[{found.interval}]", *seeds, note)
    return Cell(
        f"{sign}{found.value:.1f}×",
        sort=found.value,
        mark=mark,
        note=" · ".join(filter(None, notes)),
    )


def _beaten(value: float, others: Sequence[float | None]) -> bool:
    return any(other is not None and other > value for other in others)


def _rank_cell(ours: float | None, theirs: float | None) -> Cell:
    note = "" if theirs is None else f"paper {theirs:g}"
    if ours is None:
        return Cell("–", mark="quiet", note=note)
    return Cell(f"{ours:.1f}", sort=ours, note=note)
