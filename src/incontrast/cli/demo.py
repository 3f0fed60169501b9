"""The demonstration: real digits, seven classes first, three new ones later."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from incontrast.cli.picture import draw_traces
from incontrast.cli.progress import training_bar
from incontrast.compare.trace import Trace, trace
from incontrast.data import Labelled, digits
from incontrast.domains.images.domain import Images
from incontrast.domains.images.views import ImageViews
from incontrast.evaluate import knn_accuracy
from incontrast.learner import Learner
from incontrast.strategies import ICL, FineTune, NoUpdate, Retrain, Strategy, WarmStart
from incontrast.streams import by_class
from incontrast.training.progress import Budget

__all__ = ["run"]

NEW_CLASSES = (7, 8, 9)
EPOCHS = 60  # of the first fit, and of retraining
LIMIT = Budget(seconds=15)  # for each of the others

STRATEGIES: dict[str, Strategy] = {
    "inference": NoUpdate(),
    "fine-tuning": FineTune(max_epochs=40),
    "warm start": WarmStart(max_epochs=20),
    "ICL": ICL(),
    "paper's ICL": ICL.paper(order=1, max_epochs=20),
    "retraining": Retrain(max_epochs=EPOCHS),
}


class Row(NamedTuple):
    """A strategy's line of the table."""

    name: str
    trace: Trace
    knn_old: float
    knn_new: float


def run(*, seed: int, picture: Path) -> None:
    """Fit, update in six ways, print a table, draw a picture."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=108)
    torch.set_num_threads(1)  # the encoder is too small to share: more threads wait for each other
    begin = time.perf_counter()
    data = digits()
    old, new = by_class(data, NEW_CLASSES)
    console.print(
        f"{len(data):,} handwritten digits (8×8 pixels). First come {len(old):,} of the classes "
        f"0–6; {len(new):,} of 7, 8 and 9 come later.\n"
    )
    domain = Images(8, 1, encoder="small", views=ImageViews(flip=0.0, scale=(0.4, 1.0)))
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=EPOCHS), seed=seed)
    with training_bar(console, "fit on 0–6") as progress:
        fitted = learner.fit(old.items, callbacks=[progress])
    console.print(
        f"Fitted in {fitted.seconds:.1f} s: loss {fitted.loss_new.before:.2f} → "
        f"{fitted.loss_new.after:.2f}, kNN accuracy {_knn(learner, old, old):.3f}.\n"
    )
    rows = []
    for name, strategy in STRATEGIES.items():
        budget = None if strategy.from_scratch else LIMIT
        with training_bar(console, name) as progress:
            traced = trace(
                learner,
                old.items,
                new.items,
                strategy,
                sample=512,
                budget=budget,
                progress=progress,
            )
        knn = (_knn(traced.learner, part, data) for part in (old, new))
        rows.append(Row(name, traced, *knn))
    console.print(_table(rows))
    console.print(
        "\nLosses are true losses with noise from all items; lower is better. An encoder is\n"
        "level with retraining once its loss over all items is at retraining's final one, and\n"
        "on old and new items within 2 % of it; the speed-up is until then. Updates have less\n"
        "time than retraining here: “never” means not in that. The paper's ICL is the first-order\n"
        "one.\n"
    )
    console.print(draw_traces({row.name: row.trace for row in rows}, picture))
    console.print(f"The whole demonstration took {time.perf_counter() - begin:.0f} s.")


def _table(rows: list[Row]) -> Table:
    ceiling = rows[-1].trace
    level = ceiling.reaches(ceiling.points[-1].loss)
    assert level is not None, "it ends there"
    whole = level.seconds
    table = Table(title="Three new classes, six ways to deal with them")
    table.add_column("strategy", no_wrap=True)
    for heading in (
        *("time", "level after", "speed-up"),
        *("loss old", "loss new", "loss all", "kNN old", "kNN new"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        seconds, final = row.trace.outcome.seconds, row.trace.points[-1].loss
        reached = row.trace.reaches(ceiling.points[-1].loss)
        table.add_row(
            row.name,
            f"{seconds:.1f} s",
            f"{reached.seconds:.1f} s" if reached is not None else "never",
            "–" if reached is None else f"{whole / reached.seconds:.1f}×",
            *(f"{value:.3f}" for value in (*final, row.knn_old, row.knn_new)),
            style="bold" if row.name == "ICL" else None,
        )
    return table


def _knn(learner: Learner, part: Labelled, among: Labelled) -> float:
    """Accuracy of the items of a part, with neighbours from all of these."""
    assert part.labels is not None
    assert among.labels is not None
    embeddings = learner.embed(among.items).numpy()
    members = np.isin(among.labels, np.unique(part.labels))
    return knn_accuracy(embeddings, among.labels, queries=members)
