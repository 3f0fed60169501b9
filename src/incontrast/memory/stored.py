"""Items that stay in a store until a batch asks for them."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from incontrast.domains.base import Collection, Domain
from incontrast.memory.memory import Memory
from incontrast.memory.policies import Policy
from incontrast.memory.store import FORGOTTEN, PRESENT, Store

__all__ = ["Extent", "StoredCollection", "remembered"]

AT_ONCE = 256 * 2**20  # bytes that ``in_memory`` reads at most


class StoredCollection:
    """Items of a store, by their ids.

    Args:
        store: Where they are.
        domain: What turns their bytes back into items.
        ids: (n,) their ids.
        sizes: (n,) their sizes in bytes.
    """

    background: ClassVar[bool] = False

    def __init__(self, store: Store, domain: Domain, ids: Tensor, sizes: Tensor) -> None:
        self.store = store
        self.domain = domain
        self.ids = ids
        self._sizes = sizes

    @property
    def nbytes(self) -> int:
        return 16 * len(self)

    def sizes(self) -> Tensor:
        return self._sizes

    def __len__(self) -> int:
        return len(self.ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredCollection:
        return self  # it never changes, and a database connection cannot be copied

    def take(self, indices: Tensor) -> Any:
        return self._read(indices).take(torch.arange(len(indices)))

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.store, self.domain, self.ids[indices], self._sizes[indices])

    def extend(self, other: Any) -> Any:
        if not isinstance(other, StoredCollection):
            # A learner that was taken out of its workspace goes on by itself, in memory.
            whole: Any = self._read(torch.arange(len(self)))
            return whole.extend(other)
        if other.store is not self.store:
            raise ValueError("items of two stores cannot be one collection: append them to one")
        return type(self)(
            self.store,
            self.domain,
            torch.cat([self.ids, other.ids]),
            torch.cat([self._sizes, other._sizes]),
        )

    def in_memory(self) -> Collection:
        """These items in memory; of very many, an evenly spaced part that fits there."""
        count = max(1, min(len(self), int(AT_ONCE / max(1.0, self._sizes.double().mean().item()))))
        return self._read(torch.linspace(0, len(self) - 1, count).round().long())

    def _read(self, indices: Tensor) -> Collection:
        return self.domain.unpack(self.store.read(self.ids[indices].tolist()))


class Extent(NamedTuple):
    """What of a store a memory holds.

    Keys never change, so it follows from a few numbers: the items that had arrived, other than
    those that came in after a version that was rolled back, with keys below the threshold.

    Args:
        arrivals: Ids below this one had been given to items.
        threshold: Keys from here on are not kept.
        skipped: Ranges of ids, from and up to, that were given to items that are not of this line.
    """

    arrivals: int
    threshold: float
    skipped: tuple[tuple[int, int], ...] = ()

    def elsewhere(self) -> Tensor:
        """(arrivals,) whether an id was skipped."""
        outside = torch.zeros(self.arrivals, dtype=torch.bool)
        for first, end in self.skipped:
            outside[first:end] = True
        return outside

    def holds(self, keys: Tensor) -> Tensor:
        """(arrivals,) whether an item is kept, from all keys there are."""
        return (keys[: self.arrivals] < self.threshold) & ~self.elsewhere()


def remembered(store: Store, domain: Domain, policy: Policy, extent: Extent) -> Memory:
    """The memory of this extent over a store, without what was forgotten since."""
    keys, sizes, states = store.columns(extent.arrivals)
    if extent.arrivals == 0:
        return Memory(policy)
    kept = ((states == PRESENT) & extent.holds(keys) & policy.can_hold(sizes)).nonzero()[:, 0]
    items = StoredCollection(store, domain, kept, sizes[kept]) if len(kept) else None
    return Memory(
        policy,
        items=items,
        ids=kept,
        keys=keys[kept],
        arrivals=extent.arrivals,
        forgotten=((states == FORGOTTEN) | extent.elsewhere()).nonzero()[:, 0],
        threshold=extent.threshold,
    )
