"""The paper's tables from rows, the published figure beside each of ours."""

from __future__ import annotations

from collections.abc import Sequence

from incontrast.report import captions
from incontrast.report.names import GRAPHS, IMAGES, OF_THE_PAPER, SHIFTED, strategy_title
from incontrast.report.page import Cell, Column, Mark, Table
from incontrast.report.statistics import Estimate
from incontrast.report.summary import (
    RATIOS,
    Metric,
    Place,
    Summary,
    published,
    published_speed_up,
)

__all__ = [
    "accuracy_table",
    "bias_table",
    "cost_table",
    "level_table",
    "level_tables",
    "loss_tables",
    "search_table",
    "speed_up_table",
]

PAPER = (*IMAGES, *GRAPHS)
NOTHING = Cell("–", mark="quiet")


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
    tables = [level_table(summary, sets, title) for sets, title in _kinds(summary)]
    return [table for table in tables if len(table.columns) > 1]


def _kinds(summary: Summary) -> tuple[tuple[Sequence[str], str], ...]:
    others = {place.set for place in summary.places} - {*PAPER, *SHIFTED}
    return (
        (IMAGES, "images"),
        (GRAPHS, "graphs"),
        (SHIFTED, "new classes and a shift"),
        (sorted(others), "other sets"),
    )


def loss_tables(summary: Summary) -> list[Table]:
    """True losses at the end of updates, for every kind of set that has rows."""
    tables = [loss_table(summary, sets, title) for sets, title in _kinds(summary)]
    return [table for table in tables if len(table.columns) > 1]


def loss_table(summary: Summary, sets: Sequence[str], title: str) -> Table:
    """True losses at the end of updates, and accuracy on items never seen."""
    places = [place for place in summary.places if place.set in sets and place.usual]
    columns = [Column("strategy")]
    for place in places:
        group = f"{summary.title(place.set)}, α = {place.growth_ratio:g}"
        columns += [
            Column("old", number=True, group=group, hint="true loss of old items"),
            Column("new", number=True, group=group, hint="true loss of new items"),
            Column(
                "held out",
                number=True,
                group=group,
                hint="SVM accuracy on held-out items; mean of old and new kinds, where there are",
            ),
        ]
    rows = []
    for name in summary.strategies:
        cells = [Cell(strategy_title(name))]
        for place in places:
            for part in ("old", "new"):
                cells.append(_plain(summary.loss(place, name, part)))
            cells.append(_plain(summary.accuracy(place, name, "held_out", "ours")))
        rows.append(tuple(cells))
    return Table(
        title=f"True loss at the end of an update, and accuracy on items never seen, {title}",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=captions.sizes(summary, sets) + " An update has as many passes as retraining "
        "had. Lower losses are better. The accuracy is an SVM's with the encoder that was first "
        "level with retraining, where none was, with the last one; where old and new items are of "
        "different kinds, the mean of the accuracies of both."
        + captions.where_retraining_ends(summary, places),
    )


def accuracy_table(summary: Summary) -> Table:
    """SVM accuracy on old and new data, as in the paper's accuracy figures."""
    places = [place for place in summary.places if place.set in (*IMAGES, *GRAPHS) and place.usual]
    columns = [Column("strategy")]
    for place in places:
        group = f"{summary.title(place.set)}, α = {place.growth_ratio:g}"
        columns += [Column(part, number=True, group=group) for part in ("old", "new")]
    rows = []
    for name in summary.strategies:
        cells = [Cell(strategy_title(name))]
        for place in places:
            for part in ("old", "new"):
                found = summary.accuracy(place, name, f"svm_{part}")
                gap = summary.accuracy_difference(place, name, f"svm_{part}").value
                note = "" if gap is None or name == "retraining" else f"{gap:+z.4f}"
                cells.append(_plain(found, note=note))
        rows.append(tuple(cells))
    band = published()["accuracy_band"]
    return Table(
        title="SVM accuracy on old and new data at the paper's stop",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=captions.sizes(summary, (*IMAGES, *GRAPHS))
        + " Beside or below: the difference to retraining. The paper says that the differences "
        f"between ICL and the others are within {band['low']:+.4f} and {band['high']:+.4f}; its "
        "accuracies are only in pictures.",
    )


def bias_table(summary: Summary) -> Table:
    """Table 2, measured: the bias of each strategy's losses at the encoder of before."""
    places = [place for place in summary.places if place.usual]
    columns = (
        Column("data"),
        *(
            Column(part, number=True, group=title)
            for title in ("inference", "fine-tuning", "retraining", "ICL")
            for part in ("old", "new")
        ),
        Column("change ratio", number=True, hint="median of r over old items"),
    )
    rows = []
    for place in places:
        found = summary.finished(place, "inference")
        if not found:
            continue
        cells = [Cell(f"{found[0]['data']}, α = {place.growth_ratio:g}")]
        for kind in ("inference", "fine_tuning", "retraining", "icl"):
            for part in ("old", "new"):
                sizes = [row["bias"][kind][part] for row in found]
                size = sum(sizes) / len(sizes)
                cells.append(Cell("0" if size < 1e-9 else f"{size:.3f}", sort=size))
        change = sum(row["bias"]["change_ratio"][1] for row in found) / len(found)
        rows.append((*cells, Cell(f"{change:.2f}", sort=change)))
    return Table(
        title="Table 2, measured: mean size of the bias at the encoder before the update",
        columns=columns,
        rows=tuple(rows),
        caption="Retraining's loss of an item less the loss that a strategy minimises in its "
        "whole process, at the same weights. 0 is below 10⁻⁹. A change ratio of 1 means that the "
        "noise has not changed; ICL's entry is that of its whole process, first training included.",
    )


def cost_table(summary: Summary) -> Table:
    """Time and memory of whole runs."""
    places = [place for place in summary.places if place.usual]
    added = {
        (place, name): [
            row["cost"]["added_memory"] / 2**20
            for row in summary.finished(place, name)
            if row["cost"].get("added_memory") is not None
        ]
        for place in places
        for name in summary.strategies
    }
    measured = [place for place in places if any(added[place, n] for n in summary.strategies)]
    columns = [Column("strategy")]
    for place in places:
        group = f"{summary.title(place.set)}, α = {place.growth_ratio:g}"
        columns.append(Column("time", number=True, group=group, hint="training, seconds"))
        if place in measured:
            columns.append(Column("memory", number=True, group=group, hint="what the run added"))
    rows = []
    for name in summary.strategies:
        cells = [Cell(strategy_title(name))]
        for place in places:
            seconds = [row["total"]["seconds"] for row in summary.finished(place, name)]
            cells.append(_plain_mean(seconds, "{:.1f} s"))
            if place in measured:
                cells.append(_plain_mean(added[place, name], "{:.0f} MB"))
        rows.append(tuple(cells))
    told = ", and the most memory that it added to what the process held before" if measured else ""
    return Table(
        title="Time and memory of the whole runs" if measured else "Time of the whole runs",
        columns=tuple(columns),
        rows=tuple(rows),
        caption="Seconds of training until a run has had as many encoder passes as "
        f"retraining{told}. All strategies but inference, fine-tuning and distillation also need "
        "the old items themselves.",
    )


def search_table(summary: Summary) -> Table:
    """What the search for learning rates cost, and what it chose."""
    places = [place for place in summary.places if summary.search_cost(place)]
    names = ["fitting", *(name for name in summary.strategies if name != "retraining")]
    costs = {place: summary.search_cost(place) for place in places}
    names = [name for name in names if any(name in cost for cost in costs.values())]
    columns = [Column("data")]
    for name in names:
        title = "first fit, retraining" if name == "fitting" else strategy_title(name)
        columns.append(Column(title, number=True, hint="rate chosen, seconds of all trials"))
    rows = []
    for place in places:
        cells = [Cell(f"{summary.title(place.set)}, α = {place.growth_ratio:g}")]
        for name in names:
            if name not in costs[place]:
                cells.append(NOTHING)
                continue
            trials, seconds, rate = costs[place][name]
            text = "none" if rate is None else f"{rate:g}"
            cells.append(Cell(text, sort=seconds, note=f"{trials} trials, {seconds:.0f} s"))
        rows.append(tuple(cells))
    return Table(
        title="The search for learning rates",
        columns=tuple(columns),
        rows=tuple(rows),
        caption="Short trials at every rate, on the increment of seed 0, judged by the true loss "
        "they end with; their cost comes on top of the times in the tables, which hold for one "
        "run at the rate that was chosen. `ICL()` and strategies with learned rates need none.",
    )


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
        return _ratio_cell(summary, place, found, [], note, never="broke off", sign="≤ ")
    others = [
        summary.paper_speed_up(place, other, metric)
        for other in names
        if not summary.cut_short(place, other)
    ]
    return _ratio_cell(summary, place, found, others, note, never="broke off")


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
    return _ratio_cell(summary, place, found, others, note, never="never", lost=lost)


def _ratio_cell(
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


def _plain(found: Estimate, note: str = "") -> Cell:
    if found.value is None:
        return NOTHING
    return Cell(f"{found.value:.3f}", sort=found.value, note=note)


def _plain_mean(values: Sequence[float], form: str) -> Cell:
    if not values:
        return NOTHING
    value = sum(values) / len(values)
    return Cell(form.format(value), sort=value)
