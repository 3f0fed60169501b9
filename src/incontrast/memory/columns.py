"""What is known of every item that arrived, some thousand items to a row with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GONE, PRESENT, FORGOTTEN = 0, 1, 2
KINDS = ("<f8", "<i8", "u1", "V16")  # of keys, sizes, states, hashes


class Columns(NamedTuple):
    """What is known of every item that arrived, kept or not."""

    keys: NDArray[np.float64]  # (n,)
    sizes: NDArray[np.int64]  # (n,) bytes
    states: NDArray[np.uint8]  # (n,) GONE, PRESENT or FORGOTTEN


class Extent(NamedTuple):
    """What of a store the memory of a learner holds.

    Keys never change, so it follows from a few numbers: the items that had arrived, other than
    those of versions that were rolled back, with keys below the threshold.

    Args:
        arrivals: Ids below this one had been given to items.
        threshold: Keys from here on are not kept.
        skipped: Ranges of ids, from and up to, that were given to items of other versions.
    """

    arrivals: int
    threshold: float
    skipped: tuple[tuple[int, int], ...] = ()

    def holds(self, keys: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(arrivals,) whether an item is kept, from all keys there are."""
        held: NDArray[np.bool_] = (keys[: self.arrivals] < self.threshold) & ~self._skips()
        return held

    def stored(self, columns: Columns, largest: int | None = None) -> NDArray[np.bool_]:
        """(arrivals,) whether an item is kept and not forgotten since.

        Args:
            columns: What is known of the items.
            largest: Bytes that the memory has room for: larger items were never kept.
        """
        stored: NDArray[np.bool_] = (columns.states == PRESENT) & self.holds(columns.keys)
        if largest is not None:
            stored &= columns.sizes <= largest
        return stored

    def forgotten(self, columns: Columns) -> NDArray[np.bool_]:
        """(arrivals,) whether an item was forgotten, or is of another version."""
        forgotten: NDArray[np.bool_] = (columns.states == FORGOTTEN) | self._skips()
        return forgotten

    def _skips(self) -> NDArray[np.bool_]:
        outside = np.zeros(self.arrivals, bool)
        for first, end in self.skipped:
            outside[first:end] = True
        return outside


class Chunk(NamedTuple):
    """A row of columns."""

    first: int
    keys: NDArray[np.float64]
    sizes: NDArray[np.int64]
    states: NDArray[np.uint8]
    hashes: NDArray[np.void]  # (n,) of 16 bytes
    end: int  # the id after its last item's

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Chunk | None:
        """What ``row`` gave; None if it is not that any more."""
        first, checksum, *columns = row
        whole = all(isinstance(column, bytes) for column in columns)
        if not whole or checksum != _checksum(first, columns):
            return None
        parts: list[Any] = [np.frombuffer(*part) for part in zip(columns, KINDS, strict=True)]
        return cls._make([first, *parts, first + len(parts[0])])

    def row(self) -> tuple[Any, ...]:
        """As a database holds it."""
        columns = [column.tobytes() for column in self[1:5]]
        return (self.first, _checksum(self.first, columns), *columns)

    def places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in this chunk the items with these ids are, of those that it holds."""
        return ids[(ids >= self.first) & (ids < self.end)] - self.first


def _checksum(first: int, columns: Sequence[bytes]) -> int:
    total = zlib.crc32(str(first).encode())
    for column in columns:
        total = zlib.crc32(column, total)
    return total
