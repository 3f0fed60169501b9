"""``incontrast compare``: which strategy suits this data?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.status import Status

from incontrast.cli.printing import narrator
from incontrast.cli.tables import print_table
from incontrast.compare.recommend import Attempt
from incontrast.compare.run import Comparison, compare, sampled
from incontrast.data.sources import Source, read_source
from incontrast.data.tables import odd_columns
from incontrast.domains.base import Domain
from incontrast.domains.images.domain import Images, Network
from incontrast.domains.vectors import Vectors
from incontrast.report import Cell, Column, Facts, Figure, Page, Section, Table, Text, save
from incontrast.report.figures import SERIES, can_draw, svg
from incontrast.training.progress import Progress, ProgressCallback

__all__ = ["run"]

SMALL = 32  # pixels, up to which images have the small encoder

# As in the report about the paper.
COLOURS = {
    "retraining": SERIES[0],
    "ICL()": SERIES[1],
    "warm start": SERIES[3],
    "fine-tuning": SERIES[4],
    "replay": SERIES[5],
    "distillation": SERIES[6],
}


def run(
    old: Path,
    new: Path,
    *,
    minutes: float,
    items: int,
    seed: int,
    out: Path | None,
    size: int | None,
    channels: int | None,
    encoder: Network | None,
) -> None:
    """Compare on the user's data, print a table and a recommendation, write a page if asked."""
    console = Console()
    first, later = read_source(old), read_source(new)
    for source in (first, later):
        if source.skipped:
            skip = source.skipped[0]
            console.print(
                f"{len(source.skipped)} files of {source.path} cannot be read and are left out, "
                f"such as {skip.file}: {skip.reason}",
                soft_wrap=True,
            )
    if first.kind != "images" and any((size, channels, encoder)):
        raise ValueError(
            f"{first.path} holds {first.kind}: size, channels and encoder are for images"
        )
    for note in _oddities(first, later):
        console.print(note, style="yellow", soft_wrap=True)
    domain = _domain(first, size, channels, encoder)
    later.check(domain)
    if torch.get_num_threads() > 1 and first.kind != "images":
        torch.set_num_threads(1)  # small encoders are too small to share
    for source in (first, later):
        if len(source) < 2:
            raise ValueError(f"{source.path} holds one item: a comparison needs at least two")
    chosen = sampled(first.items, later.items, items, seed)
    console.print(_introduction(first, later, domain, chosen, minutes), soft_wrap=True)
    with narrator().status("first fit") as status:
        result = compare(domain, *chosen, seconds=60 * minutes, seed=seed, tell=_teller(status))
    table = _table(result)
    print_table(console, table)
    console.print(f"[bold]Recommended: {result.recommendation.strategy}[/bold]")
    for reason in result.recommendation.reasons:
        console.print(f"  {reason}", soft_wrap=True)
    if out is not None:
        save(_page(first, later, result, table), out)
        console.print(f"The report: {out}")


def _domain(
    source: Source, size: int | None, channels: int | None, encoder: Network | None
) -> Domain:
    """The domain of these items; images are made small, unless asked for, to learn in minutes."""
    if source.kind != "images":
        return source.domain()
    found = source.domain(size=size, channels=channels, encoder=encoder)
    assert isinstance(found, Images)
    if size is None and encoder is None and found.size > SMALL:
        return source.domain(size=SMALL, channels=found.channels)
    return found


def _teller(status: Status) -> Callable[[str], ProgressCallback]:
    """Shows what runs; how many epochs it will take only the clock knows."""

    def tell(doing: str) -> ProgressCallback:
        def told(step: Progress) -> None:
            if step.finished is not None:
                status.update(f"{doing}: {step.seconds:.0f} s, loss {step.loss:.3f}")

        status.update(doing)
        if not status.console.is_terminal:
            status.console.print(doing)
        return told

    return tell


def _introduction(
    first: Source, later: Source, domain: Domain, chosen: tuple[Any, Any], minutes: float
) -> str:
    used = [len(part) for part in chosen]
    kind: str = first.kind
    if isinstance(domain, Images):
        kind = f"images, {domain.size}×{domain.size} px, encoder {domain.network}"
    elif isinstance(domain, Vectors):
        kind = f"vectors of {domain.dim} numbers"
    text = f"{len(first):,} old and {len(later):,} new items ({kind})"
    if sum(used) < len(first) + len(later):
        text += f", of which {used[0]:,} and {used[1]:,} are used"
    unit = "minute" if minutes == 1 else "minutes"
    return f"{text}; {minutes:g} {unit} of training, measuring comes on top."


def _oddities(first: Source, later: Source) -> list[str]:
    """What a user may not have meant."""
    notes = []
    if first.path.resolve() == later.path.resolve():
        notes.append("OLD and NEW are the same: what is compared is more training, not an update.")
    for name in odd_columns(first.path):
        notes.append(
            f"Column {name!r} of {first.path} is used as a number like the others: "
            "take it out if it is a label or an id."
        )
    return notes


def _table(result: Comparison) -> Table:
    target = result.retraining.loss
    rows = [
        (
            Cell("inference"),
            Cell("–", mark="quiet"),
            Cell("–", mark="quiet"),
            *(_loss(value, limit) for value, limit in zip(result.before, target, strict=True)),
        )
    ]
    for attempt in (*result.attempts, result.retraining):
        rows.append(_line(attempt, result))
    old, new = result.counts
    return Table(
        title="Strategies on this data",
        columns=(
            Column("strategy"),
            Column("time", number=True),
            Column("level after", number=True, hint="as good as retraining"),
            *(Column(part, number=True, group="true loss") for part in ("old", "new", "all")),
        ),
        rows=tuple(rows),
        caption=f"{old:,} old and {new:,} new items, α = {result.growth_ratio:.2f}. True losses "
        "with noise from all items; lower is better. Level: over all items at retraining's loss "
        "or below, on old and on new items within 2 % of it. Green: within 2 %. One seed.",
    )


def _line(attempt: Attempt, result: Comparison) -> tuple[Cell, ...]:
    if attempt.failed:
        broke = Cell("broke off", mark="bad", note=attempt.failed)
        return (Cell(attempt.strategy), broke, *[Cell("–", mark="quiet")] * 4)
    level = attempt.level_seconds
    return (
        Cell(attempt.strategy),
        Cell(f"{attempt.seconds:.1f} s", sort=attempt.seconds),
        Cell(f"not in {attempt.seconds:.1f} s", mark="quiet")
        if level is None
        else Cell(f"{level:.1f} s", sort=level),
        *(_loss(v, limit) for v, limit in zip(attempt.loss, result.retraining.loss, strict=True)),
    )


def _loss(value: float, limit: float) -> Cell:
    return Cell(f"{value:.3f}", sort=value, mark="good" if value <= 1.02 * limit else "")


def _page(first: Source, later: Source, result: Comparison, table: Table) -> Page:
    choice = result.recommendation
    blocks: tuple[Table | Figure, ...] = (table,)
    if can_draw():
        blocks += (_figure(result),)
    old, new = result.counts
    return Page(
        title="Which strategy for this data?",
        lead=f"**{choice.strategy}** is recommended. " + " ".join(choice.reasons),
        sections=(
            Section(
                "Data",
                (
                    Facts(
                        (
                            ("old items", f"{len(first):,}", f"{old:,} used"),
                            ("new items", f"{len(later):,}", f"{new:,} used"),
                            ("growth ratio α", f"{result.growth_ratio:.2f}", ""),
                        )
                    ),
                    Text(f"Old: `{first.path}`. New: `{later.path}`."),
                ),
            ),
            Section("Strategies", blocks),
        ),
        foot="Made by `incontrast compare`.",
    )


def _figure(result: Comparison) -> Figure:
    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, part in zip(axes, ("old", "new"), strict=True):
            for number, (name, traced) in enumerate(result.traces.items()):
                points = traced.points[1:] if name == "retraining" else traced.points
                axis.plot(
                    [max(point.seconds, 0.05) for point in points],
                    [getattr(point.loss, part) for point in points],
                    color=COLOURS.get(name, SERIES[number % len(SERIES)]),
                    label=name,
                )
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("seconds of training")
            axis.set_title(f"{part} items")
            axis.grid(True)
        axes[0].set_ylabel("true loss")
        axes[1].legend(fontsize="small")

    return Figure(
        title="Loss against time",
        svg=svg(draw, name="compare", title="true loss of old and new items against time"),
        caption="A good update brings both down to where retraining ends, further left.",
    )
