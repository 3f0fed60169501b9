"""What a kind of data must know: the Domain base class, and columnar collections of items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset, IterableDataset

Kind = Literal["images", "vectors", "graphs", "texts"]


class Collection(Protocol):
    """Items in columns. A batch is taken by indices, never item by item."""

    @property
    def background(self) -> bool:
        """Whether ``take`` is slow (files to decode) and wants to be read ahead."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return int(self.sizes().sum())

    def sizes(self) -> Tensor:
        """(n,) bytes of each item, as int64."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Any:
        """The batch of these items, in this order; ``indices`` is (n,) int64 on the CPU."""
        ...

    def select(self, indices: Tensor) -> Self:
        """The collection of these items, in this order."""
        ...

    def extend(self, other: Self) -> Self:
        """The collection of these items followed by those of ``other``; both stay as they are."""
        ...


def item_bytes(collection: Collection) -> float:
    """Bytes of an item once it is taken, on average: of its sizes, unless there are files."""
    known: float | None = getattr(collection, "item_bytes", None)
    return collection.sizes().double().mean().item() if known is None else known


class TensorCollection(Collection):
    """Items that are the rows of one tensor.

    >>> rows = TensorCollection(torch.arange(6.0).view(3, 2))
    >>> rows.take(torch.tensor([2, 0]))
    tensor([[4., 5.],
            [0., 1.]])
    """

    background: bool = False  # a subclass may set it

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def sizes(self) -> Tensor:
        return torch.full((len(self),), self.data[:1].nbytes)

    def __len__(self) -> int:
        return self.data.shape[0]

    def take(self, indices: Tensor) -> Tensor:
        return self.data.index_select(0, indices)

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.data[indices])

    def extend(self, other: Self) -> Self:
        if other.data.shape[1:] != self.data.shape[1:]:
            raise ValueError(
                f"items must have shape {tuple(self.data.shape[1:])} like the first ones, "
                f"got {tuple(other.data.shape[1:])}: bring them to one shape first"
            )
        return type(self)(torch.cat([self.data, other.data]))


def check_distinct(*columns: Tensor) -> None:
    """Refuse items that are all the same in columns of a row each: nothing tells them apart."""
    count = len(columns[0])
    if count > 1 and all(bool((column == column[:1]).all()) for column in columns):
        raise ValueError(
            f"all {count} items are the same, so there is nothing to learn: give items that differ"
        )


def tensor_of(array: NDArray[Any]) -> Tensor:
    """An array as a tensor; copied where torch cannot share it (read-only, or of other bytes)."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def dataset_items(dataset: Dataset[Any]) -> Iterator[Any]:
    """The items of a torch Dataset, without what stands beside them in tuples."""
    # Not every Dataset ends its own iteration with an IndexError.
    if isinstance(dataset, IterableDataset):
        items = iter(dataset)
    else:
        items = (dataset[index] for index in range(len(dataset)))  # type: ignore[arg-type]
    for item in items:
        yield item[0] if isinstance(item, tuple) and item else item


Sources = Sequence[tuple[Any, Tensor]]
"""The items of a batch: collections, and the places in them that it takes."""


@dataclass(frozen=True, eq=False)
class Part:
    """A range of a batch whose other items are with other processes."""

    batch: Any  # the items of this part
    start: int  # where they begin in the whole batch
    sources: Sources  # of the whole batch
    device: torch.device  # of the batch

    @property
    def range(self) -> slice:
        """Where the items of this part are in the whole batch."""
        return slice(self.start, self.start + len(self.batch))

    @property
    def total(self) -> int:
        """Items of the whole batch."""
        return sum(len(indices) for _, indices in self.sources)


@lru_cache(maxsize=64)
def constant(numbers: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tuple of numbers (or of tuples) as a tensor, moved to its device once."""
    return torch.tensor(numbers, dtype=dtype, device=device)


class Domain(ABC):
    """One kind of data: how items become batches, what a view is, which encoder fits.

    A domain of your own needs three methods: ``collect``, ``views`` and ``encoder``.
    Where a batch is not one tensor with an item per row, its class needs a ``join`` of batches, and
    where its collection is not a ``TensorCollection``, the domain needs ``pack`` and ``unpack``.
    ``check_domain`` tells what is missing or wrong.

    Domains hold configuration only and are never changed by what they see.
    """

    kind: ClassVar[Kind | None] = None
    """The kind of data in files that the domain takes; None for one of a user's own."""
    views_draw_globally: bool = False
    """Whether views draw from torch's own generators, as modules do: then never in a thread, where
    dropout would draw from them at the same time."""
    views_by_part: bool = False
    """Whether ``views_of_part`` costs little for a part of a batch: then views of a batch beyond
    memory are made when they are embedded, part by part."""
    views_on_cpu: ClassVar[bool] = False
    """Whether views are made on the CPU and moved to the encoder's device afterwards.

    For views whose size depends on what is drawn, for which a device would have to be waited for.
    """

    @abstractmethod
    def collect(self, items: Any) -> Collection:
        """Check what a user has and bring it into columns."""

    @abstractmethod
    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        """Two random views of every item, for the whole batch at once, as the encoder takes them.

        ``batch`` stays as it is. All randomness comes from ``generator``, which draws where the
        batch is: ``torch.rand(size, generator=generator, device=batch.device)``.
        """

    @abstractmethod
    def encoder(self) -> nn.Module:
        """A freshly initialised encoder: a batch of n items in, (n, d) embeddings out."""

    def collect_json(self, items: list[Any]) -> Collection:
        """Check items that came as JSON, from whoever may ask: no file is opened for them.

        Numbers in lists, unless a domain has a method of its own: ``collect`` might take strings
        for paths.
        """
        try:
            numbers = np.asarray(items)
        except (ValueError, OverflowError) as error:
            raise ValueError("items must be lists of numbers, all of one shape") from error
        if numbers.dtype.kind not in "biuf":
            raise ValueError(f"items must be lists of numbers, got {str(items[0])[:40]!r} in them")
        return self.collect(numbers)

    def joined_views(self, batch: Any, generator: Generator) -> Any:
        """What ``views`` makes as one batch: first views of all items, then second ones."""
        return self.join(self.views(batch, generator))

    def views_in_a_row(
        self, batches: Sequence[Sources], generators: Sequence[Generator]
    ) -> list[Any] | None:
        """``joined_views`` of several small batches, where few and large operations are faster.

        Each batch is a row of items, from collections and the places in them. None, where making
        one after the other is as good.
        """
        return None

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Any, Any]:
        """What ``views`` makes of these items when it is given the whole batch.

        With several processes, views must not depend on how many there are. This takes the whole
        batch, makes all views and keeps some, which is always right. A domain that can draw for
        all items and change only its own is faster with a method of its own.
        """
        taken = [collection.take(indices) for collection, indices in part.sources]
        whole = (taken[0] if len(taken) == 1 else self.join(taken)).to(part.device)
        views = self.views(whole, generator)
        try:
            return views[0][part.range], views[1][part.range]
        except TypeError as error:
            raise TypeError(
                f"a {type(views[0]).__name__} cannot be sliced, which training on several "
                "processes needs: give it slices, or the domain a views_of_part of its own"
            ) from error

    def examples(self) -> Collection | None:
        """A few items of the domain's own making, to try an encoder on; None if it makes none."""
        return None

    def fit_statistics(self, collection: Collection) -> Domain:
        """This domain with what only the first data can tell (a feature width, say) filled in."""
        return self

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that make this domain, for saving it."""
        return dict(vars(self))

    def prepare(self, batch: Any) -> Any:
        """The items themselves, without random changes, as the encoder takes them."""
        return batch

    def join(self, batches: Sequence[Any]) -> Any:
        """One batch that holds the items of all ``batches`` in order."""
        kind = type(batches[0])
        if issubclass(kind, Tensor):
            return torch.cat(list(batches))
        if not hasattr(kind, "join"):
            raise TypeError(
                f"batches that are {kind.__name__} need join(), of theirs or the domain's"
            )
        return kind.join(batches)

    def differences(self, old: Any, new: Any) -> dict[str, Any]:
        """What tells new items from old ones besides their embeddings, for people and for JSON.

        ``old`` and ``new`` are batches, a sample of each. ``summary`` is a sentence, what else
        there is are its figures; nothing by default.
        """
        return {}

    def materialise(self, collection: Any, indices: Tensor) -> Any:
        """These items themselves, in memory: a workspace keeps no paths to files elsewhere."""
        return collection.select(indices)

    def pack(self, collection: Any, indices: Tensor) -> list[bytes]:
        """Each of these items as bytes, for a memory on disk. Equal items give equal bytes."""
        rows = collection.take(indices).numpy()
        header = f"{rows.dtype.str} {' '.join(map(str, rows.shape[1:]))}\n".encode()
        return [header + row.tobytes() for row in rows]

    def unpack(self, blobs: Sequence[bytes]) -> Collection:
        """The collection of items that ``pack`` turned into these bytes."""
        header, _, _ = blobs[0].partition(b"\n")
        start = len(header) + 1
        try:
            kind, *shape = header.decode().split(" ")
            rows = [np.frombuffer(blob[start:], dtype=kind) for blob in blobs]
            data = np.stack(rows).reshape(len(blobs), *(int(side) for side in shape if side))
        except (TypeError, ValueError) as error:
            raise ValueError(f"packed items are damaged or of another kind: {error}") from error
        if any(not blob.startswith(header + b"\n") for blob in blobs):
            raise ValueError("packed items are damaged or of different kinds")
        return TensorCollection(torch.from_numpy(data))
