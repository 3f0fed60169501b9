"""Losses, accuracies, bias, cost, settings and the search for learning rates, from rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from incontrast.report.page import Cell, Column, Table
from paper.names import GRAPHS, IMAGES, RETRAINING, set_title, strategy_title
from paper.row_file import Row
from paper.statistics import Estimate
from paper.summary import Place, Summary, last_third, published

NOTHING = Cell("–", mark="quiet")
ENCODERS = {"resnet18": "ResNet-18", "resnet18-standard": "ResNet-18", "small": "small CNN"}


def by_place(
    title: str,
    places: Sequence[Place],
    parts: Sequence[str],
    names: Sequence[str],
    cell: Callable[[Place, str, str], Cell],
    *,
    caption: str = "",
    more: Sequence[Column] = (),
    more_cells: Callable[[str], Sequence[Cell]] = lambda name: (),
) -> Table:
    """A table of strategies: some columns at every place, and perhaps more at the end.

    Args:
        title: Its title.
        places: Data sets and growth ratios.
        parts: The columns at each of them.
        names: The strategies, which are the rows.
        cell: The cell of a place, a strategy and a part.
        caption: What to know about it.
        more: More columns.
        more_cells: Their cells, by strategy.
    """
    at = [(place, part) for place in places for part in parts]
    figures = [Column(part, number=True, group=place.title) for place, part in at]
    return Table(
        title=title,
        columns=(Column("strategy"), *figures, *more),
        rows=tuple(
            (
                Cell(strategy_title(name)),
                *(cell(place, name, part) for place, part in at),
                *more_cells(name),
            )
            for name in names
        ),
        caption=caption,
    )


def columns(first: str, *numbers: str) -> tuple[Column, ...]:
    """A column of names, and columns of figures."""
    return (Column(first), *(Column(title, number=True) for title in numbers))


def plain_cell(found: Estimate, note: str = "") -> Cell:
    """A figure to three digits."""
    if found.value is None:
        return NOTHING
    return Cell(f"{found.value:.3f}", sort=found.value, note=note)


def settings_table(summary: Summary) -> Table:
    """What the figures of each data set rest on: sizes, seeds, and how retraining ended."""
    rows = []
    for name in dict.fromkeys(place.set for place in summary.places):
        places = [place for place in summary.places if place.set == name]
        retrained = [row for place in places for row in summary.finished(place, RETRAINING)]
        ended = [row for row in retrained if row["paper"]["stopped"] == "epochs"]
        row, settings = retrained[-1], retrained[-1]["settings"]
        counts = row["counts"]
        seeds = {f"{len(summary.seeds(place, RETRAINING))}": None for place in places}
        fall = f"{100 * statistics.median(map(last_third, ended)):.0f} %" if ended else "–"
        figures = (
            f"{counts['old'] + counts['new']:,}",
            f"{counts['held_out']}",
            f"{settings['patience']}",
            f"{settings['max_epochs']}",
            f"{100 * settings['limit']:g} %",
            f"{settings.get('spacing', 1.0):g}",
            " or ".join(sorted(seeds)),
            f"{len(ended)} of {len(retrained)}",
            fall,
        )
        cells = (Cell(set_title(name)), Cell(_encoder(settings)), *map(Cell, figures))
        rows.append(cells)
    titles = (
        *("encoder", "items", "held out", "patience", "epochs at most", "limit", "spacing"),
        *("seeds", "ended by epochs", "still falling"),
    )
    return Table(
        title="Data sets and settings",
        columns=columns("data", *titles),
        rows=tuple(rows),
        caption="Limit: the forward passes of an update, as a share of retraining's. Spacing: the "
        "evaluation loss is measured whenever so many times more steps have been taken; smaller "
        "differences in time to parity mean nothing. Ended by epochs: retrainings that their "
        "number of epochs ended and not their patience. Still falling: by how much the "
        "evaluation loss of these fell in the last third of their forward passes (median).",
    )


def loss_tables(summary: Summary) -> list[Table]:
    """Evaluation losses at the end of updates, for every kind of data set that has rows."""
    return [
        _loss_table(summary, places, title)
        for sets, title in summary.kinds()
        if (places := _places(summary, sets))
    ]


def _loss_table(summary: Summary, places: Sequence[Place], title: str) -> Table:
    def cell(place: Place, name: str, part: str) -> Cell:
        if part == "held out":
            return plain_cell(summary.accuracy(place, name, "held_out", "parity"))
        return plain_cell(summary.loss(place, name, part))

    return by_place(
        f"Evaluation loss after an update, and accuracy on held-out items, {title}",
        places,
        ("old", "new", "held out"),
        summary.strategies,
        cell,
        caption="Evaluation losses of old and of new items after as many forward passes as "
        "retraining had; lower is better. Held out: accuracy of an SVM on items that no encoder "
        "has seen, with the encoder that was first at parity, or else the last one; where old and "
        "new items are of different kinds, the mean of both accuracies.",
    )


def accuracy_table(summary: Summary) -> Table:
    """SVM accuracy on old and new data, as in the paper's accuracy figures; of its sets."""

    def cell(place: Place, name: str, part: str) -> Cell:
        gap = summary.accuracy_difference(place, name, f"svm_{part}").value
        note = "" if gap is None or name == RETRAINING else f"{gap:+z.4f}"
        return plain_cell(summary.accuracy(place, name, f"svm_{part}"), note=note)

    band = published()["accuracy_band"]
    return by_place(
        "SVM accuracy on old and new data at the paper's stop",
        _places(summary, (*IMAGES, *GRAPHS)),
        ("old", "new"),
        summary.strategies,
        cell,
        caption="In brackets: the difference to retraining. The paper reports differences between "
        f"ICL and the others from {band['low']:+.4f} to {band['high']:+.4f}; its accuracies are "
        "only in figures.",
    )


def bias_table(summary: Summary) -> Table:
    """Table 2, measured: the bias of each strategy's losses at the encoder of before."""
    kinds = {
        "no_update": "no update",
        "fine_tuning": "fine-tuning",
        "retraining": "retraining",
        "icl": "ICL",
    }
    rows = []
    for place in (place for place in summary.places if place.usual):
        found = [row["bias"] for row in summary.finished(place, "no-update")]
        if not found:
            continue
        sizes = [
            statistics.fmean(row[kind][part] for row in found)
            for kind in kinds
            for part in ("old", "new")
        ]
        change = statistics.fmean(row["change_ratio"][1] for row in found)
        rows.append(
            (
                Cell(place.title),
                *(Cell("0" if size < 1e-9 else f"{size:.3f}", sort=size) for size in sizes),
                Cell(f"{change:.2f}", sort=change),
            )
        )
    return Table(
        title="Table 2, measured: mean size of the bias at the encoder before the update",
        columns=(
            Column("data"),
            *(
                Column(part, number=True, group=title)
                for title in kinds.values()
                for part in ("old", "new")
            ),
            Column("change ratio", number=True, hint="median of r over old items"),
        ),
        rows=tuple(rows),
        caption="Retraining's loss of an item less the loss that a strategy minimises in its "
        "whole process, at the same weights. 0 is below 10⁻⁹. A change ratio of 1 means that the "
        "distribution of negatives has not changed; ICL's entry includes the initial training.",
    )


def cost_table(summary: Summary) -> Table:
    """Time and memory of whole runs."""
    places = [place for place in summary.places if place.usual]

    def cell(place: Place, name: str, part: str) -> Cell:
        rows = summary.finished(place, name)
        if part == "time":
            return _mean([row["total"]["seconds"] for row in rows], "{:.1f} s")
        return _mean([mib for row in rows for mib in _added_memory(row)], "{:.0f} MiB")

    measured = any(
        _added_memory(row)
        for place in places
        for name in summary.strategies
        for row in summary.finished(place, name)
    )
    return by_place(
        "Time and memory of whole runs" if measured else "Time of whole runs",
        places,
        ("time", "memory") if measured else ("time",),
        summary.strategies,
        cell,
        caption="Seconds of training until a run has had as many forward passes as retraining, "
        "and the most memory that it added to what the process held before, where that was "
        "measured. All strategies but no update, fine-tuning and distillation also need the old "
        "items themselves.",
    )


def search_table(summary: Summary) -> Table:
    """What the search for learning rates cost, and what it chose."""
    costs = {place: cost for place in summary.places if (cost := summary.search_cost(place))}
    names = ["fit", *(name for name in summary.strategies if name != RETRAINING)]
    names = [name for name in names if any(name in cost for cost in costs.values())]

    def cell(cost: dict[str, tuple[int, float, float | None]], name: str) -> Cell:
        if name not in cost:
            return NOTHING
        trials, seconds, lr = cost[name]
        text = "none" if lr is None else f"{lr:g}"
        return Cell(text, sort=seconds, note=f"{trials} trials, {seconds:.0f} s")

    titles = ["initial training, retraining" if n == "fit" else strategy_title(n) for n in names]
    return Table(
        title="The search for learning rates",
        columns=columns("data", *titles),
        rows=tuple(
            (Cell(place.title), *(cell(cost, name) for name in names))
            for place, cost in costs.items()
        ),
        caption="Short trials at every learning rate, on the increment of seed 0, judged by the "
        "evaluation loss they end with. Their cost comes on top of the times in the other tables, "
        "which are those of one run at the learning rate that was chosen. `ICL()` and strategies "
        "with learned learning rates need none.",
    )


def _places(summary: Summary, sets: Sequence[str]) -> list[Place]:
    return [place for place in summary.places if place.set in sets and place.usual]


def _encoder(settings: dict[str, Any]) -> str:
    domain = settings["domain"]
    kind = domain.get("encoder", {"Graphs": "GCN", "Vectors": "MLP"}.get(domain["type"], ""))
    pixels = f", {domain['size']}×{domain['size']} px" if "size" in domain else ""
    return f"{ENCODERS.get(kind, kind)}{pixels}"


def _added_memory(row: Row) -> list[float]:
    """In MiB; empty where it was not measured."""
    added = row["cost"].get("added_memory")
    return [] if added is None else [added / 2**20]


def _mean(values: Sequence[float], form: str) -> Cell:
    if not values:
        return NOTHING
    value = sum(values) / len(values)
    return Cell(form.format(value), sort=value)
