"""What a kind of data must provide: the ``Domain`` base class, and collections of items."""

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
        """Whether ``take`` is slow (files to decode) and should run ahead in a thread."""
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
        """A new collection: these items, then those of ``other``."""
        ...


def item_bytes(collection: Collection) -> float:
    """Mean bytes of an item in a batch, where files are decoded."""
    decoded: float | None = getattr(collection, "item_bytes", None)
    return collection.sizes().double().mean().item() if decoded is None else decoded


class TensorCollection(Collection):
    """Items that are the rows of one tensor.

    >>> rows = TensorCollection(torch.arange(6.0).view(3, 2))
    >>> rows.take(torch.tensor([2, 0]))
    tensor([[4., 5.],
            [0., 1.]])
    """

    background: bool = False  # an attribute, so that subclasses can set it

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
                f"got {tuple(other.data.shape[1:])}"
            )
        return type(self)(torch.cat([self.data, other.data]))


def check_distinct(*columns: Tensor) -> None:
    """Refuse items that are all equal; each column has one row per item."""
    count = len(columns[0])
    if count > 1 and all(bool((column == column[:1]).all()) for column in columns):
        raise ValueError(
            f"all {count} items are the same, so there is nothing to learn: give items that differ"
        )


def tensor_of(array: NDArray[Any]) -> Tensor:
    """An array as a tensor; copied where torch cannot share it (read-only, other byte order)."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def dataset_items(dataset: Dataset[Any]) -> Iterator[Any]:
    """The items of a torch Dataset; of tuples (with labels), the first entry."""
    if isinstance(dataset, IterableDataset):
        items = iter(dataset)
    else:  # by index: not every Dataset ends its own iteration with an IndexError
        items = (dataset[index] for index in range(len(dataset)))  # type: ignore[arg-type]
    for item in items:
        yield item[0] if isinstance(item, tuple) and item else item


Sources = Sequence[tuple[Any, Tensor]]
"""The items of a batch: collections, and the indices to take from each."""


@dataclass(frozen=True, eq=False)
class Part:
    """One process's range of a batch that several processes share."""

    batch: Any  # the items of this part
    start: int  # index of its first item in the whole batch
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
    """A (nested) tuple of numbers as a tensor, moved to its device once."""
    return torch.tensor(numbers, dtype=dtype, device=device)


class Domain(ABC):
    """One kind of data: how items become batches, what a view is, which encoder fits.

    Your own domain needs three methods: ``collect``, ``views`` and ``encoder``. If a batch is not
    one tensor with one row per item, its class needs a ``join`` of batches. If the collection is
    not a ``TensorCollection``, the domain needs ``pack`` and ``unpack``. ``check_domain`` says what
    is missing or wrong.

    A domain holds settings only; no method changes it.
    """

    kind: ClassVar[Kind | None] = None
    """The kind of data in files that the domain takes; None for a user's own kind."""
    views_draw_globally: bool = False
    """Whether views draw from torch's global generators, as modules do. Such views are never made
    in a thread, where dropout could draw from the same generators at the same time."""
    views_by_part: bool = False
    """Whether ``views_of_part`` is cheap for a part of a batch. Views of a batch too large for
    memory are then made part by part, when they are embedded."""
    views_on_cpu: ClassVar[bool] = False
    """Whether views are made on the CPU and then moved to the encoder's device: for views whose
    size depends on random draws, for which an accelerator would have to wait."""

    @abstractmethod
    def collect(self, items: Any) -> Collection:
        """Check a user's items and bring them into columns."""

    @abstractmethod
    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        """Two random views of every item, for the whole batch at once, as the encoder takes them.

        Must not change ``batch``, and draw from ``generator`` alone, on the device of the batch:
        ``torch.rand(size, generator=generator, device=batch.device)``.
        """

    @abstractmethod
    def encoder(self) -> nn.Module:
        """A freshly initialised encoder: a batch of n items in, (n, d) embeddings out."""

    def collect_json(self, items: list[Any]) -> Collection:
        """Check items that came as JSON, perhaps from strangers: strings never name files.

        By default, lists of numbers.
        """
        try:
            numbers = np.asarray(items)
        except (ValueError, OverflowError) as error:
            raise ValueError("items must be lists of numbers, all of one shape") from error
        if numbers.dtype.kind not in "biuf":
            raise ValueError(f"items must be lists of numbers, got {str(items[0])[:40]!r} in them")
        return self.collect(numbers)

    def joined_views(self, batch: Any, generator: Generator) -> Any:
        """Both views as one batch: the first views of all items, then the second ones."""
        return self.join(self.views(batch, generator))

    def views_in_a_row(
        self, batches: Sequence[Sources], generators: Sequence[Generator]
    ) -> list[Any] | None:
        """``joined_views`` of several small batches at once, where that is faster, or None."""
        return None

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Any, Any]:
        """The views that ``views`` makes of these items when it gets the whole batch.

        Views must not depend on the number of processes. By default, all views of the whole batch
        are made and those of this part returned. Override it if they can be made of the part alone.
        """
        taken = [collection.take(indices) for collection, indices in part.sources]
        whole = (taken[0] if len(taken) == 1 else self.join(taken)).to(part.device)
        first, second = self.views(whole, generator)
        try:
            return first[part.range], second[part.range]
        except TypeError as error:
            raise TypeError(
                f"a {type(first).__name__} cannot be sliced, which training on several processes "
                "needs: let it take slices, or give the domain a views_of_part method"
            ) from error

    def examples(self) -> Collection | None:
        """A few generated items to try an encoder on; None if the domain generates none."""
        return None

    def fit_statistics(self, collection: Collection) -> Domain:
        """This domain completed with what the first data determine (a feature width, say)."""
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
            raise TypeError(f"batches of type {kind.__name__} need a join(), or the domain does")
        return kind.join(batches)

    def differences(self, old: Any, new: Any) -> dict[str, Any]:
        """How new items differ from old ones, besides their embeddings, for reports and JSON.

        ``old`` and ``new`` are batches, a sample of each. ``summary`` is a sentence; other entries
        are numbers. Empty by default.
        """
        return {}

    def materialise(self, collection: Any, indices: Tensor) -> Any:
        """These items in memory: a workspace stores no paths to files elsewhere."""
        return collection.select(indices)

    def pack(self, collection: Any, indices: Tensor) -> list[bytes]:
        """Each of these items as bytes, for a memory on disk. Equal items give equal bytes."""
        batch = collection.take(indices)
        if not isinstance(batch, Tensor):
            raise TypeError(
                f"{type(self).__name__} has no pack() and unpack(), which saving it or a workspace "
                f"needs: its batches are {type(batch).__name__}, not tensors"
            )
        rows = batch.numpy()
        header = f"{rows.dtype.str} {' '.join(map(str, rows.shape[1:]))}\n".encode()
        return [header + row.tobytes() for row in rows]

    def unpack(self, blobs: Sequence[bytes]) -> Collection:
        """The collection of items that ``pack`` turned into these bytes."""
        header, newline, _ = blobs[0].partition(b"\n")
        header += newline
        if any(len(b) != len(blobs[0]) or not b.startswith(header) for b in blobs):
            raise ValueError("packed items are damaged or of different kinds")
        try:
            dtype, *shape = header.decode().split()
            content = bytearray().join(blob[len(header) :] for blob in blobs)
            rows = np.frombuffer(content, dtype).reshape(len(blobs), *map(int, shape))
        except (TypeError, ValueError) as error:
            raise ValueError(f"packed items are damaged or of another kind: {error}") from error
        return TensorCollection(torch.from_numpy(rows))
