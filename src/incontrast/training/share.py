"""The part of a batch that one process takes, and views of it.

A batch is a row of items, all old ones first. Processes take ranges of that row, so that what they
gather in order is the row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

from incontrast.domains.base import Collection, Domain, Part
from incontrast.training.engine import Engine

__all__ = ["Sources", "share_of", "take", "two_views"]

Sources = Sequence[tuple[Collection, Tensor]]
"""The items of a batch: collections, and the places in them that it takes."""


def share_of(count: int, rank: int, processes: int) -> range:
    """The range of so many items that one process takes: nearly equal, in order, each item once.

    >>> [share_of(7, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    size, rest = divmod(count, processes)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def take(domain: Domain, sources: Sources, engine: Engine) -> Any:
    """This process's share of a batch, on its device. Nothing else of it is read."""
    share = engine.share(_count(sources))
    parts, before = [], 0
    for collection, indices in sources:
        mine = indices[max(share.start - before, 0) : max(share.stop - before, 0)]
        before += len(indices)
        if len(mine):
            parts.append(collection.take(mine))
    if not parts:  # more processes than items
        collection, indices = sources[0]
        parts.append(collection.take(indices[:0]))
    return engine.place(parts[0] if len(parts) == 1 else domain.join(parts))


def two_views(
    domain: Domain, batch: Any, sources: Sources, generator: Generator, engine: Engine
) -> tuple[Any, Any]:
    """The views of this process's share of a batch, as one process would draw them.

    Args:
        domain: The kind of data.
        batch: What ``take`` gave.
        sources: The items of the whole batch.
        generator: The same in all processes.
        engine: Where to compute.
    """
    if engine.processes == 1:
        return domain.views(batch, generator)
    start = engine.share(_count(sources)).start
    return domain.views_of_part(Part(batch, start, sources, engine.place), generator)


def _count(sources: Sources) -> int:
    return sum(len(indices) for _, indices in sources)
