"""Items that stay in a store until a batch asks for them."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from incontrast.domains.base import Collection, Domain
from incontrast.memory.memory import Memory
from incontrast.memory.policies import Policy
from incontrast.memory.store import FORGOTTEN, PRESENT, Store

__all__ = ["StoredCollection", "remembered"]

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


def remembered(
    store: Store, domain: Domain, policy: Policy, *, arrivals: int, threshold: float
) -> Memory:
    """The memory after so many arrivals, over a store.

    Keys never change, so what a memory holds follows from these two numbers: the items that had
    arrived, whose keys are below the threshold, and that were not forgotten since.
    """
    keys, sizes, states = store.columns(arrivals)
    if arrivals == 0:
        return Memory(policy)
    kept = ((states == PRESENT) & (keys < threshold) & policy.can_hold(sizes)).nonzero()[:, 0]
    items = StoredCollection(store, domain, kept, sizes[kept]) if len(kept) else None
    return Memory(
        policy,
        items=items,
        ids=kept,
        keys=keys[kept],
        arrivals=arrivals,
        forgotten=(states == FORGOTTEN).nonzero()[:, 0],
        threshold=threshold,
    )
