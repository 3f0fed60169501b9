"""What became of a version: its page, and the same in a few lines for a terminal."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from incontrast.report import page
from incontrast.report.chart import Panel, chart
from incontrast.report.page import DASH, Cell, columns, figure_cell
from incontrast.text import (
    addressed,
    counted,
    duration,
    index_advice,
    journal_lines,
    part_of_the_way,
    probe_changes,
)

MAPS = {"to_old": "new queries, mapped to the old space", "to_new": "stored vectors, mapped"}
SEARCH = ("recall", "precision")
FEWEST_NEW = 30  # new items; with fewer, where they are found may be chance
NOTABLE = 0.05  # difference, as a share

Figures = Mapping[str, Any]  # read from JSON: None for a figure that is not finite


class Version(NamedTuple):
    """What is known about a version."""

    record: Figures  # of its training
    evaluation: Figures
    promoted: bool
    current: int | None  # the number of the version that serves


def update_page(
    version: Version, *, events: Sequence[Figures], items: Mapping[int, page.Item], folder: str
) -> page.Page:
    """The page of a version, with the journal and the items, by id, that can be shown."""
    record, evaluation = version.record, version.evaluation
    steps = [*next_steps(version)]
    if not record["outcome"]["probe"]:
        steps.append(
            "The loss alone does not say how good search is: "
            f"`incontrast {record['kind']} --probe DATA`, with labelled items, does."
        )
    verdict = [_checks(evaluation), *(f"**Next:** {addressed(step, folder)}" for step in steps)]
    sections: dict[str, list[page.Block]] = {
        "Verdict": [page.Text("\n\n".join(verdict))],
        "What changed": [_changes_table(record["outcome"])],
        "How far embeddings moved": [*_moved(evaluation, items)],
        "Stored vectors": [*_stored_vectors(evaluation, items)],
        "What it cost": [*_cost(record)],
        "Journal": [_journal(events)],
    }
    lead = [f"**{_verdict(version)}.**", *_kept(record["outcome"])]
    lead += ["It is the current one."] if record["version"] == version.current else []
    lead += [f"{_headline(record)}.", f"Data: `{record['data']['name']}`."]
    return page.Page(
        title=f"Version {record['version']}",
        lead=" ".join(lead),
        sections=tuple(
            page.Section(title, tuple(blocks)) for title, blocks in sections.items() if blocks
        ),
        foot=f"{folder}, created {record['created']} by incontrast {record['incontrast']} "
        f"with torch {record['torch']}.",
    )


def summary(version: Version) -> list[str]:
    """The same in a few lines, for a terminal."""
    record, figures = version.record, {}
    for name, before, after, _ in changes(record["outcome"]):
        values = (after,) if record["kind"] == "adopt" else (before, after)
        figures[name] = " → ".join(map(_figure, values))
    if moved := version.evaluation.get("movement"):
        figures["embeddings moved"] = (
            f"cosine {_figure(moved['cosine'][1])}, {_figure(moved['overlap'], '.0%')} of the 10 "
            "nearest neighbours stayed"
        )
    width = max(map(len, figures)) + 2
    serving = "is the current one" if version.promoted else "keeps serving"
    none = version.current is None
    return [
        f"Version {record['version']}: {_headline(record)}",
        *(f"  {name:<{width}}{text}" for name, text in figures.items()),
        *_kept(record["outcome"]),
        f"{_verdict(version)}.",
        *next_steps(version),
        "There is no other version." if none else f"Version {version.current} {serving}.",
    ]


def _headline(record: Figures) -> str:
    """What was done: by which strategy, on how many items, in what time."""
    outcome = record["outcome"]
    items = counted(record["data"]["items"], "new item" if record["kind"] == "update" else "item")
    if record["kind"] == "adopt":
        return f"adopted, with {items} of {record['memory']['seen']:,}"
    share = cost_share(record)
    return (
        f"{outcome['strategy']} on {items}, {counted(outcome['epochs'], 'epoch')} in "
        f"{outcome['seconds']:.1f} s"
        + ("" if share is None else f", about {share:.1%} of a retraining")
    )


def _verdict(version: Version) -> str:
    """Whether a version was promoted, and why."""
    failed = "; ".join(version.evaluation.get("failed_checks", []))
    if not version.promoted:
        return f"Not promoted: {failed}"
    if failed:
        return f"Promoted by force, despite: {failed}"
    worse = version.record["outcome"].get("worse", ())
    return ", but ".join(["Promoted: all checks passed", *worse])


def _kept(outcome: Figures) -> Iterator[str]:
    """Which part of the change was kept, if not all of it."""
    if outcome.get("kept", 1.0) < 1.0:
        text = part_of_the_way(outcome["kept"])
        yield f"{text[0].upper()}{text[1:]}."


def next_steps(version: Version) -> Iterator[str]:
    """What to do about a version."""
    kind, outcome, promoted = version.record["kind"], version.record["outcome"], version.promoted
    stored, worse = version.evaluation.get("stored_vectors"), outcome.get("worse")
    command = f"incontrast {kind}"
    if not promoted:
        yield (
            f"`{command} --force` promotes it, `{command} --discard` drops it with its items; "
            "otherwise the next one with data includes them."
        )
    elif worse:
        yield "It got worse: `incontrast rollback` returns to the previous version."
    if worse or not promoted:
        yield "`incontrast compare OLD NEW` shows which strategy does better on your data."
    if outcome.get("kept") == 0.0:
        yield (
            "Nothing was learned: try a lower learning rate, more new items or, for an adopted "
            "model, a smaller `keep_neighbours`."
        )
    if promoted and stored is not None:
        yield (
            f"{index_advice(stored['expected'], stored['items'])} `incontrast reembed FILE` brings "
            f"stored vectors along; `incontrast embed --space {stored['space']}` embeds queries "
            "for them as they are."
        )
        mixed = stored.get("mixed") or {"items": 0}
        if mixed["items"] >= FEWEST_NEW and not math.isclose(
            mixed["found"], mixed["own"], rel_tol=NOTABLE, abs_tol=NOTABLE
        ):
            yield (
                f"Of the 10 nearest of a new item, {mixed['own']:.1f} are new, and "
                f"{mixed['found']:.1f} where the old ones are mapped: re-embed the index before "
                "new vectors join it."
            )
    elif promoted and kind == "update":
        yield (
            "Vectors of two versions cannot be compared: re-embed what you search in with "
            "`incontrast embed`."
        )


class Change(NamedTuple):
    """A figure before and after an update."""

    name: str
    before: float | None
    after: float | None
    lower_is_better: bool | None = None


def changes(outcome: Figures) -> Iterator[Change]:
    """Scores of the probe set, losses, and the change ratio."""
    for name, before, after in probe_changes(outcome["probe"]):
        yield Change(name, before, after, lower_is_better=False)
    loss, ratio = outcome["loss"], outcome["change_ratio"]
    for part in ("old", "new", "all") if ratio is not None else ("all",):  # all items are new
        name = f"loss of {part} items"
        yield Change(name, loss["before"][part], loss["after"][part], lower_is_better=True)
    if ratio is not None:
        yield Change("change ratio", ratio["before"]["median"], ratio["after"]["median"])


def _figure(value: float | None, form: str = ".3f") -> str:
    return "not finite" if value is None or not math.isfinite(value) else format(value, form)


def _checks(evaluation: Figures) -> str:
    """What was checked, with figures on the health of the embeddings."""
    health = evaluation.get("health")
    text = "Checks: embeddings must not collapse"
    if "movement" in evaluation:
        text += (
            f", the loss of old items may rise by {100 * evaluation['tolerance']:g}%, and the kNN "
            "accuracy of a probe set may fall by as much or by what chance explains"
        )
    if health is None:
        return f"{text}. There were too few items to look at."
    measured = [part for part in (health["before"], health["after"]) if part is not None]
    ranks = " → ".join(_figure(part["effective_rank"], ".1f") for part in measured)
    uniformity = _figure(measured[-1]["uniformity"], ".2f")
    return f"{text}. Effective rank {ranks}, uniformity {uniformity}."


def _changes_table(outcome: Figures) -> page.Table:
    ratio = " A change ratio of 1 means that new items are negatives like the old ones (median)."
    return page.Table(
        title="Before and after",
        columns=columns("figure", numbers=("before", "after", "change")),
        rows=tuple(
            (
                Cell(change.name),
                *(Cell(_figure(value), sort=value) for value in (change.before, change.after)),
                _difference(change),
            )
            for change in changes(outcome)
        ),
        caption="kNN accuracy and retrieval precision are those of the probe set, by the 10 "
        "nearest neighbours; higher is better. Losses are evaluation losses: fixed views, all "
        "items as negatives; lower is better." + (ratio if outcome["change_ratio"] else ""),
    )


def _difference(change: Change) -> Cell:
    if change.before is None or change.after is None:
        return DASH
    difference = round(change.after - change.before, 3) + 0.0  # as shown, and never -0.0
    mark: page.Mark = ""
    if change.lower_is_better is not None and difference:
        mark = "good" if (difference < 0) == change.lower_is_better else "bad"
    return Cell(f"{difference:+.3f}", sort=difference, mark=mark)


def _cost(record: Figures) -> Iterator[page.Block]:
    outcome, memory, data = record["outcome"], record["memory"], record["data"]
    text = (
        f"Training took {duration(outcome['seconds'])}: {counted(outcome['epochs'], 'epoch')}, "
        f"{counted(outcome['steps'], 'step')}, {outcome['forward_passes']:,} forward passes, "
        f"stopped by {outcome['stopped']}. Memory: {memory['kept']:,} items stored / "
        f"{memory['seen']:,} seen."
    )
    if record["kind"] == "update":
        text += f" New items are {outcome['growth_ratio']:.1%} of all."
    if data["skipped"]:
        text += f" {counted(len(data['skipped']), 'item')} skipped."
    yield page.Text(text)
    history = outcome["history"]
    if len(history) < 2:
        return
    panels = []
    for figure, name, log in (("loss", "training loss", False), ("lr", "learning rate", True)):
        points = [(epoch["number"], epoch[figure]) for epoch in history]
        panels.append(Panel({name: points}, name, x="epoch", logs=(False, log)))
    title = "Training loss and learning rate over epochs"
    yield page.Figure(
        title=title,
        svg=chart(panels, title=title),
        caption="The mean loss of each epoch's steps, and the learning rate of its last step.",
    )


def _moved(evaluation: Figures, items: Mapping[int, page.Item]) -> Iterator[page.Block]:
    if (moved := evaluation.get("movement")) is None:
        return
    lower, median, upper = map(_figure, moved["cosine"])
    yield page.Text(
        f"Of {evaluation['sample']} old and new items, the cosine between the embedding before and "
        f"after is {median} ({lower} to {upper}); on average {_figure(moved['overlap'], '.0%')} of "
        "an item's 10 nearest neighbours stayed."
    )
    if items:
        yield page.Neighbours(
            "Nearest neighbours before and after",
            moved["examples"],
            items,
            "Each row: an item, its nearest neighbours before the update and after it, the "
            "nearest first. Framed ones, or those with a +, are new among them.",
        )


def _stored_vectors(evaluation: Figures, items: Mapping[int, page.Item]) -> Iterator[page.Block]:
    """What the update did to vectors that are stored."""
    if (stored := evaluation.get("stored_vectors")) is None:
        return
    titles = [f"{name}@10" for name in SEARCH]
    rows = []
    for direction, kinds in stored["tried"].items():
        for kind, quality in kinds.items():
            best = kind == stored["kinds"][direction]
            cells = [Cell(MAPS[direction]), Cell(kind, mark="best" if best else "")]
            for name in SEARCH:
                interval = "{:.3f} to {:.3f}".format(*quality[f"{name}_interval"])
                cells.append(figure_cell(quality[name], note=interval))
            rows.append(tuple(cells))
    yield page.Table(
        title="Searching stored vectors with the new encoder",
        columns=columns("what is mapped", "map", numbers=titles),
        rows=tuple(rows),
        caption=f"Against a search after everything was re-embedded, on held-out items of "
        f"{stored['pairs']:,}, with intervals of 95 %. Recall: the share of the 10 nearest that "
        "are among the 10 found. Precision: the share of the 10 found that are among the 50 "
        "nearest (a tenth of fewer than 500 items, at least 10). The best map in each direction "
        "is saved with the version.",
    )
    yield page.Table(
        title="After re-embedding a part",
        columns=columns(numbers=("re-embedded", *titles)),
        rows=tuple(
            (figure_cell(row["share"], ".0%"), *(figure_cell(row[name]) for name in SEARCH))
            for row in stored["expected"]
        ),
        caption="The vectors that the map misses most come first; the others are mapped, each by "
        "a map that was fitted without it.",
    )
    if items:
        yield page.Neighbours(
            "Worst served",
            stored["examples"],
            items,
            "Each row: an item, what a search in mapped vectors finds (before) and what it "
            "finds once they are re-embedded (after). Framed ones were missed.",
        )


def _journal(events: Sequence[Figures]) -> page.Table:
    return page.Table(
        title="What was done with this workspace",
        columns=columns("time", "what"),
        rows=tuple((Cell(time), Cell(sentence)) for time, sentence in journal_lines(events)[::-1]),
    )


def cost_share(record: Figures) -> float | None:
    """The cost of an update as a share of a retraining to convergence, if that can be estimated.

    It cannot if the last training from scratch had not converged, or if this was one.
    """
    outcome, whole = record["outcome"], record["from_scratch"]
    if outcome["from_scratch"] or whole is None or whole["stopped"] != "patience":
        return None
    passes = whole["forward_passes"] / whole["items"] * record["memory"]["seen"]
    return float(outcome["forward_passes"] / passes)
