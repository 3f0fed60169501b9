"""The figures of a row: both protocols, from one watched update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from incontrast.bench.sets import Splits
from incontrast.bench.trace import Point, Trace
from incontrast.evaluate import (
    TrueLoss,
    bias,
    knn_accuracy,
    measure,
    svm_accuracy,
    svm_accuracy_held_out,
)
from incontrast.learner import Learner
from incontrast.rows import Row
from incontrast.training.increment import Increment

__all__ = ["accuracies", "biases", "curve", "level", "paper_figures", "target_of"]

FOLDS = 5


def paper_figures(traced: Trace, clock: str) -> dict[str, Any]:
    """The paper's protocol: time and epochs to the lowest training loss.

    Inference trains nothing, and has none of them.
    """
    history = traced.outcome.history
    figures: dict[str, Any] = {
        "stopped": traced.outcome.stopped,
        "total": {
            "seconds": _seconds(traced.points[-1], clock),
            "wall_seconds": _rounded(traced.outcome.seconds),
            "epochs": traced.outcome.epochs,
            "passes": traced.outcome.passes,
        },
        "best": None,
    }
    if history:
        best = min(range(len(history)), key=lambda number: history[number].loss)
        seconds = (
            traced.epoch_processor_seconds[best] if clock == "processor" else history[best].seconds
        )
        figures["best"] = {
            "seconds": _rounded(seconds),
            "wall_seconds": _rounded(history[best].seconds),
            "epochs": best + 1,
            "passes": history[best].passes,
            "loss": _rounded(history[best].loss),
        }
    return figures


def level(traced: Trace, target: TrueLoss, clock: str) -> dict[str, Any]:
    """Our protocol: time and passes until the encoder is as good as retraining's; null is never."""
    reached = traced.reaches(target)
    return {
        "before": traced.points[0].loss._asdict(),
        "after": traced.points[-1].loss._asdict(),
        "target": target._asdict(),
        "reached": None
        if reached is None
        else {
            "seconds": _seconds(reached, clock),
            "wall_seconds": _rounded(reached.seconds),
            "epochs": reached.epochs,
            "passes": reached.passes,
        },
    }


def target_of(row: Row) -> TrueLoss:
    """The true loss that retraining ends with, from its row."""
    return TrueLoss(**row["ours"]["after"])


def curve(traced: Trace, clock: str) -> dict[str, Any]:
    """The true loss along the update, and the training loss of each epoch."""
    points = traced.points
    return {
        "seconds": [_seconds(point, clock) for point in points],
        "passes": [point.passes for point in points],
        "epochs": [point.epochs for point in points],
        **{
            part: [_rounded(getattr(point.loss, part)) for point in points]
            for part in ("old", "new", "all")
        },
        "training_loss": [_rounded(epoch.loss, 4) for epoch in traced.outcome.history],
        "rate": [_rounded(epoch.rate, 3) for epoch in traced.outcome.history],
    }


def accuracies(learner: Learner, splits: Splits, seed: int) -> dict[str, Any]:
    """SVM on old and on new embeddings, as in the paper; on items never seen; and kNN."""
    old, new = (learner.embed(part.items).numpy() for part in (splits.old, splits.new))
    labels_old, labels_new = splits.old.labels, splits.new.labels
    assert labels_old is not None
    assert labels_new is not None
    seen, labels = np.concatenate([old, new]), np.concatenate([labels_old, labels_new])
    is_old = np.arange(len(seen)) < len(old)
    return {
        "svm_old": svm_accuracy(old, labels_old, folds=FOLDS, seed=seed).mean,
        "svm_new": svm_accuracy(new, labels_new, folds=FOLDS, seed=seed).mean,
        "knn_old": knn_accuracy(seen, labels, queries=is_old),
        "knn_new": knn_accuracy(seen, labels, queries=~is_old),
        "held_out": _held_out(learner, splits, seen, labels, seed),
    }


def _held_out(
    learner: Learner, splits: Splits, seen: Any, labels: Any, seed: int
) -> dict[str, float]:
    parts = {"all" if splits.held_out_new is None else "old": splits.held_out_old}
    if splits.held_out_new is not None:
        parts["new"] = splits.held_out_new
    return {
        name: svm_accuracy_held_out(
            seen, labels, learner.embed(part.items).numpy(), part.labels, folds=FOLDS, seed=seed
        )
        for name, part in parts.items()
    }


def biases(learner: Learner, splits: Splits, sample: int) -> dict[str, Any]:
    """Table 2, measured at this encoder: the mean size of each bias on old and on new items."""
    old, new = (learner.domain.collect(part.items) for part in (splits.old, splits.new))
    population = measure(
        learner.encoder,
        learner.domain,
        Increment(old, new, len(old)),
        objective=learner.objective,
        engine=learner.engine,
        sample=sample,
        seed=learner.seed,
    )
    table = bias(population)._asdict()
    sizes = {name: entry.mean_absolute()._asdict() for name, entry in table.items()}
    return {
        **{name: {part: _rounded(v) for part, v in size.items()} for name, size in sizes.items()},
        "change_ratio": [_rounded(value) for value in population.change_ratio()],
    }


def _seconds(point: Point, clock: str) -> float | None:
    return _rounded(point.processor_seconds if clock == "processor" else point.seconds)


def _rounded(value: float, digits: int = 6) -> float | None:
    """To some significant digits; null for what is no number."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
