"""The page that follows an update: what it cost, what it gained, what it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from incontrast.report.figures import SERIES, can_draw, svg
from incontrast.report.neighbours import neighbour_figure
from incontrast.report.page import (
    Cell,
    Column,
    Facts,
    Figure,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    Verdicts,
)

__all__ = ["update_page"]


def update_page(
    *,
    record: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    promoted: bool,
    current: bool,
    from_scratch_seconds: float | None,
    journal: Sequence[str],
    pictures: Mapping[int, str],
    folder: str,
) -> Page:
    """The page of a version.

    Args:
        record: What was written down about it.
        evaluation: How it was judged.
        promoted: Whether it is or was the current one.
        current: Whether it is.
        from_scratch_seconds: How long the last training from scratch took.
        journal: What was done with the workspace, a sentence each.
        pictures: Items as data URIs of images, by id; empty for data that are no pictures.
        folder: The workspace.
    """
    outcome, number = record["outcome"], record["version"]
    failed_checks = evaluation.get("failed_checks", [])
    standing = "was promoted" if promoted else "was not promoted"
    if current:
        standing = "is the current one"
    sections = [
        Section("At a glance", (_facts(record, evaluation, from_scratch_seconds),)),
        Section("Promotion", (_verdict(evaluation, promoted, failed_checks),)),
        Section("Losses", (_losses(outcome),)),
        Section("Training", _training(outcome)),
    ]
    if "movement" in evaluation:
        sections.append(Section("How far embeddings moved", _moved(evaluation, pictures)))
    sections.append(Section("Journal", (_journal(journal),)))
    return Page(
        title=f"Version {number}",
        lead=(
            f"{outcome['strategy']} on {record['data']['items']:,} new items of "
            f"`{record['data']['name']}`. Version {number} {standing}."
        ),
        sections=tuple(sections),
        foot=(
            f"{folder}, made {record['created']} by incontrast {record['incontrast']} "
            f"with torch {record['torch']}."
        ),
    )


def _facts(
    record: Mapping[str, Any], evaluation: Mapping[str, Any], from_scratch: float | None
) -> Facts:
    outcome, memory = record["outcome"], record["memory"]
    seconds = outcome["seconds"]
    remark = "training from scratch" if outcome["from_scratch"] else "no training to compare with"
    if from_scratch is not None and seconds:
        remark = f"the last one from scratch took {from_scratch:.1f} s"
        remark += f": {from_scratch / seconds:.1f}×"
    skipped = len(record["data"]["skipped"])
    facts = [
        ("Training", f"{seconds:.1f} s", remark),
        (
            "New items",
            f"{record['data']['items']:,}",
            f"{outcome['growth_ratio']:.1%} of all" + (f", {skipped} skipped" if skipped else ""),
        ),
        ("Memory", f"{memory['kept']:,}", f"items at hand of {memory['seen']:,} seen"),
    ]
    if "movement" in evaluation:
        moved = evaluation["movement"]
        facts.append(
            ("Neighbours kept", f"{moved['overlap']:.0%}", "of the 10 nearest, on average")
        )
    return Facts(tuple(facts))


def _verdict(
    evaluation: Mapping[str, Any], promoted: bool, failed_checks: Sequence[str]
) -> Verdicts:
    claim = "Embeddings have not collapsed."
    if "movement" in evaluation:
        claim = (
            f"The loss of old items rose by {evaluation['tolerance']:.0%} at most, and "
            "embeddings have not collapsed."
        )
    verdicts = [
        Verdict(
            claim=claim,
            standing="fails" if failed_checks else "holds",
            because="; ".join(failed_checks) or _health(evaluation),
        )
    ]
    if failed_checks and promoted:
        verdicts.append(
            Verdict(
                claim="It was promoted all the same.", standing="mixed", because="It was forced."
            )
        )
    return Verdicts(tuple(verdicts))


def _health(evaluation: Mapping[str, Any]) -> str:
    health = evaluation.get("health")
    if health is None:
        return "There were too few items to look at."
    before, after = health["before"], health["after"]
    ranks = f"{after['effective_rank']:.1f}"
    if before is not None:
        ranks = f"{before['effective_rank']:.1f} → {ranks}"
    return f"Effective rank {ranks}, uniformity {after['uniformity']:.2f}."


def _losses(outcome: Mapping[str, Any]) -> Table:
    names = {"old": "loss of old items", "new": "loss of new items", "all": "loss of all items"}
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    rows = [
        _change(name, before[part], after[part])
        for part, name in names.items()
        if before[part] is not None
    ]
    if outcome["change_ratio"] is not None:
        earlier, later = outcome["change_ratio"]["before"], outcome["change_ratio"]["after"]
        for part, name in (("lower", "lower quartile"), ("median", "median"), ("upper", "upper")):
            quartile = name if name != "upper" else "upper quartile"
            rows.append(
                _change(f"change ratio, {quartile}", earlier[part], later[part], judge=False)
            )
    return Table(
        title="Before and after",
        columns=(Column("figure"), Column("before", number=True), Column("after", number=True)),
        rows=tuple(rows),
        caption="True losses: fixed views, noise from old and new items; lower is better. A change "
        "ratio of 1 means that new items are noise like the old ones.",
    )


def _change(name: str, before: float, after: float, *, judge: bool = True) -> tuple[Cell, ...]:
    better = "good" if after < before else "bad" if after > before else ""
    return (
        Cell(name),
        Cell(f"{before:.3f}", sort=before),
        Cell(f"{after:.3f}", sort=after, mark=better if judge else ""),  # type: ignore[arg-type]
    )


def _training(outcome: Mapping[str, Any]) -> tuple[Any, ...]:
    history = outcome["history"]
    text = Text(
        f"{outcome['epochs']} epochs, {outcome['steps']:,} steps, "
        f"{outcome['forward_passes']:,} forward passes; stopped by {outcome['stopped']}."
    )
    if len(history) < 2 or not can_draw():
        return (text,)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        epochs = [epoch["number"] for epoch in history]
        left.plot(epochs, [epoch["loss"] for epoch in history], color=SERIES[0])
        left.set_title("training loss")
        right.plot(epochs, [epoch["lr"] for epoch in history], color=SERIES[1])
        right.set_title("learning rate")
        right.set_yscale("log")
        for axes in (left, right):
            axes.set_xlabel("epoch")
            axes.grid(visible=True)

    title = "Training loss and learning rate over epochs"
    return (
        text,
        Figure(
            title=title,
            svg=svg(draw, name="training", title=title, height=2.8),
            caption="The mean loss of each epoch's steps, and the rate of its last step.",
        ),
    )


def _moved(evaluation: Mapping[str, Any], pictures: Mapping[int, str]) -> tuple[Any, ...]:
    moved = evaluation["movement"]
    lower, median, upper = moved["cosine"]
    text = Text(
        f"Of {evaluation['sample']} old and new items, the cosine between the embedding before and "
        f"after is {median:.3f} ({lower:.3f} to {upper:.3f}); on average {moved['overlap']:.0%} of "
        "an item's 10 nearest neighbours stayed. Embeddings of two versions do not go together: "
        "embed anew what you search in."
    )
    if not pictures:
        return (text,)
    return (
        text,
        Figure(
            title="Nearest neighbours before and after",
            svg=neighbour_figure(moved["examples"], pictures),
            caption="Each row: an item, its nearest neighbours before the update and after it. "
            "Framed ones are new among them.",
        ),
    )


def _journal(journal: Sequence[str]) -> Table:
    rows = []
    for line in reversed(journal):
        when, _, what = line.partition("  ")
        rows.append((Cell(when), Cell(what)))
    return Table(
        title="What was done with this workspace",
        columns=(Column("time"), Column("what")),
        rows=tuple(rows),
    )
