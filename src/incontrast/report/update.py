"""The page of a version: whether it was promoted, what changed, what it cost, what to do next."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from incontrast.report import page
from incontrast.report.chart import Panel, chart
from incontrast.report.page import DASH, Cell, columns, figure_cell
from incontrast.text import (
    addressed,
    counted,
    duration,
    index_advice,
    mixed_advice,
    part_of_the_way,
    probe_changes,
    sentence,
)

WAYS = {"to_old": "new queries, mapped to the old space", "to_new": "stored vectors, mapped"}
SEARCH = ("recall", "precision")
QUARTILES = {"lower": "lower quartile", "median": "median", "upper": "upper quartile"}

Figures = Mapping[str, Any]  # as JSON has them: None where one is not finite


def update_page(
    *,
    record: Figures,
    evaluation: Figures,
    promoted: bool,
    current: bool,
    events: Sequence[Figures],
    items: Mapping[int, page.Item],
    folder: str,
) -> page.Page:
    """The page of a version.

    ``record`` and ``evaluation`` are a version's, ``events`` are of the journal, ``items`` shows
    them by their ids.
    """
    outcome, kind, name = record["outcome"], record["kind"], record["data"]["name"]
    failed, stored = evaluation.get("failed_checks", []), evaluation.get("stored_vectors")
    steps = (f"**Next:** {step}" for step in _next_steps(record, promoted, failed, stored))
    checks = _checks(evaluation, promoted, probed=outcome["probe"] is not None)
    sections: list[tuple[str, Sequence[page.Block]]] = [
        ("Verdict", (checks, page.Text(addressed("\n\n".join(steps), folder)))),
        ("What changed", (_changes(outcome),)),
    ]
    if "movement" in evaluation:
        sections.append(("How far embeddings moved", [*_moved(evaluation, items)]))
    if stored is not None:
        sections.append(("Stored vectors", [*_stored_vectors(stored, items, folder)]))
    journal = page.Table(
        title="What was done with this workspace",
        columns=columns("time", "what"),
        rows=tuple((Cell(event["time"]), Cell(sentence(event))) for event in reversed(events)),
    )
    sections += [
        ("What it cost", [_facts(record), *_training(outcome)]),
        ("Journal", [journal]),
    ]
    standing = " It is the current one." if current else ""
    count = counted(record["data"]["items"], "new item" if kind == "update" else "item")
    done = "Adopted as it was, with" if kind == "adopt" else f"{outcome['strategy']} on"
    changes = "; ".join(_changes_in_words(outcome)) or "nothing to compare"
    return page.Page(
        title=f"Version {record['version']}",
        lead=f"**{_verdict(outcome, failed, promoted)}.**{standing} {done} {count} of `{name}`: "
        f"{changes}.",
        sections=tuple(page.Section(title, tuple(blocks)) for title, blocks in sections),
        foot=f"{folder}, created {record['created']} by incontrast {record['incontrast']} "
        f"with torch {record['torch']}.",
    )


def _verdict(outcome: Figures, failed: Sequence[str], promoted: bool) -> str:
    """Whether a version was promoted, and why."""
    reason = "Promoted: " + ", but ".join(["all checks passed", *outcome.get("worse", ())])
    if failed or not promoted:
        how = "Promoted by force, despite: " if promoted else "Not promoted: "
        reason = how + "; ".join(failed)
    if (kept := outcome.get("kept", 1.0)) < 1.0:
        part = part_of_the_way(kept)
        reason += f". {part[:1].upper()}{part[1:]}"
    return reason


def _changes_in_words(outcome: Figures) -> Iterator[str]:
    """What a probe says, if there is one, and the losses, in a few words."""
    for name, before, after in probe_changes(outcome["probe"]):
        if name.startswith("kNN"):
            yield f"{name} {before:.3f} → {after:.3f} ({100 * (after - before):+.1f} points)"
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    for part in ("old", "new"):
        if before[part] and after[part] is not None:
            share = after[part] / before[part] - 1.0
            whose = f"loss of {part} items" if before["old"] is not None else "loss"
            yield f"{whose} {before[part]:.3f} → {after[part]:.3f} ({share:+.0%})"


def _next_steps(
    record: Figures, promoted: bool, failed: Sequence[str], stored: Figures | None
) -> Iterator[str]:
    command, outcome = f"incontrast {record['kind']}", record["outcome"]
    if not promoted:
        yield (
            f"look at the table below. `{command} --force` promotes it all the same, "
            f"`{command} --discard` drops it with its items; the next `{command}` with data takes "
            "them along."
        )
        if any("rose" in check for check in failed):
            yield "`incontrast compare OLD NEW` says which strategy keeps old items better."
    elif worse := outcome.get("worse"):
        yield (
            f"it got worse: {'; '.join(worse)}. `incontrast rollback` returns to the version "
            "before; `incontrast compare OLD NEW` says which strategy learns new items better."
        )
    if outcome.get("kept") == 0.0:
        yield (
            "nothing was learned. Try a lower learning rate, more new items or, of an encoder that "
            "was trained elsewhere, a smaller `keep_neighbours`."
        )
    if promoted and stored is not None:
        advice = index_advice(stored["expected"], stored["items"])
        yield f"{advice[0].lower()}{advice[1:]} `incontrast reembed FILE` brings vectors along."
    elif promoted and record["kind"] == "update":
        yield (
            "re-embed what you search in: `incontrast embed`. Embeddings of two versions do not go "
            "together."
        )
    if not outcome["probe"]:
        yield (
            f"the loss alone does not say how good search is. `{command} --probe FOLDER`, with a "
            "subfolder of images for each class, or a table with labels, does."
        )


def _figure(value: float | None, form: str = ".3f") -> str:
    return "not finite" if value is None or not math.isfinite(value) else format(value, form)


def _facts(record: Figures) -> page.Facts:
    outcome, memory, data = record["outcome"], record["memory"], record["data"]
    share = cost_share(record)
    remark = "training from scratch" if outcome["from_scratch"] else ""
    if share is not None:
        remark = f"about {share:.1%} of a retraining"
    new = record["kind"] == "update"
    about = [f"{outcome['growth_ratio']:.1%} of all"] if new else []
    about += [f"{len(data['skipped'])} skipped"] if data["skipped"] else []
    return page.Facts(
        (
            ("Training", duration(outcome["seconds"]), remark),
            ("New items" if new else "Items", f"{data['items']:,}", ", ".join(about)),
            ("Memory", f"{memory['kept']:,}", f"items stored / {memory['seen']:,} seen"),
        )
    )


def _checks(evaluation: Figures, promoted: bool, probed: bool) -> page.Checks:
    failed, health = evaluation.get("failed_checks", []), evaluation.get("health")
    claim = "Embeddings have not collapsed."
    if "movement" in evaluation:
        fell = ", the probe set's kNN accuracy fell by no more than that or than chance does,"
        claim = (
            f"The loss of old items rose by {100 * evaluation['tolerance']:g}% at most"
            f"{fell if probed else ','} and embeddings have not collapsed."
        )
    figures = "There were too few items to look at."
    if health is not None:
        measured = [part for part in (health["before"], health["after"]) if part is not None]
        ranks = " → ".join(_figure(part["effective_rank"], ".1f") for part in measured)
        uniformity = _figure(measured[-1]["uniformity"], ".2f")
        figures = f"Effective rank {ranks}, uniformity {uniformity}."
    if not failed:
        return page.Checks(((claim, "passed", figures),))
    forced: page.Check = ("It was promoted all the same.", "forced", "It was forced.")
    return page.Checks(((claim, "failed", "; ".join(failed)), *([forced] if promoted else [])))


def _changes(outcome: Figures) -> page.Table:
    losses, ratios = outcome["loss"], outcome["change_ratio"]  # without old items, no ratios
    rows = [_change(*change, lower=False) for change in probe_changes(outcome["probe"])]
    for part in ("old", "new", "all") if ratios is not None else ("all",):
        change = losses["before"][part], losses["after"][part]
        rows.append(_change(f"loss of {part} items", *change, lower=True))
    for part, name in QUARTILES.items() if ratios is not None else ():
        change = ratios["before"][part], ratios["after"][part]
        rows.append(_change(f"change ratio, {name}", *change, lower=None))
    about = " A change ratio of 1 means that new items are negatives like the old ones."
    return page.Table(
        title="Before and after",
        columns=columns("figure", numbers=("before", "after", "change")),
        rows=tuple(rows),
        caption="kNN accuracy and retrieval precision are those of the probe set, by the 10 "
        "nearest neighbours; higher is better. Losses are evaluation losses: fixed views, all "
        "items as negatives; lower is better." + (about if ratios is not None else ""),
    )


def _change(
    name: str, before: float | None, after: float | None, *, lower: bool | None
) -> tuple[Cell, ...]:
    """A row of the table; ``lower`` says which way is better, None for neither."""
    difference = DASH
    if before is not None and after is not None:
        change = round(after - before, 3) + 0.0  # as it is shown, and zero without a sign
        better = None if lower is None or not change else (change < 0) == lower
        mark: page.Mark = "" if better is None else "good" if better else "bad"
        difference = Cell(f"{change:+.3f}", sort=change, mark=mark)
    values = (Cell(_figure(value), sort=value) for value in (before, after))
    return (Cell(name), *values, difference)


def _training(outcome: Figures) -> Iterator[page.Block]:
    history = outcome["history"]
    yield page.Text(
        f"{counted(outcome['epochs'], 'epoch')}, {counted(outcome['steps'], 'step')}, "
        f"{outcome['forward_passes']:,} forward passes; stopped by {outcome['stopped']}."
    )
    if len(history) < 2:
        return
    panels = []
    for figure, name, log in (("loss", "training loss", False), ("lr", "learning rate", True)):
        values = (math.nan if epoch[figure] is None else epoch[figure] for epoch in history)
        points = [(epoch["number"], value) for epoch, value in zip(history, values, strict=True)]
        panels.append(Panel({name: points}, name, x="epoch", logs=(False, log)))
    title = "Training loss and learning rate over epochs"
    yield page.Figure(
        title=title,
        svg=chart(panels, title=title),
        caption="The mean loss of each epoch's steps, and the learning rate of its last step.",
    )


def _moved(evaluation: Figures, items: Mapping[int, page.Item]) -> Iterator[page.Block]:
    moved = evaluation["movement"]
    lower, median, upper = map(_figure, moved["cosine"])
    yield page.Text(
        f"Of {evaluation['sample']} old and new items, the cosine between the embedding before and "
        f"after is {median} ({lower} to {upper}); on average {_figure(moved['overlap'], '.0%')} of "
        "an item's 10 nearest neighbours stayed. Embeddings of two versions go together by a map."
    )
    if items:
        yield page.Neighbours(
            "Nearest neighbours before and after",
            moved["examples"],
            items,
            "Each row: an item, its nearest neighbours before the update and after it, the "
            "nearest first. Framed ones, or those with a +, are new among them.",
        )


def _stored_vectors(
    found: Figures, items: Mapping[int, page.Item], folder: str
) -> Iterator[page.Block]:
    """What the update did to vectors that are stored."""
    titles = [f"{figure}@10" for figure in SEARCH]
    how = (
        "`incontrast reembed FILE --plan` says what it takes; "
        "`incontrast embed --space` embeds for the index as it is."
    )
    yield page.Text(
        f"**{index_advice(found['expected'], found['items'])}** {addressed(how, folder)}"
    )
    if beside := mixed_advice(found.get("mixed")):
        yield page.Text(
            f"Mixed with mapped vectors, new ones are found too seldom or too often: "
            f"{beside}. Re-embed the index before new vectors join it, or compare them apart."
        )
    yield page.Table(
        title="Searching stored vectors with the new encoder",
        columns=columns("what is mapped", "map", numbers=titles),
        rows=tuple(
            (
                Cell(WAYS[way]),
                Cell(kind, mark="best" if kind == found["kinds"][way] else ""),
                *(
                    figure_cell(
                        quality[name], note="{:.3f} to {:.3f}".format(*quality[f"{name}_interval"])
                    )
                    for name in SEARCH
                ),
            )
            for way, kinds in found["tried"].items()
            for kind, quality in kinds.items()
        ),
        caption=f"Against a search after everything was re-embedded, on held-out items of "
        f"{found['pairs']:,}, with intervals of 95 %. Recall: the share of the 10 nearest that are "
        "among the 10 found. Precision: the share of the 10 found that are among the 50 nearest "
        "(a tenth of fewer than 500 items, at least 10). "
        "The best map each way is saved with the version.",
    )
    yield page.Table(
        title="After re-embedding a part",
        columns=columns(numbers=("re-embedded", *titles)),
        rows=tuple(
            (figure_cell(each["share"], ".0%"), *(figure_cell(each[name]) for name in SEARCH))
            for each in found["expected"]
        ),
        caption="The vectors that the map misses most come first; the others are mapped, each by "
        "a map that was fitted without it.",
    )
    if items:
        yield page.Neighbours(
            "Worst served",
            found["examples"],
            items,
            "Each row: an item, what a search in mapped vectors finds (before) and what it "
            "finds once they are re-embedded (after). Framed ones were missed.",
        )


def cost_share(record: Figures) -> float | None:
    """The cost of an update as a share of what retraining to convergence is estimated to take.

    None where that cannot be said: the last training from scratch had not converged, or the update
    was one itself.
    """
    outcome, whole = record["outcome"], record["from_scratch"]
    if outcome["from_scratch"] or whole is None or whole["stopped"] != "patience":
        return None
    passes = whole["forward_passes"] / whole["items"] * record["memory"]["seen"]
    return float(outcome["forward_passes"] / passes)
