"""The page that follows an update: the verdict, what it gained, what it moved, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from incontrast.report import page
from incontrast.report.figures import SERIES, can_draw, neighbour_figure, svg
from incontrast.report.stored_vectors import stored_vectors
from incontrast.report.verdict import Verdict, cost_share, verdict
from incontrast.text import counted, duration, probe_changes


def update_page(
    *,
    record: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    promoted: bool,
    current: bool,
    journal: Sequence[str],
    pictures: Mapping[int, str],
    texts: Mapping[int, str],
    folder: str,
) -> page.Page:
    """The page of a version. Figures that are not finite are None, as JSON has them.

    Args:
        record: What was written down about it.
        evaluation: How it was judged.
        promoted: Whether it is or was the current one.
        current: Whether it is.
        journal: What was done with the workspace, a sentence each.
        pictures: Items as data URIs of images, by id; empty for data that are no pictures.
        texts: Items as short texts, by id; empty for data that are no texts.
        folder: The workspace.
    """
    outcome, number = record["outcome"], record["version"]
    probed = outcome["probe"] is not None
    told = verdict(record, evaluation, promoted=promoted)
    moved = tuple(_moved(evaluation, pictures, texts)) if "movement" in evaluation else ()
    sections = [
        page.Section("Verdict", (_checks(evaluation, promoted, probed), _next_steps(told))),
        page.Section("What changed", (_changes(outcome),)),
        *([page.Section("How far embeddings moved", moved)] if moved else []),
        *stored_vectors(evaluation, pictures),
        page.Section("What it cost", (_facts(record), *_training(outcome))),
        page.Section("Journal", (_journal(journal),)),
    ]
    standing = " It is the current one." if current else ""
    adopted = record["kind"] == "adopt"
    items = counted(record["data"]["items"], "item" if adopted else "new item")
    done = "Adopted as it was, with" if adopted else f"{outcome['strategy']} on"
    return page.Page(
        title=f"Version {number}",
        lead=(
            f"**{told.sentence}**{standing} {done} {items} of `{record['data']['name']}`: "
            f"{told.changes or 'nothing to compare'}."
        ),
        sections=tuple(sections),
        foot=(
            f"{folder}, created {record['created']} by incontrast {record['incontrast']} "
            f"with torch {record['torch']}."
        ),
    )


def _next_steps(told: Verdict) -> page.Text:
    return page.Text("\n\n".join(f"**Next:** {step}" for step in told.next_steps))


def _figure(value: float | None, form: str = ".3f") -> str:
    return "not finite" if value is None or not math.isfinite(value) else format(value, form)


def _facts(record: Mapping[str, Any]) -> page.Facts:
    outcome, memory = record["outcome"], record["memory"]
    share = cost_share(record)
    remark = "training from scratch" if outcome["from_scratch"] else ""
    if share is not None:
        remark = f"about {share:.1%} of a retraining"
    skipped = len(record["data"]["skipped"])
    part = f"{outcome['growth_ratio']:.1%} of all" + (f", {skipped} skipped" if skipped else "")
    facts = [
        ("Training", duration(outcome["seconds"]), remark),
        ("New items", f"{record['data']['items']:,}", part),
        ("Memory", f"{memory['kept']:,}", f"items stored / {memory['seen']:,} seen"),
    ]
    return page.Facts(tuple(facts))


def _checks(evaluation: Mapping[str, Any], promoted: bool, probed: bool) -> page.Checks:
    failed = evaluation.get("failed_checks", [])
    claim = "Embeddings have not collapsed."
    if "movement" in evaluation:
        claim = (
            f"The loss of old items rose by {evaluation['tolerance']:.0%} at most, the probe set's "
            "kNN accuracy fell by no more than that or than chance does, and embeddings have not "
            "collapsed."
            if probed
            else f"The loss of old items rose by {evaluation['tolerance']:.0%} at most, and "
            "embeddings have not collapsed."
        )
    if not failed:
        return page.Checks(((claim, "passed", _health(evaluation)),))
    checks: list[tuple[str, page.Standing, str]] = [(claim, "failed", "; ".join(failed))]
    if promoted:
        checks.append(("It was promoted all the same.", "forced", "It was forced."))
    return page.Checks(tuple(checks))


def _health(evaluation: Mapping[str, Any]) -> str:
    health = evaluation.get("health")
    if health is None:
        return "There were too few items to look at."
    measured = [part for part in (health["before"], health["after"]) if part is not None]
    ranks = " → ".join(_figure(part["effective_rank"], ".1f") for part in measured)
    return f"Effective rank {ranks}, uniformity {_figure(measured[-1]['uniformity'], '.2f')}."


def _changes(outcome: Mapping[str, Any]) -> page.Table:
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    first_fit = outcome["change_ratio"] is None  # without old items
    parts = ("new", "all") if first_fit else ("old", "new", "all")
    rows = [_change(*change, lower=False) for change in probe_changes(outcome["probe"])]
    rows += [_change(f"loss of {part} items", before[part], after[part]) for part in parts]
    if outcome["change_ratio"] is not None:
        earlier, later = outcome["change_ratio"]["before"], outcome["change_ratio"]["after"]
        names = {"lower": "lower quartile", "median": "median", "upper": "upper quartile"}
        rows += [
            _change(f"change ratio, {name}", earlier[part], later[part], lower=None)
            for part, name in names.items()
        ]
    return page.Table(
        title="Before and after",
        columns=(
            page.Column("figure"),
            page.Column("before", number=True),
            page.Column("after", number=True),
            page.Column("change", number=True),
        ),
        rows=tuple(rows),
        caption="kNN accuracy and retrieval precision are those of the probe set, by the 10 "
        "nearest neighbours; higher is better. Losses are evaluation losses: fixed views, all "
        "items as negatives; lower is better. A change ratio of 1 means that new items are "
        "negatives like the old ones.",
    )


def _change(
    name: str, before: float | None, after: float | None, *, lower: bool | None = True
) -> tuple[page.Cell, ...]:
    """A row of the table; ``lower`` says which way is better, None for neither."""
    mark: page.Mark = ""
    change = page.Cell("–", mark="quiet")
    if before is not None and after is not None:
        if lower is not None and before != after:
            mark = "good" if (after < before) == lower else "bad"
        change = page.Cell(f"{after - before:+.3f}", sort=after - before, mark=mark)
    return (
        page.Cell(name),
        page.Cell(_figure(before), sort=before),
        page.Cell(_figure(after), sort=after),
        change,
    )


def _training(outcome: Mapping[str, Any]) -> Iterator[page.Block]:
    history = outcome["history"]
    yield page.Text(
        f"{counted(outcome['epochs'], 'epoch')}, {counted(outcome['steps'], 'step')}, "
        f"{outcome['forward_passes']:,} forward passes; stopped by {outcome['stopped']}."
    )
    if len(history) < 2 or not can_draw():
        return

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        titles = {"loss": "training loss", "lr": "learning rate"}
        for axes, colour, (name, text) in zip(panels, SERIES, titles.items(), strict=False):
            values = [math.nan if epoch[name] is None else epoch[name] for epoch in history]
            axes.plot([epoch["number"] for epoch in history], values, color=colour)
            axes.set_title(text)
            axes.set_xlabel("epoch")
            axes.grid(visible=True)
        if any(epoch["lr"] for epoch in history):
            panels[1].set_yscale("log")

    title = "Training loss and learning rate over epochs"
    yield page.Figure(
        title=title,
        svg=svg(draw, name="training", title=title, height=2.8),
        caption="The mean loss of each epoch's steps, and the learning rate of its last step.",
    )


def _moved(
    evaluation: Mapping[str, Any], pictures: Mapping[int, str], texts: Mapping[int, str]
) -> Iterator[page.Block]:
    moved = evaluation["movement"]
    lower, median, upper = map(_figure, moved["cosine"])
    yield page.Text(
        f"Of {evaluation['sample']} old and new items, the cosine between the embedding before and "
        f"after is {median} ({lower} to {upper}); on average {_figure(moved['overlap'], '.0%')} of "
        "an item's 10 nearest neighbours stayed. Embeddings of two versions go together by a map."
    )
    if pictures:
        yield page.Figure(
            title="Nearest neighbours before and after",
            svg=neighbour_figure(moved["examples"], pictures),
            caption="Each row: an item, its nearest neighbours before the update and after it. "
            "Framed ones are new among them.",
        )
    if texts:
        yield _neighbours(moved["examples"], texts)


def _neighbours(examples: Sequence[Mapping[str, Any]], texts: Mapping[int, str]) -> page.Table:
    def cell(example: Mapping[str, Any], when: str) -> page.Cell:
        lines = [
            ("+ " if when == "after" and item not in example["before"] else "")
            + texts.get(item, "(forgotten)")
            for item in example[when]
        ]
        return page.Cell(lines[0] if lines else "–", note=" · ".join(lines[1:]))

    return page.Table(
        title="Nearest neighbours before and after",
        columns=(page.Column("text"), page.Column("before"), page.Column("after")),
        rows=tuple(
            (
                page.Cell(texts.get(example["item"], "(forgotten)")),
                cell(example, "before"),
                cell(example, "after"),
            )
            for example in examples
        ),
        caption="Each row: a text, its nearest neighbours before the update and after it, the "
        "nearest first. A + is new among them.",
    )


def _journal(journal: Sequence[str]) -> page.Table:
    lines = [line.partition("  ") for line in reversed(journal)]
    return page.Table(
        title="What was done with this workspace",
        columns=(page.Column("time"), page.Column("what")),
        rows=tuple((page.Cell(when), page.Cell(what)) for when, _, what in lines),
    )
