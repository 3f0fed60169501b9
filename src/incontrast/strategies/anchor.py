"""Old items held near where the encoder of before had them, so that stored vectors stay usable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from incontrast.training.task import Task, ViewBatch


def anchor_loss(task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
    """Mean 1 − cos between views of old items and their embeddings by the encoder of before.

    Those are computed when an item is drawn for the first time, and kept: most steps need no
    further forward pass.
    """
    old, places = task.increment.old, batch.places
    if old is None or task.before is None:
        return first.new_zeros(())
    width, count = first.shape[1], len(old)
    known = task.once("anchors", lambda: torch.zeros(count, width, device=first.device))
    there = task.once("anchored", lambda: torch.zeros(count, dtype=torch.bool))
    missing = places[~there[places]]
    if len(missing):
        items = task.domain.prepare(old.take(missing).to(task.engine.device))
        with torch.no_grad():
            known[missing] = task.engine.forward(task.before, items).float()
        there[missing] = True
        task.forward_passes += len(missing)
    anchors = known[places]
    return (
        1.0
        - torch.stack(
            [cosine_similarity(views[: batch.old], anchors).mean() for views in (first, second)]
        ).mean()
    )
