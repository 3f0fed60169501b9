"""The metrics of a row: both protocols, from one traced update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from incontrast import Increment, Learner
from incontrast.compare.trace import Trace
from incontrast.evaluate import (
    EvaluationLoss,
    bias,
    fit_svm,
    knn_accuracy,
    measure,
    svm_accuracy,
)
from incontrast.training.engine import embed
from paper.clock import Clock
from paper.row_file import Row
from paper.sets import DataSet, Splits
from paper.stop import best_epoch, stop_epoch


def paper_protocol(traced: Trace, data: DataSet, clock: Clock) -> dict[str, Any]:
    """The paper's protocol: time and epochs to the lowest training loss before its stop rule ends.

    A run without training has none of them.
    """
    history = traced.outcome.history
    losses = [epoch.loss for epoch in history]
    stop = stop_epoch(losses, data.patience, data.max_epochs)
    figures: dict[str, Any] = {"stopped": None, "epochs": stop or len(losses), "best": None}
    if history:
        figures["stopped"] = (
            "limit" if stop is None else "epochs" if stop == data.max_epochs else "patience"
        )
        best = best_epoch(losses[:stop])
        epoch = history[best - 1]
        figures["best"] = {
            "seconds": _rounded(clock.epochs[best - 1]),
            "wall_seconds": _rounded(epoch.seconds),
            "epochs": best,
            "forward_passes": epoch.forward_passes,
            "loss": _rounded(epoch.loss),
        }
    return figures


def parity_protocol(traced: Trace, target: EvaluationLoss, clock: Clock) -> dict[str, Any]:
    """Time and forward passes to parity with retraining; null is never."""
    reached = traced.reaches(target)
    return {
        "before": traced.points[0].loss._asdict(),
        "after": traced.points[-1].loss._asdict(),
        "target": target._asdict(),
        "reached": None
        if reached is None
        else {
            "seconds": _rounded(clock.points[traced.points.index(reached)]),
            "wall_seconds": _rounded(reached.seconds),
            "epochs": reached.epochs,
            "forward_passes": reached.forward_passes,
        },
    }


def totals(traced: Trace, clock: Clock) -> dict[str, Any]:
    """What the whole run took."""
    return {
        "seconds": _rounded(clock.points[-1]),
        "wall_seconds": _rounded(traced.outcome.seconds),
        "epochs": traced.outcome.epochs,
        "steps": traced.outcome.steps,
        "forward_passes": traced.outcome.forward_passes,
        "stopped": traced.outcome.stopped,
    }


def target_of(row: Row) -> EvaluationLoss:
    """The evaluation loss that retraining ends with, from its row."""
    return EvaluationLoss(**row["parity"]["after"])


def curve(traced: Trace, clock: Clock) -> dict[str, Any]:
    """The evaluation loss along the update, and the training loss of each epoch."""
    points = traced.points
    return {
        "seconds": [_rounded(seconds) for seconds in clock.points],
        "forward_passes": [point.forward_passes for point in points],
        "epochs": [point.epochs for point in points],
        **{
            part: [_rounded(getattr(point.loss, part), 5) for point in points]
            for part in ("old", "new", "all")
        },
        "training_loss": [_rounded(epoch.loss, 4) for epoch in traced.outcome.history],
    }


def accuracies(encoder: nn.Module, learner: Learner, splits: Splits, folds: int) -> dict[str, Any]:
    """SVM on old and on new embeddings, as in the paper; on items never seen; and kNN."""

    def embedded(items: Any) -> NDArray[Any]:
        collection = learner.domain.collect(items)
        vectors: NDArray[Any] = embed(
            encoder, learner.domain, collection, engine=learner.engine
        ).numpy()
        return vectors

    old, new = embedded(splits.old.items), embedded(splits.new.items)
    labels_old, labels_new = splits.old.labels, splits.new.labels
    assert labels_old is not None
    assert labels_new is not None
    seen, labels = np.concatenate([old, new]), np.concatenate([labels_old, labels_new])
    is_old = np.arange(len(seen)) < len(old)
    held_out = {"all" if splits.held_out_new is None else "old": splits.held_out_old}
    if splits.held_out_new is not None:
        held_out["new"] = splits.held_out_new
    svm = fit_svm(seen, labels, folds=folds, seed=learner.seed)
    return {
        "svm_old": svm_accuracy(old, labels_old, folds=folds, seed=learner.seed).mean,
        "svm_new": svm_accuracy(new, labels_new, folds=folds, seed=learner.seed).mean,
        "knn_old": knn_accuracy(seen, labels, queries=is_old),
        "knn_new": knn_accuracy(seen, labels, queries=~is_old),
        "held_out": {
            name: float(svm.score(embedded(part.items), part.labels))
            for name, part in held_out.items()
        },
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
    sizes = {name: entry.mean_absolute() for name, entry in bias(population)._asdict().items()}
    return {
        **{
            name: {"old": _rounded(size.old), "new": _rounded(size.new)}
            for name, size in sizes.items()
        },
        "change_ratio": [_rounded(value) for value in population.change_ratio()],
    }


def _rounded(value: float, digits: int = 6) -> float | None:
    """To some significant digits; null for what is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
