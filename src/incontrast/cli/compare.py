"""``incontrast compare``: which strategy suits this data? ``incontrast demo``: on real digits."""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rich.status import Status

from incontrast.cli.init import domain_of
from incontrast.cli.output import note, note_skipped, print_table, say, stderr, stdout, training_bar
from incontrast.compare.recommend import Attempt
from incontrast.compare.run import Comparison, Show, sampled, side_by_side
from incontrast.compare.run import compare as compare_strategies
from incontrast.compare.trace import Trace
from incontrast.data import Labelled, Source, digits, read_source
from incontrast.domains.base import Domain
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.domains.vectors import Vectors
from incontrast.evaluate import knn_accuracy
from incontrast.learner import Learner
from incontrast.parity import EvaluationLoss
from incontrast.report.chart import Panel, chart
from incontrast.report.page import Cell, Column, Facts, Figure, Page, Section, Table, Text, save
from incontrast.strategies import ICL, FineTune, NoUpdate, Retrain, Strategy, WarmStart
from incontrast.streams import by_class
from incontrast.text import counted, duration
from incontrast.training.progress import Progress, ProgressCallback
from incontrast.workspace import Workspace

SMALL = 32  # pixels, up to which images have the small encoder
CAPTION = (
    "Evaluation loss: fixed views, all items as negatives; lower is better. Parity with "
    "retraining: over all items at or below its final loss, on old and on new items within 2 % of "
    "it. Green: within 2 %. One seed."
)
UNCONVERGED = (
    "Evaluation loss: fixed views, all items as negatives; lower is better. Green: at most 2 % "
    "above no update. Retraining had not converged, so there is no parity to measure. One seed."
)
NONE = Cell("–", mark="quiet")

NEW_CLASSES = (7, 8, 9)
EPOCHS = 18  # of the first fit, and of retraining
SPACING = 1.15  # coarser than a comparison's: the loss need not be drawn more finely

STRATEGIES: dict[str, Strategy] = {
    "no update": NoUpdate(),
    "fine-tuning": FineTune(max_epochs=6),
    "warm start": WarmStart(max_epochs=9),
    "ICL": ICL(max_epochs=9),
    "paper's ICL": ICL.paper(order=1, max_epochs=2),
    "retraining": Retrain(max_epochs=EPOCHS),
}


def compare(args: Namespace) -> None:
    """Compare on the user's data, print a table and a recommendation, write a page if asked."""
    read = read_source if args.workspace is None else Workspace.open(args.workspace).read
    first, later = (read(data, check=True, **args.table) for data in (args.old, args.new))
    note_skipped([skip.reason for source in (first, later) for skip in source.skipped])
    if first.kind != "images" and (args.network["size"] or args.network["channels"]):
        raise ValueError(f"{first.path} holds {first.kind}: size and channels are for images")
    domain = quick_domain(first, **args.network)
    later.check(domain)
    for source in (first, later):
        if len(source) < 2:
            raise ValueError(f"{source.path} holds one item: a comparison needs at least two")
    if first.path.resolve() == later.path.resolve():
        note("OLD and NEW are the same: what is compared is more training, not an update.")
    if not isinstance(domain, Images) or domain.encoder.given == "small":
        torch.set_num_threads(1)  # too small to share: on a busy machine threads wait for others
    chosen = sampled(first.items, later.items, args.items, args.seed)
    counts, minutes = (len(chosen[0]), len(chosen[1])), args.minutes
    used = "" if counts == (len(first), len(later)) else ", of which {:,} and {:,} are used"
    say(
        f"{len(first):,} old and {len(later):,} new items ({_kind(first, domain)})"
        f"{used.format(*counts)}; {minutes:g} {'minute' if minutes == 1 else 'minutes'} altogether."
    )
    with stderr().status("first fit") as status:
        result = compare_strategies(
            domain,
            *chosen,
            seconds=max(60 * minutes + args.begun - time.perf_counter(), 30 * minutes),
            seed=args.seed,
            progress=_shown_in(status),
        )
    sizes = f"{counts[0]:,} old and {counts[1]:,} new items, α = {result.growth_ratio:.2f}."
    if max(counts) > result.evaluated:
        sizes += f" Losses are of {result.evaluated} of each at most."
    caption = f"{sizes} {UNCONVERGED if result.retraining.falling else CAPTION}"
    yardstick = not result.retraining.falling
    title = "Strategies on this data"
    shown = strategies_table(title, result, caption=caption, yardstick=yardstick)
    print_table(stdout(), shown)
    recommendation = result.recommendation
    say(str(recommendation), style="bold")
    for reason in recommendation.reasons:
        say(f"  {reason}")
    if args.out is not None:
        save(_page(first, later, result, shown), args.out)
        say(f"Report: {args.out}")


def quick_domain(source: Source, **network: Any) -> Domain:
    """The domain of a source; images are brought to a size that is learned from in minutes."""
    domain = domain_of(source, **network)
    asked = network.get("size") or network.get("encoder")
    if isinstance(domain, Images) and not asked and domain.size > SMALL:
        return domain_of(source, size=SMALL, channels=domain.channels)
    return domain


def _kind(source: Source, domain: Domain) -> str:
    if isinstance(domain, Images):
        return f"images, {domain.size}×{domain.size} px, encoder {domain.encoder.given}"
    if isinstance(domain, Vectors):
        return f"vectors of {counted(domain.dim, 'number')}"
    return source.kind


def _shown_in(status: Status) -> Show:
    """Shows what runs; how many epochs it will take only the clock knows."""

    @contextmanager
    def begin(name: str) -> Iterator[ProgressCallback]:
        def show(step: Progress) -> None:
            if step.finished is not None:
                status.update(f"{name}: {duration(step.seconds)}, loss {step.loss:.3f}")

        status.update(name)
        if not status.console.is_terminal:
            note(name)
        yield show

    return begin


def _page(first: Source, later: Source, result: Comparison, table: Table) -> Page:
    choice = result.recommendation
    facts = (
        ("old items", f"{len(first):,}", f"{result.counts[0]:,} used"),
        ("new items", f"{len(later):,}", f"{result.counts[1]:,} used"),
        ("growth ratio α", f"{result.growth_ratio:.2f}", ""),
    )
    paths = Text(f"Old: `{first.path}`. New: `{later.path}`.")
    return Page(
        title="Which strategy for this data?",
        lead=f"**{choice}.** {' '.join(choice.reasons)}",
        sections=(
            Section("Data", (Facts(facts), paths)),
            Section("Strategies", (table, loss_figure(result.traces))),
        ),
        foot="Written by `incontrast compare`.",
    )


def strategies_table(
    title: str,
    result: Comparison,
    *,
    more: Mapping[str, Mapping[str, float]] | None = None,
    caption: str,
    yardstick: bool = True,
) -> Table:
    """One row for each strategy, no update first and retraining last.

    ``more`` are further columns: by title, then by strategy. Without a ``yardstick``, a retraining
    that has converged, losses are compared with those of no update, and nothing with its time.
    """
    more, retraining = more or {}, result.retraining
    target = retraining.loss if yardstick else result.before
    none = (Cell("no update"), NONE, NONE, NONE, *_losses(result.before, target))
    rows = [none, *(_row(entry, retraining, target) for entry in (*result.attempts, retraining))]
    times = ["time", "parity after", "speed-up"]
    if not yardstick:
        times, rows = times[:1], [(*row[:2], *row[4:]) for row in rows]
    return Table(
        title=title,
        columns=(
            Column("strategy"),
            *(Column(name, number=True) for name in times),
            *(Column(part, number=True, group="loss") for part in ("old", "new", "all")),
            *(Column(name, number=True) for name in more),
        ),
        rows=tuple(
            (*row, *(Cell(f"{values[row[0].text]:.3f}") for values in more.values()))
            for row in rows
        ),
        caption=caption,
    )


def _row(attempt: Attempt, retraining: Attempt, target: EvaluationLoss) -> tuple[Cell, ...]:
    if attempt.failed:
        failed = Cell("diverged", mark="bad", note=attempt.failed)
        return (Cell(attempt.strategy), failed, *[NONE] * 5)
    reached, against = attempt.parity_seconds, retraining.parity_seconds or retraining.seconds
    parity = (Cell(f"not in {attempt.seconds:.1f} s", mark="quiet"), NONE)
    if reached is not None:
        speed_up = against / max(reached, 1e-9)
        parity = (Cell(f"{reached:.1f} s", sort=reached), Cell(f"{speed_up:.1f}×", sort=speed_up))
    return (
        Cell(attempt.strategy),
        Cell(f"{attempt.seconds:.1f} s", sort=attempt.seconds),
        *parity,
        *_losses(attempt.loss, target),
    )


def _losses(loss: EvaluationLoss, target: EvaluationLoss) -> list[Cell]:
    return [
        Cell(f"{value:.3f}", sort=value, mark="good" if value <= 1.02 * limit else "")
        for value, limit in zip(loss, target, strict=True)
    ]


def loss_figure(traces: Mapping[str, Trace]) -> Figure:
    """Losses of old and new items against time; what never trains is one level."""
    panels = []
    for part in ("old", "new"):
        series = {}
        for name, trace in traces.items():
            # Retraining does not begin with the encoder of before.
            points = trace.points[trace.strategy.from_scratch :]
            shown = points if trace.outcome.steps else points[-1:]
            series[name] = [(max(at.seconds, 0.05), getattr(at.loss, part)) for at in shown]
        panels.append(
            Panel(series, f"{part} items", x="seconds of training", y="loss", logs=(True, True))
        )
    title = "evaluation loss of old and new items against time"
    return Figure(
        title="Loss against time",
        svg=chart(panels, title=title, legend=True, height=240),
        caption="A good update brings both down to where retraining ends, further left.",
    )


def demo(args: Namespace) -> None:
    """Fit, update in six ways, print a table, write a page with the curves."""
    torch.set_num_threads(1)  # the encoder is too small to share: more threads wait for each other
    data = digits()
    old, new = by_class(data, NEW_CLASSES)
    say(
        f"{len(data):,} handwritten digits (8×8 pixels). First come {len(old):,} of the classes "
        f"0–6; {len(new):,} of 7, 8 and 9 come later.\n"
    )
    domain = Images(8, 1, encoder="small", views=ImageViews(flip=0.0, scale=(0.4, 1.0)))
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=EPOCHS), seed=args.seed)
    with training_bar(stdout(), "fit on 0–6") as progress:
        fitted = learner.fit(old.items, callbacks=[progress])
    say(
        f"Fitted in {fitted.seconds:.1f} s: loss {fitted.loss_new.before:.2f} → "
        f"{fitted.loss_new.after:.2f}, kNN accuracy {_knn(learner, old, old)[0]:.3f}.\n"
    )
    result = side_by_side(
        learner,
        old.items,
        new.items,
        STRATEGIES,
        spacing=SPACING,
        progress=lambda name: training_bar(stdout(), name),
    )
    accuracies = {name: _knn(run.learner, data, old, new) for name, run in result.traces.items()}
    knn = {
        f"kNN {part}": {name: both[place] for name, both in accuracies.items()}
        for place, part in enumerate(("old", "new"))
    }
    caption = (
        f"{CAPTION} ICL and warm start have about the same time, fine-tuning and the paper's ICL "
        f"less. Retraining ends after {EPOCHS} epochs, before its loss stops falling. "
        "The paper's ICL is the first-order one."
    )
    title = "Three new classes, six ways to deal with them"
    table = strategies_table(title, result, more=knn, caption=caption)
    print_table(stdout(), table)
    section = Section("Strategies", (table, loss_figure(result.traces)))
    save(Page(title="incontrast demo", sections=(section,)), args.out)
    say(f"The loss against time: {args.out}")
    say(f"The whole demonstration took {time.perf_counter() - args.begun:.0f} s.")


def _knn(learner: Learner, among: Labelled, *parts: Labelled) -> list[float]:
    """Accuracy of the items of each part, with neighbours from all of these."""
    embeddings, labels = learner.embed(among.items).numpy(), np.asarray(among.labels)
    members = [np.isin(labels, np.asarray(part.labels)) for part in parts]
    return [knn_accuracy(embeddings, labels, queries=queries) for queries in members]
