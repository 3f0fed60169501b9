"""Items that stay in a store until a batch asks for them."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from incontrast.domains.base import Collection, Domain
from incontrast.memory.store import Store

AT_ONCE = 256 * 2**20  # bytes that ``in_memory`` reads at most
SMALL = 16 * 2**20  # bytes up to which items are read once, instead of for each batch


class StoredCollection:
    """Items of a store, by their ids.

    Args:
        store: Where they are.
        domain: What turns their bytes back into items.
        ids: (n,) their ids.
        sizes: (n,) their sizes in bytes.
        keys: (n,) the memory keys that they were given when they were ingested, where these items
            are new; None for items of a memory, which has their keys.
    """

    background: ClassVar[bool] = False

    def __init__(
        self, store: Store, domain: Domain, ids: Tensor, sizes: Tensor, keys: Tensor | None = None
    ) -> None:
        self.store = store
        self.domain = domain
        self.ids = ids
        self.keys = keys
        self._sizes = sizes
        self._whole: Any = None

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
        if self._whole is None and int(self._sizes.sum()) <= SMALL:
            self._whole = self._read(torch.arange(len(self)))
        if self._whole is not None:
            return self._whole.take(indices)
        return self._read(indices).take(torch.arange(len(indices)))

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.store, self.domain, self.ids[indices], self._sizes[indices])

    def extend(self, other: Any) -> Any:
        if not isinstance(other, StoredCollection):
            # A learner that was taken out of its workspace continues by itself, in memory.
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
