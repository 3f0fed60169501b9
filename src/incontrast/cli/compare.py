"""``incontrast compare``: which strategy suits these data. ``incontrast demo``: on digits."""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.status import Status

from incontrast.cli.init import domain_of, in_words
from incontrast.cli.output import note, note_skipped, print_table, say, stderr, stdout, training_bar
from incontrast.compare.recommend import Attempt
from incontrast.compare.run import Comparison, sampled, side_by_side
from incontrast.compare.run import compare as compare_strategies
from incontrast.compare.trace import Trace
from incontrast.data import Labelled, Source, digits, read_source
from incontrast.domains.base import Domain
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.evaluate import knn_accuracy
from incontrast.learner import Learner
from incontrast.parity import TOLERANCE, EvaluationLoss
from incontrast.report import page as parts
from incontrast.report.chart import Panel, chart
from incontrast.report.page import DASH, Cell, columns, figure_cell, save
from incontrast.strategies import ICL, FineTune, NoUpdate, Retrain, Strategy, WarmStart
from incontrast.streams import by_class
from incontrast.text import duration
from incontrast.training.progress import Progress, ProgressCallback
from incontrast.workspace import Workspace

SMALL = 32  # pixels: larger images would need a larger encoder, and more than minutes
CAPTION = (
    "Evaluation loss: fixed views, all items as negatives; lower is better. Green: at most 2 % "
    "above {reference}. One seed. "
)
PARITY = (
    "Parity with retraining: over all items at or below its final loss, on old and on new items "
    "within 2 % of it. "
)

NEW_CLASSES = (7, 8, 9)
EPOCHS = 18  # of the first fit, and of retraining
STRATEGIES: dict[str, Strategy] = {
    "no update": NoUpdate(),
    "fine-tuning": FineTune(max_epochs=6),
    "warm start": WarmStart(max_epochs=9),
    "ICL": ICL(max_epochs=9),
    "paper's ICL": ICL.paper(order=1, max_epochs=2),
    "retraining": Retrain(max_epochs=EPOCHS),
}


def compare(args: Namespace) -> None:
    """Compare on the user's data: print a table and a recommendation, write a page if asked to."""
    read: Callable[..., Source] = read_source
    if args.workspace is not None:
        space = Workspace.open(args.workspace)
        read = space.read
        if any(event.get("kind") == "adopt" for event in space.journal.events()):
            raise ValueError(
                f"{space.folder} has adopted a model, and compare trains an encoder of its own, "
                "which says nothing about that model: leave --workspace out, or judge incontrast "
                "update --strategy by --probe in a copy of the folder"
            )
    old, new = (read(path, check=True, **args.table) for path in (args.old, args.new))
    note_skipped([skip.reason for source in (old, new) for skip in source.skipped])
    domain = quick_domain(old, **args.network)
    new.check(domain)
    for source in (old, new):
        if len(source) < 2:
            raise ValueError(f"{source.path} holds one item: a comparison needs at least two")
    if old.path.resolve() == new.path.resolve():
        note("OLD and NEW are the same: this compares longer training, not updates")
    if not isinstance(domain, Images) or domain.encoder.given == "small":
        torch.set_num_threads(1)  # the encoder is too small for more
    used = sampled(old.items, new.items, args.items, args.seed)
    data = (
        f"{len(old):,} old and {len(new):,} new items ({old.kind}: {in_words(domain)}), "
        f"{len(used[0]):,} and {len(used[1]):,} used"
    )
    say(f"{data}; time limit {args.minutes:g} min.")
    with stderr().status("first fit") as status:
        result = compare_strategies(
            domain,
            *used,
            seconds=max(60 * args.minutes + args.begun - time.perf_counter(), 30 * args.minutes),
            seed=args.seed,
            progress=partial(_running, status),
        )
    table = strategies_table(
        "Strategies on these data",
        result,
        f"{data}, α = {result.growth_ratio:.2f}; losses of at most {result.sample} of each.",
        parity=not result.retraining.falling,
    )
    print_table(stdout(), table)
    choice = result.recommendation
    say(str(choice), style="bold")
    for reason in choice.reasons:
        say(f"  {reason}")
    if args.out is not None:
        lead = f"**{choice}.** {' '.join(choice.reasons)}\n\nOld: `{old.path}`. New: `{new.path}`."
        _save_page("Which strategy for these data?", lead, table, result.traces, args.out)


def _save_page(
    title: str, lead: str, table: parts.Table, traces: Mapping[str, Trace], file: Path
) -> None:
    section = parts.Section("Strategies", (table, loss_figure(traces)))
    save(parts.Page(title, (section,), lead), file)
    say(f"Report: {file}")


def quick_domain(source: Source, **network: Any) -> Domain:
    """The domain of a source, with images small enough to learn from in minutes."""
    domain = domain_of(source, **network)
    chosen = network.get("size") or network.get("encoder")
    if isinstance(domain, Images) and not chosen and domain.size > SMALL:
        return domain_of(source, size=SMALL, channels=domain.channels)
    return domain


@contextmanager
def _running(status: Status, name: str) -> Iterator[ProgressCallback]:
    """Shows what is running; the number of epochs depends on the time limit."""

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
    caption: str,
    *,
    parity: bool = True,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> parts.Table:
    """One row per strategy: no update first, retraining last.

    Without ``parity``, because retraining had not converged, no update is the reference.
    ``scores`` are further columns: by title, then by strategy.
    """
    retraining, scores = result.retraining, scores or {}
    target = retraining.loss if parity else result.before
    rows = {"no update": [DASH, DASH, DASH, *_losses(result.before, target)]}
    for attempt in (*result.attempts, retraining):
        if attempt.failed:
            cells = [Cell("diverged", mark="bad", note=attempt.failed), *5 * [DASH]]
        else:
            took = Cell(f"{attempt.seconds:.1f} s", sort=attempt.seconds)
            times = _times(attempt, retraining) if parity else (DASH, DASH)
            cells = [took, *times, *_losses(attempt.loss, target)]
        rows[attempt.strategy] = cells
    return parts.Table(
        title=title,
        columns=(
            *columns("strategy", numbers=("time", "parity after", "speed-up")),
            *(parts.Column(part, number=True, group="loss") for part in ("old", "new", "all")),
            *columns(numbers=tuple(scores)),
        ),
        rows=tuple(
            (Cell(name), *cells, *(figure_cell(column.get(name)) for column in scores.values()))
            for name, cells in rows.items()
        ),
        caption=CAPTION.format(reference="retraining" if parity else "no update")
        + (PARITY if parity else "Retraining had not converged: there is no parity to measure. ")
        + caption,
    )


def _times(attempt: Attempt, retraining: Attempt) -> tuple[Cell, Cell]:
    """When it was at parity with retraining, and how much earlier than retraining itself."""
    seconds = attempt.parity_seconds
    if seconds is None:
        return Cell(f"not in {attempt.seconds:.1f} s", mark="quiet"), DASH
    speed_up = (retraining.parity_seconds or retraining.seconds) / max(seconds, 1e-9)
    return Cell(f"{seconds:.1f} s", sort=seconds), Cell(f"{speed_up:.1f}×", sort=speed_up)


def _losses(loss: EvaluationLoss, target: EvaluationLoss) -> list[Cell]:
    return [
        figure_cell(value, mark="good" if value <= (1 + TOLERANCE) * limit else "")
        for value, limit in zip(loss, target, strict=True)
    ]


def loss_figure(traces: Mapping[str, Trace]) -> parts.Figure:
    """Losses of old and new items against time; a strategy that never trains is a level line."""
    panels = []
    for part in ("old", "new"):
        series = {}
        for name, trace in traces.items():
            # Retraining does not start with the previous encoder.
            points = trace.points[trace.strategy.from_scratch :]
            points = points if trace.outcome.steps else points[-1:]
            series[name] = [
                (max(point.seconds, 0.05), getattr(point.loss, part)) for point in points
            ]
        panels.append(
            Panel(series, f"{part} items", x="seconds of training", y="loss", logs=(True, True))
        )
    title = "evaluation loss of old and new items against time"
    return parts.Figure(
        title="Loss against time",
        svg=chart(panels, title=title, legend=True, height=240),
        caption="A good update reaches the losses that retraining ends with, and sooner.",
    )


def demo(args: Namespace) -> None:
    """Train, update in five ways and retrain: print a table, write a page with the curves."""
    torch.set_num_threads(1)  # the encoder is too small for more
    data = digits()
    old, new = by_class(data, NEW_CLASSES)
    say(
        f"{len(data):,} handwritten digits (8×8 pixels): first {len(old):,} of the classes 0–6, "
        f"then {len(new):,} of 7, 8 and 9.\n"
    )
    domain = Images(8, 1, encoder="small", views=ImageViews(flip=0.0, scale=(0.4, 1.0)))
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=EPOCHS), seed=args.seed)
    with training_bar(stdout(), "fit on 0–6") as progress:
        fitted = learner.fit(old.items, callbacks=[progress])
    say(
        f"Fitted in {fitted.seconds:.1f} s: loss {fitted.loss_new.before:.2f} → "
        f"{fitted.loss_new.after:.2f}, kNN accuracy {_knn(learner, old, old):.3f}.\n"
    )
    result = side_by_side(
        learner,
        old.items,
        new.items,
        STRATEGIES,
        progress=lambda name: training_bar(stdout(), name),
    )
    scores = {
        f"kNN {name}": {
            strategy: _knn(trace.learner, data, part) for strategy, trace in result.traces.items()
        }
        for name, part in (("old", old), ("new", new))
    }
    caption = (
        f"Retraining ends after {EPOCHS} epochs, before its loss stops falling. The paper's ICL is "
        "the first-order one."
    )
    title = "Three new classes, six strategies"
    table = strategies_table(title, result, caption, scores=scores)
    print_table(stdout(), table)
    _save_page("incontrast demo", "", table, result.traces, args.out)
    say(f"The whole demonstration took {time.perf_counter() - args.begun:.0f} s.")


def _knn(learner: Learner, data: Labelled, part: Labelled) -> float:
    """Accuracy on the classes of a part, with neighbours from all data."""
    embeddings, labels = learner.embed(data.items).numpy(), np.asarray(data.labels)
    return knn_accuracy(embeddings, labels, queries=np.isin(labels, np.asarray(part.labels)))
