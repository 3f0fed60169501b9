"""Losses, accuracies, bias, cost and the search for rates, from rows."""

from __future__ import annotations

from collections.abc import Sequence

from incontrast.report.page import Cell, Column, Table
from paper import captions
from paper.names import GRAPHS, IMAGES, strategy_title
from paper.statistics import Estimate
from paper.summary import Place, Summary, published

__all__ = [
    "accuracy_tables",
    "bias_table",
    "cost_table",
    "loss_tables",
    "search_table",
]

NOTHING = Cell("–", mark="quiet")


def loss_tables(summary: Summary) -> list[Table]:
    """True losses at the end of updates, for every kind of set that has rows."""
    tables = [loss_table(summary, sets, title) for sets, title in summary.kinds()]
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


def accuracy_tables(summary: Summary) -> list[Table]:
    """SVM accuracy on old and new data, as in the paper's accuracy figures; of its sets."""
    places = [place for place in summary.places if place.set in (*IMAGES, *GRAPHS) and place.usual]
    return [_accuracy_table(summary, places)] if places else []


def _accuracy_table(summary: Summary, places: Sequence[Place]) -> Table:
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


def _plain(found: Estimate, note: str = "") -> Cell:
    if found.value is None:
        return NOTHING
    return Cell(f"{found.value:.3f}", sort=found.value, note=note)


def _plain_mean(values: Sequence[float], form: str) -> Cell:
    if not values:
        return NOTHING
    value = sum(values) / len(values)
    return Cell(form.format(value), sort=value)
