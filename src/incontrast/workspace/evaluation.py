"""Judging a candidate against the version before it, on old and new items."""

from __future__ import annotations

from typing import Any

import torch

from incontrast.learner import Learner
from incontrast.memory import Store, StoredCollection
from incontrast.randomness import generator
from incontrast.workspace.gate import objections
from incontrast.workspace.movement import health, movement

__all__ = ["evaluate"]

SAMPLE = 512  # old and new items, each, at most


def evaluate(
    before: Learner | None,
    after: Learner,
    store: Store,
    *,
    first: int,
    count: int,
    outcome: dict[str, Any],
    tolerance: float,
) -> dict[str, Any]:
    """The figures of a candidate, as JSON; ``objections`` is what speaks against promoting it.

    Args:
        before: The current version; None after a first fit.
        after: The candidate.
        store: Where the items are.
        first: The first id of the items that came in.
        count: How many they are.
        outcome: Figures of training.
        tolerance: How much larger the loss of old items may be.
    """
    draws = generator(after.seed, "evaluation", after.version)
    new = first + torch.randperm(count, generator=draws)[:SAMPLE].sort().values
    old = torch.empty(0, dtype=torch.int64)
    if before is not None and len(before.memory):
        chosen = torch.randperm(len(before.memory), generator=draws)[:SAMPLE].sort().values
        old = before.memory.ids[chosen]
    ids = torch.cat([old, new])
    sizes = store.columns(first + count).sizes[ids]
    sample = StoredCollection(store, after.domain, ids, sizes)
    figures: dict[str, Any] = {"tolerance": tolerance, "sample": len(ids), "objections": []}
    if len(ids) < 2:
        return figures
    embedded = after.embed(sample)
    healthy = {"before": None, "after": health(embedded)}
    if before is not None:
        earlier = before.embed(sample)
        healthy["before"] = health(earlier)
        figures["movement"] = movement(earlier, embedded, ids, new=len(new))._asdict()
    loss = outcome["loss"]
    figures["objections"] = objections(
        loss_before=None if before is None else loss["before"]["old"],
        loss_after=None if before is None else loss["after"]["old"],
        tolerance=tolerance,
        before=healthy["before"],
        after=health(embedded),
    )
    figures["health"] = {
        name: None if value is None else value._asdict() for name, value in healthy.items()
    }
    return figures
