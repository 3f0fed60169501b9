"""``incontrast compare``: which strategy suits this data? ``incontrast demo``: on real digits."""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.status import Status

from incontrast.cli.init import domain_of
from incontrast.cli.output import note, note_skipped, print_table, say, stderr, stdout, training_bar
from incontrast.compare.recommend import Attempt
from incontrast.compare.run import Comparison, sampled, side_by_side
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
from incontrast.report import page as parts
from incontrast.report.chart import Panel, chart
from incontrast.report.page import DASH, Cell, columns, figure_cell, save
from incontrast.strategies import ICL, FineTune, NoUpdate, Retrain, Strategy, WarmStart
from incontrast.streams import by_class
from incontrast.text import counted, duration
from incontrast.training.progress import Progress, ProgressCallback
from incontrast.workspace import Workspace

SMALL = 32  # pixels, up to which images have the small encoder
LOWER = "Evaluation loss: fixed views, all items as negatives; lower is better. "
CAPTION = LOWER + (
    "Parity with retraining: over all items at or below its final loss, on old and on new items "
    "within 2 % of it. Green: within 2 %. One seed."
)
UNCONVERGED = LOWER + (
    "Green: at most 2 % above no update. Retraining had not converged, so there is no parity to "
    "measure. One seed."
)

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
    read = read_source
    if args.workspace is not None:
        space = Workspace.open(args.workspace)
        _check_trained_here(space)
        read = space.read
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
    old, new, minutes = len(chosen[0]), len(chosen[1]), args.minutes
    kind: str = first.kind
    if isinstance(domain, Images):
        kind = f"images, {domain.size}×{domain.size} px, encoder {domain.encoder.given}"
    elif isinstance(domain, Vectors):
        kind = f"vectors of {counted(domain.dim, 'number')}"
    everything = (old, new) == (len(first), len(later))
    used = "" if everything else f", of which {old:,} and {new:,} are used"
    say(
        f"{len(first):,} old and {len(later):,} new items ({kind}){used}; {minutes:g} "
        f"{'minute' if minutes == 1 else 'minutes'} altogether."
    )
    with stderr().status("first fit") as status:
        result = compare_strategies(
            domain,
            *chosen,
            seconds=max(60 * minutes + args.begun - time.perf_counter(), 30 * minutes),
            seed=args.seed,
            progress=partial(_shown_in, status),
        )
    sizes = f"{old:,} old and {new:,} new items, α = {result.growth_ratio:.2f}."
    if max(old, new) > result.evaluated:
        sizes += f" Losses are of {result.evaluated} of each at most."
    falling = result.retraining.falling
    shown = strategies_table(
        "Strategies on this data",
        result,
        caption=f"{sizes} {UNCONVERGED if falling else CAPTION}",
        yardstick=not falling,
    )
    print_table(stdout(), shown)
    choice = result.recommendation
    say(str(choice), style="bold")
    for reason in choice.reasons:
        say(f"  {reason}")
    if args.out is None:
        return
    facts = (
        ("old items", f"{len(first):,}", f"{old:,} used"),
        ("new items", f"{len(later):,}", f"{new:,} used"),
        ("growth ratio α", f"{result.growth_ratio:.2f}", ""),
    )
    paths = parts.Text(f"Old: `{first.path}`. New: `{later.path}`.")
    page = parts.Page(
        title="Which strategy for this data?",
        lead=f"**{choice}.** {' '.join(choice.reasons)}",
        sections=(
            parts.Section("Data", (parts.Facts(facts), paths)),
            parts.Section("Strategies", (shown, loss_figure(result.traces))),
        ),
        foot="Written by `incontrast compare`.",
    )
    save(page, args.out)
    say(f"Report: {args.out}")


def _check_trained_here(space: Workspace) -> None:
    if any(event.get("kind") == "adopt" for event in space.journal.events()):
        raise ValueError(
            f"{space.folder} has adopted a model, of which compare says nothing, since it trains "
            "an encoder of its own: leave --workspace away to compare strategies for such a one; "
            "for the model, judge incontrast update --strategy by --probe in a copy of the folder"
        )


def quick_domain(source: Source, **network: Any) -> Domain:
    """The domain of a source; images are brought to a size that is learned from in minutes."""
    domain = domain_of(source, **network)
    asked = network.get("size") or network.get("encoder")
    if isinstance(domain, Images) and not asked and domain.size > SMALL:
        return domain_of(source, size=SMALL, channels=domain.channels)
    return domain


@contextmanager
def _shown_in(status: Status, name: str) -> Iterator[ProgressCallback]:
    """Shows what runs; how many epochs it will take only the clock knows."""

    def show(step: Progress) -> None:
        if step.finished is not None:
            status.update(f"{name}: {duration(step.seconds)}, loss {step.loss:.3f}")

    status.update(name)
    if not status.console.is_terminal:
        note(name)
    yield show


def strategies_table(
    title: str,
    result: Comparison,
    *,
    more: Mapping[str, Mapping[str, float]] | None = None,
    caption: str,
    yardstick: bool = True,
) -> parts.Table:
    """One row for each strategy, no update first and retraining last.

    ``more`` are further columns: by title, then by strategy. Without a ``yardstick``, a retraining
    that has converged, losses are compared with those of no update, and nothing with its time.
    """
    more, retraining = more or {}, result.retraining
    target = retraining.loss if yardstick else result.before
    times = ["time", "parity after", "speed-up"][: 3 if yardstick else 1]
    rows = [(Cell("no update"), *[DASH] * len(times), *_losses(result.before, target))]
    for attempt in (*result.attempts, retraining):
        shown, losses = [Cell("diverged", mark="bad", note=attempt.failed), DASH, DASH], [DASH] * 3
        if not attempt.failed:
            shown, losses = _times(attempt, retraining), _losses(attempt.loss, target)
        rows.append((Cell(attempt.strategy), *shown[: len(times)], *losses))
    return parts.Table(
        title=title,
        columns=(
            *columns("strategy", numbers=times),
            *(parts.Column(part, number=True, group="loss") for part in ("old", "new", "all")),
            *columns(numbers=tuple(more)),
        ),
        rows=tuple(
            (*row, *(Cell(f"{values[row[0].text]:.3f}") for values in more.values()))
            for row in rows
        ),
        caption=caption,
    )


def _times(attempt: Attempt, retraining: Attempt) -> list[Cell]:
    """How long it took, when it was at parity, and how much earlier than retraining."""
    took, reached = Cell(f"{attempt.seconds:.1f} s", sort=attempt.seconds), attempt.parity_seconds
    if reached is None:
        return [took, Cell(f"not in {attempt.seconds:.1f} s", mark="quiet"), DASH]
    speed_up = (retraining.parity_seconds or retraining.seconds) / max(reached, 1e-9)
    parity = Cell(f"{reached:.1f} s", sort=reached)
    return [took, parity, Cell(f"{speed_up:.1f}×", sort=speed_up)]


def _losses(loss: EvaluationLoss, target: EvaluationLoss) -> list[Cell]:
    return [
        figure_cell(value, mark="good" if value <= 1.02 * limit else "")
        for value, limit in zip(loss, target, strict=True)
    ]


def loss_figure(traces: Mapping[str, Trace]) -> parts.Figure:
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
    return parts.Figure(
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
    knn: dict[str, dict[str, float]] = {"kNN old": {}, "kNN new": {}}
    for name, run in result.traces.items():
        knn["kNN old"][name], knn["kNN new"][name] = _knn(run.learner, data, old, new)
    caption = (
        f"{CAPTION} ICL and warm start have about the same time, fine-tuning and the paper's ICL "
        f"less. Retraining ends after {EPOCHS} epochs, before its loss stops falling. "
        "The paper's ICL is the first-order one."
    )
    title = "Three new classes, six ways to deal with them"
    table = strategies_table(title, result, more=knn, caption=caption)
    print_table(stdout(), table)
    section = parts.Section("Strategies", (table, loss_figure(result.traces)))
    save(parts.Page(title="incontrast demo", sections=(section,)), args.out)
    say(f"The loss against time: {args.out}")
    say(f"The whole demonstration took {time.perf_counter() - args.begun:.0f} s.")


def _knn(learner: Learner, among: Labelled, *parts: Labelled) -> list[float]:
    """Accuracy of the items of each part, with neighbours from all of these."""
    embeddings, labels = learner.embed(among.items).numpy(), np.asarray(among.labels)
    members = [np.isin(labels, np.asarray(part.labels)) for part in parts]
    return [knn_accuracy(embeddings, labels, queries=queries) for queries in members]
