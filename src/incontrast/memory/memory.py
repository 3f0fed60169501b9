"""The old items that are stored. A memory never changes: admitting items makes another one.

A policy gives every item a key when it arrives, and the items with the smallest keys are stored.
Random keys make a reservoir (a uniform sample of everything seen), negated arrival times a queue.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from incontrast.bounds import check_whole, given
from incontrast.domains.base import Collection, Domain
from incontrast.memory.store import Extent, Store

AT_ONCE = 256 * 2**20  # bytes that ``in_memory`` reads at most
SMALL = 16 * 2**20  # bytes up to which items are read once, instead of for each batch
NO_IDS = torch.empty(0, dtype=torch.int64)
NO_KEYS = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """Limits of a memory.

    Args:
        items: Items at most; None for no limit.
        bytes: Bytes at most; None for no limit.
    """

    items: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        limits = {"a memory's items": self.items, "a memory's bytes": self.bytes}
        check_whole(1, **given(**limits))

    @abstractmethod
    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        """(n,) float64 keys for items with these ids."""

    def fits(self, sizes: Tensor) -> int:
        """How many of the items with these (n,) sizes in bytes fit, taken from the front."""
        count = len(sizes)
        if self.items is not None:
            count = min(count, self.items)
        if self.bytes is not None:
            count = min(count, int((sizes.cumsum(0) <= self.bytes).sum()))
        return count


@dataclass(frozen=True, kw_only=True)
class KeepAll(Policy):
    """Keep every item."""

    def __post_init__(self) -> None:
        if self.items is not None or self.bytes is not None:
            raise ValueError("KeepAll has no limit: use Reservoir or Queue for a limited memory")

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return torch.zeros(len(ids), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Reservoir(Policy):
    """Keep a uniform random sample of everything seen."""

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return torch.rand(len(ids), dtype=torch.float64, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Queue(Policy):
    """Keep the most recent items: what an update then calls X is the recent past."""

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return -ids.to(torch.float64)


@dataclass(frozen=True, eq=False)
class StoredCollection:
    """Items that stay in a store until a batch needs them."""

    background: ClassVar[bool] = False

    store: Store
    domain: Domain
    ids: Tensor  # (n,)
    _sizes: Tensor  # (n,)
    keys: Tensor | None = None  # (n,) of new items: the memory keys from when they were ingested

    @property
    def nbytes(self) -> int:
        return 16 * len(self)

    def sizes(self) -> Tensor:
        return self._sizes

    def __len__(self) -> int:
        return len(self.ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredCollection:
        return self  # immutable, and a database connection cannot be copied

    def take(self, indices: Tensor) -> Any:
        return self._read(indices).take(torch.arange(len(indices)))

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.store, self.domain, self.ids[indices], self._sizes[indices])

    def extend(self, other: Any) -> Any:
        if not isinstance(other, StoredCollection):
            # A learner that was taken out of its workspace continues in memory.
            whole: Any = self._read(torch.arange(len(self)))
            return whole.extend(other)
        if other.store is not self.store:
            raise ValueError("items of two stores cannot be one collection: append them to one")
        ids, sizes = [self.ids, other.ids], [self._sizes, other._sizes]
        return type(self)(self.store, self.domain, torch.cat(ids), torch.cat(sizes))

    def resident(self) -> Collection:
        """These items in memory if they are few, else as they are."""
        few = int(self._sizes.sum()) <= SMALL
        return self._read(torch.arange(len(self))) if few else self

    def in_memory(self) -> Collection:
        """These items in memory; an evenly spaced part of them if there are too many."""
        count = max(1, min(len(self), int(AT_ONCE / max(1.0, self._sizes.double().mean().item()))))
        return self._read(torch.linspace(0, len(self) - 1, count).round().long())

    def _read(self, indices: Tensor) -> Collection:
        return self.domain.unpack(self.store.read(self.ids[indices].tolist()))


@dataclass(frozen=True, eq=False)
class Memory:
    """The stored old items, and how many items they stand for.

    An item's id is its place in the order of arrival, from 0. An item is stored if it was not
    forgotten and its key is below ``threshold``, which only ever falls. So a reservoir stays a
    uniform sample of what was seen and not forgotten.
    """

    policy: Policy = KeepAll()
    items: Collection | None = None  # the stored ones, in order of arrival; None if there are none
    ids: Tensor = NO_IDS  # (n,) of the stored items
    keys: Tensor = NO_KEYS  # (n,) likewise
    arrivals: int = 0  # the number of ids in use, so the next item's id
    forgotten: Tensor = NO_IDS  # (m,) of items that were forgotten, or belong to other versions
    threshold: float = math.inf  # items with keys from here on are not stored
    elsewhere: int = 0  # seen before the first arrival; the first stored items are a sample of them

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def over(cls, store: Store, domain: Domain, policy: Policy, extent: Extent) -> Memory:
        """The memory of this extent over a store, without what was forgotten since."""
        items = store.columns(extent.arrivals)
        kept = extent.stored(items, policy.bytes).nonzero()[0]
        ids, sizes = torch.from_numpy(kept), torch.from_numpy(items["size"][kept])
        return cls(
            policy,
            items=StoredCollection(store, domain, ids, sizes) if len(kept) else None,
            ids=ids,
            keys=torch.from_numpy(items["key"][kept]),
            arrivals=extent.arrivals,
            forgotten=torch.from_numpy(extent.forgotten(items).nonzero()[0]),
            threshold=extent.threshold,
            elsewhere=extent.elsewhere,
        )

    @classmethod
    def for_sample(cls, policy: Policy, sample: int, seen: int | None = None) -> Memory:
        """An empty memory whose first ``sample`` arrivals stand for all ``seen`` items.

        Later items are stored at the rate of this sample, so that the memory stays uniform.
        """
        if seen is None or seen == sample:
            return cls(policy)
        if seen < sample:
            raise ValueError(
                f"seen_count must count every old item, got {seen} for {sample} of them"
            )
        if isinstance(policy, KeepAll):
            raise ValueError(
                f"{sample} items of {seen} are a sample, which KeepAll() cannot continue: use "
                "Reservoir()"
            )
        return cls(policy, threshold=sample / seen, elsewhere=seen - sample)

    @property
    def seen(self) -> int:
        """N: all items that were seen and not forgotten, stored or not."""
        return self.arrivals - len(self.forgotten) + self.elsewhere

    def draw_keys(self, ids: Tensor, generator: Generator) -> Tensor:
        """(n,) keys for items that arrive with these ids."""
        keys = self.policy.keys(ids, generator)
        # The first arrivals are the sample: of all that was seen, the items with the smallest keys.
        return keys * self.threshold if self.elsewhere and not self.arrivals else keys

    def admit(self, new: Collection, generator: Generator) -> Memory:
        """The memory after these items have arrived.

        Items in a store got their ids and keys when they were ingested. Ids between them belong to
        items that were forgotten since, or to a version that was rolled back.
        """
        if isinstance(new, StoredCollection) and new.keys is not None:
            new_ids, new_keys = new.ids, new.keys
        else:
            new_ids = torch.arange(self.arrivals, self.arrivals + len(new))
            new_keys = self.draw_keys(new_ids, generator)
        used = torch.arange(self.arrivals, int(new_ids[-1]) + 1)
        keys, ids = torch.cat([self.keys, new_keys]), torch.cat([self.ids, new_ids])
        sizes = new.sizes() if self.items is None else torch.cat([self.items.sizes(), new.sizes()])

        possible = sizes <= (math.inf if self.policy.bytes is None else self.policy.bytes)
        if not possible.any():
            raise ValueError(
                f"the memory is too small for a single item: {self.policy}, "
                f"an item has {int(sizes.min())} bytes or more"
            )
        order = keys.argsort(stable=True)
        order = order[(keys[order] < self.threshold) & possible[order]]
        count = self.policy.fits(sizes[order])
        threshold = float(keys[order[count]]) if count < len(order) else self.threshold
        kept = order[:count].sort().values
        return replace(
            self,
            items=self._merge(new, kept),
            ids=ids[kept],
            keys=keys[kept],
            arrivals=self.arrivals + len(used),
            forgotten=torch.cat([self.forgotten, used[~torch.isin(used, new_ids)]]),
            threshold=threshold,
        )

    def _merge(self, new: Collection, kept: Tensor) -> Collection | None:
        if self.items is None:
            # A copy, even of everything: the memory must not change with its owner's array.
            return new.select(kept) if len(kept) else None
        of_old, of_new = kept[kept < len(self)], kept[kept >= len(self)] - len(self)
        old = _only(self.items, of_old)
        return old.extend(_only(new, of_new)) if len(of_new) else old

    def forget(self, ids: Iterable[int]) -> Memory:
        """The memory without these items, as if they had never arrived.

        Raises:
            KeyError: There never was an item with one of the ids; nothing is forgotten then.
        """
        unwanted = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        unknown = unwanted[(unwanted < 0) | (unwanted >= self.arrivals)].tolist()
        if unknown:
            raise KeyError(
                f"no items have the ids {unknown[:5]}: ids go from 0 to {self.arrivals - 1}"
            )
        kept = (~torch.isin(self.ids, unwanted)).nonzero()[:, 0]
        return replace(
            self,
            items=_only(self.items, kept) if self.items is not None and len(kept) else None,
            ids=self.ids[kept],
            keys=self.keys[kept],
            forgotten=torch.unique(torch.cat([self.forgotten, unwanted])),
        )


def _only(items: Collection, indices: Tensor) -> Collection:
    return items if len(indices) == len(items) else items.select(indices)
