"""How good a search across two spaces is, compared with one after everything was re-embedded."""

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

NEIGHBOURS = 10
RELEVANT = 5 * NEIGHBOURS  # nearest items that count as relevant,
RELEVANT_PART = 10  # or a tenth of all items, if that is less


class Quality(NamedTuple):
    """Means over queries, with intervals of 95 %.

    Attributes:
        recall: The share of a query's 10 nearest items that are among the 10 found.
        recall_interval: Of its mean.
        precision: The share of the 10 found that are among the ``relevant`` nearest.
        precision_interval: Of its mean.
        cosine: Mean cosine between a mapped embedding and the right one.
    """

    recall: float
    recall_interval: tuple[float, float]
    precision: float
    precision_interval: tuple[float, float]
    cosine: float

    @classmethod
    def from_json(cls, figures: dict[str, Any]) -> Self:
        """From ``_asdict()`` as JSON, which has lists instead of tuples."""
        read: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in figures.items()}
        return cls(**read)


def relevant(items: int) -> int:
    """How many of the nearest items are relevant to a query.

    >>> relevant(40), relevant(200), relevant(500), relevant(10_000)
    (10, 20, 50, 50)
    """
    return min(max(items // RELEVANT_PART, NEIGHBOURS), RELEVANT)


def measured(queries: Tensor, corpus: Tensor, ranked: Tensor) -> tuple[Quality, Tensor]:
    """The quality of a search for n items among themselves, and the (n,) recall of each.

    ``queries`` and ``corpus`` are (n, d) unit vectors of the same items, ``ranked`` (n, r) the
    nearest items of each after re-embedding, nearest first.
    """
    recall, precision = hits(nearest(queries, corpus, NEIGHBOURS), ranked)
    means = recall.mean().item(), _interval(recall), precision.mean().item(), _interval(precision)
    return Quality(*means, (queries * corpus).sum(1).mean().item()), recall


def hits(found: Tensor, ranked: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) recall and (n,) precision of (n, 10) items found, given the (n, r) nearest ones."""
    equal = found[:, :, None] == ranked[:, None, :]
    recall = equal[:, :, : found.shape[1]].any(2).float().mean(1)
    return recall, equal.any(2).float().mean(1)


class Mixed(NamedTuple):
    """Searches with new items, in an index of new items, embedded, and of old ones, mapped.

    All mapped vectors are slightly too close to the centre, or too far from it. Among themselves
    that changes little, but beside embedded vectors they come before all of these, or after.
    """

    items: int  # new ones
    recall: float  # share of a new item's 10 nearest that are found
    own: float  # new items among its 10 nearest once everything is re-embedded
    found: float  # new items among the 10 found


def mixed(mapped: Tensor, exact: Tensor, new: int) -> Mixed:
    """Search among n items, mapped by maps fitted without them, and embedded; new ones last."""
    old = len(exact) - new
    index = torch.cat([mapped[:old], exact[old:]])
    ideal, found = (nearest(exact, corpus, NEIGHBOURS)[old:] for corpus in (exact, index))
    recall, _ = hits(found, ideal)
    counts = [(neighbours >= old).float().sum(1).mean().item() for neighbours in (ideal, found)]
    return Mixed(new, recall.mean().item(), *counts)


def nearest(queries: Tensor, corpus: Tensor, count: int) -> Tensor:
    """(n, count) the nearest other items of each of n items, nearest first."""
    similar = (queries @ corpus.T).fill_diagonal_(-2.0)
    return similar.topk(min(count, len(corpus) - 1), dim=1).indices


def neighbours_kept(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, float]:
    """(n, 10) the nearest items of each before and after, and the mean share that stayed.

    >>> neighbours_kept(torch.eye(30), 2 * torch.eye(30))[2]
    1.0
    """
    first, second = (nearest(unit, unit, NEIGHBOURS) for unit in map(normalize, (before, after)))
    return first, second, hits(first, second)[0].mean().item()


def _interval(values: Tensor) -> tuple[float, float]:
    mean, half = values.mean().item(), 1.96 * values.std().item() / math.sqrt(len(values))
    return max(mean - half, 0.0), min(mean + half, 1.0)
