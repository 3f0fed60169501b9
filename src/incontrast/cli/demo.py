"""``incontrast demo``: real digits, seven classes first, three new ones later."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from incontrast.cli.compare import CAPTION, loss_figure, strategies_table
from incontrast.cli.output import print_table, say, stdout, training_bar
from incontrast.compare.run import side_by_side
from incontrast.data import Labelled, digits
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.evaluate import knn_accuracy
from incontrast.learner import Learner
from incontrast.report.page import Page, Section, save
from incontrast.strategies import ICL, FineTune, NoUpdate, Retrain, Strategy, WarmStart
from incontrast.streams import by_class

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


def demo(*, seed: int, out: Path) -> None:
    """Fit, update in six ways, print a table, write a page with the curves."""
    torch.set_num_threads(1)  # the encoder is too small to share: more threads wait for each other
    begin = time.perf_counter()
    data = digits()
    old, new = by_class(data, NEW_CLASSES)
    say(
        f"{len(data):,} handwritten digits (8×8 pixels). First come {len(old):,} of the classes "
        f"0–6; {len(new):,} of 7, 8 and 9 come later.\n"
    )
    domain = Images(8, 1, encoder="small", views=ImageViews(flip=0.0, scale=(0.4, 1.0)))
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=EPOCHS), seed=seed)
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
    save(Page(title="incontrast demo", sections=(section,)), out)
    say(f"The loss against time: {out}")
    say(f"The whole demonstration took {time.perf_counter() - begin:.0f} s.")


def _knn(learner: Learner, among: Labelled, *parts: Labelled) -> list[float]:
    """Accuracy of the items of each part, with neighbours from all of these."""
    embeddings, labels = learner.embed(among.items).numpy(), np.asarray(among.labels)
    members = [np.isin(labels, np.asarray(part.labels)) for part in parts]
    return [knn_accuracy(embeddings, labels, queries=queries) for queries in members]
