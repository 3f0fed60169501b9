"""Pairs that belong together: a query and its clicked item, a photograph and a later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain, item_bytes


@dataclass(frozen=True, eq=False)
class PairBatch:
    """The first and the second items of some pairs."""

    first: Any
    second: Any

    def __len__(self) -> int:
        return len(self.first)

    def to(self, device: Any) -> PairBatch:
        return PairBatch(self.first.to(device), self.second.to(device))


class PairCollection(Collection):
    """Two collections of one length, side by side."""

    def __init__(self, first: Collection, second: Collection) -> None:
        self.first, self.second = first, second

    @property
    def background(self) -> bool:
        return self.first.background or self.second.background

    @property
    def item_bytes(self) -> float:
        return item_bytes(self.first) + item_bytes(self.second)

    def sizes(self) -> Tensor:
        return self.first.sizes() + self.second.sizes()

    def __len__(self) -> int:
        return len(self.first)

    def take(self, indices: Tensor) -> PairBatch:
        return PairBatch(self.first.take(indices), self.second.take(indices))

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.first.select(indices), self.second.select(indices))

    def extend(self, other: Self) -> Self:
        return type(self)(self.first.extend(other.first), self.second.extend(other.second))


@dataclass(frozen=True)
class Pairs(Domain):
    """Pairs of items of one kind that belong together, and are each other's positives.

    ``fit`` and ``update`` take ``(first, second)``: two collections of one length, as the domain
    takes them. They also take single items, as ``embed`` does: each is then a pair with itself.

    Args:
        domain: The kind of the items: ``Images(...)``, ``Vectors(...)``, ``Graphs()``. ``Text``
            takes pairs without this class.
        augment: Whether the loss sees random views of the two items, or the items themselves.

    >>> import torch
    >>> from incontrast import Vectors
    >>> clicks = Pairs(Vectors(2, mean=(0.0, 0.0), std=(1.0, 1.0)), augment=False)
    >>> pairs = clicks.collect((torch.zeros(3, 2), torch.ones(3, 2)))
    >>> first, second = clicks.views(pairs.take(torch.arange(3)), torch.Generator())
    >>> first.sum().item(), second.sum().item()
    (0.0, 6.0)
    """

    domain: Domain
    augment: bool = True

    @property
    def views_draw_globally(self) -> bool:  # type: ignore[override]
        return self.domain.views_draw_globally

    @property
    def views_on_cpu(self) -> bool:  # type: ignore[override]
        return self.domain.views_on_cpu

    def collect(self, items: Any) -> PairCollection:
        if isinstance(items, PairCollection):
            return items
        if not isinstance(items, tuple) or len(items) != 2:
            return _with_itself(self.domain.collect(items))
        first, second = map(self.domain.collect, items)
        if len(first) != len(second):
            counts = f"{len(first)} and {len(second)}"
            raise ValueError(f"pairs need as many first items as second ones, got {counts}")
        return PairCollection(first, second)

    def collect_json(self, items: list[Any]) -> PairCollection:
        return _with_itself(self.domain.collect_json(items))

    def examples(self) -> PairCollection | None:
        items = self.domain.examples()
        return None if items is None else _with_itself(items)

    def fit_statistics(self, collection: Any) -> Pairs:
        both = collection.first.extend(collection.second)
        return replace(self, domain=self.domain.fit_statistics(both))

    def views(self, batch: PairBatch, generator: Generator) -> tuple[Any, Any]:
        if not self.augment:
            return self.domain.prepare(batch.first), self.domain.prepare(batch.second)
        # Views of both sides at once, so that draws do not depend on which items are pairs.
        first, second = self.domain.views(self.domain.join([batch.first, batch.second]), generator)
        return first[: len(batch)], second[len(batch) :]

    def encoder(self) -> nn.Module:
        return self.domain.encoder()

    def prepare(self, batch: PairBatch) -> Any:
        """The first items, which are the ones that are embedded."""
        return self.domain.prepare(batch.first)

    def join(self, batches: Sequence[Any]) -> Any:
        """One batch of several batches of pairs, or of views."""
        if not isinstance(batches[0], PairBatch):
            return self.domain.join(batches)
        first = self.domain.join([batch.first for batch in batches])
        second = self.domain.join([batch.second for batch in batches])
        return PairBatch(first, second)

    def materialise(self, collection: PairCollection, indices: Tensor) -> PairCollection:
        first = self.domain.materialise(collection.first, indices)
        return PairCollection(first, self.domain.materialise(collection.second, indices))

    def pack(self, collection: PairCollection, indices: Tensor) -> list[bytes]:
        firsts = self.domain.pack(collection.first, indices)
        seconds = self.domain.pack(collection.second, indices)
        pairs = zip(firsts, seconds, strict=True)
        return [len(first).to_bytes(8, "big") + first + second for first, second in pairs]

    def unpack(self, blobs: Sequence[bytes]) -> PairCollection:
        ends = [8 + int.from_bytes(blob[:8], "big") for blob in blobs]
        if any(end > len(blob) for end, blob in zip(ends, blobs, strict=True)):
            raise ValueError("packed pairs are damaged or of another kind")
        firsts = [blob[8:end] for end, blob in zip(ends, blobs, strict=True)]
        seconds = [blob[end:] for end, blob in zip(ends, blobs, strict=True)]
        return PairCollection(self.domain.unpack(firsts), self.domain.unpack(seconds))


def _with_itself(items: Collection) -> PairCollection:
    return PairCollection(items, items)
