"""How far embeddings moved from one version to the next, on old and new items."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.evaluate.collapse import effective_rank, uniformity

__all__ = ["Health", "Movement", "health", "movement", "neighbours"]

NEAREST = 10  # neighbours whose overlap is counted
SHOWN = 6  # examples
BESIDE = 5  # neighbours of each that are shown


class Health(NamedTuple):
    """Label-free signs of a good or a collapsed encoder."""

    effective_rank: float
    uniformity: float


class Movement(NamedTuple):
    """What an update did to embeddings.

    Args:
        cosine: Quartiles of the cosine between an item's two embeddings; 1 is unmoved.
        overlap: Mean share of an item's 10 nearest neighbours that stayed.
        examples: Some items with their nearest neighbours before and after, by ids.
    """

    cosine: tuple[float, float, float]
    overlap: float
    examples: list[dict[str, Any]]


def health(embeddings: Tensor) -> Health:
    """Of (n, d) embeddings, n >= 2."""
    return Health(effective_rank(embeddings), uniformity(embeddings))


def movement(before: Tensor, after: Tensor, ids: Tensor, *, new: int) -> Movement:
    """Compare embeddings of the same items by two versions.

    Args:
        before: (n, d) by the version before.
        after: (n, d) by the version after.
        ids: (n,) the items.
        new: How many of them, at the end, came with the update.
    """
    cosine = (normalize(before) * normalize(after)).sum(dim=1)
    quartiles = [cosine.quantile(part).item() for part in (0.25, 0.5, 0.75)]
    count = min(NEAREST, len(ids) - 1)
    first, second = neighbours(before, count), neighbours(after, count)
    stayed = (first[:, :, None] == second[:, None, :]).any(dim=2).float().mean(dim=1)
    # Examples: half of them old, half new, evenly spaced.
    old = len(ids) - new
    places = [
        *torch.linspace(0, old - 1, min(old, SHOWN // 2)).long().tolist(),
        *(old + torch.linspace(0, new - 1, min(new, SHOWN - SHOWN // 2))).long().tolist(),
    ]
    examples = [
        {
            "item": int(ids[place]),
            "new": place >= old,
            "before": ids[first[place, :BESIDE]].tolist(),
            "after": ids[second[place, :BESIDE]].tolist(),
        }
        for place in places
    ]
    return Movement((quartiles[0], quartiles[1], quartiles[2]), stayed.mean().item(), examples)


def neighbours(embeddings: Tensor, count: int) -> Tensor:
    """(n, count) the nearest other items of each, by cosine."""
    unit = normalize(embeddings)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-2.0)
    return similarity.topk(count, dim=1).indices
