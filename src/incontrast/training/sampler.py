"""Which items there are to train on, and which of them go into which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from incontrast.domains.base import Collection

__all__ = [
    "BatchIndices",
    "Increment",
    "InfiniteSampler",
    "joint_epoch",
    "new_epoch",
    "shuffled",
]

NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Increment:
    """Old and new data of one update.

    Args:
        old: The old items stored, a uniform sample of X (or all of it); None before the first fit.
        new: ΔX.
        seen: N, the items that X stands for, at least as many as ``old`` holds.
    """

    old: Collection | None
    new: Collection
    seen: int

    def __post_init__(self) -> None:
        if self.stored > self.seen:
            raise ValueError(
                f"seen must count every old item, got {self.seen} seen but {self.stored} stored"
            )

    @property
    def stored(self) -> int:
        """Old items stored."""
        return 0 if self.old is None else len(self.old)

    @property
    def complete(self) -> bool:
        """Whether every old item is stored."""
        return self.stored == self.seen

    @property
    def growth_ratio(self) -> float:
        """α = ΔN / (N + ΔN), from items *seen*."""
        return len(self.new) / (self.seen + len(self.new))


class BatchIndices(NamedTuple):
    """The items of one batch, by their places in the stored old items and in the new ones."""

    old: Tensor  # (o,)
    new: Tensor  # (n,)


class InfiniteSampler:
    """Draws without end, and without repeats inside a round over all items.

    What is left at the end of a round and too little for the next draw is dropped.
    """

    def __init__(self, count: int, generator: Generator) -> None:
        self.count = count
        self._generator = generator
        self._rest = NONE

    def draw(self, size: int) -> Tensor:
        """``size`` distinct items; all of them, if there are no more."""
        size = min(size, self.count)
        if len(self._rest) < size:
            self._rest = torch.randperm(self.count, generator=self._generator)
        drawn, self._rest = self._rest[:size], self._rest[size:]
        return drawn


def shuffled(count: int, size: int, generator: Generator) -> Iterator[Tensor]:
    """Every item once, in batches of nearly equal size, none larger than ``size``.

    >>> [len(batch) for batch in shuffled(33, 32, Generator().manual_seed(0))]
    [17, 16]
    """
    order = torch.randperm(count, generator=generator)
    return iter(torch.tensor_split(order, -(-count // size)))


def new_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[BatchIndices]:
    """Every new item once, and no old one."""
    for new in shuffled(len(increment.new), size, generator):
        yield BatchIndices(NONE, new)


def joint_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[BatchIndices]:
    """As many draws from X′ as there are stored items, as retraining makes them.

    With all of X stored, every item comes once. When memory holds a sample of X, a share α of
    each batch is new on average, so that X keeps its weight.
    """
    new_count = len(increment.new)
    total = increment.stored + new_count
    if increment.complete:
        for mixed in shuffled(total, size, generator):
            yield BatchIndices(mixed[mixed >= new_count] - new_count, mixed[mixed < new_count])
        return
    old, new = (InfiniteSampler(count, generator) for count in (increment.stored, new_count))
    if increment.stored < 2:  # too few to weigh: they come along with the new ones
        yield from (
            BatchIndices(old.draw(1), batch) for batch in shuffled(new_count, size, generator)
        )
        return
    size = min(size, increment.stored)  # an item must not come twice in a batch
    for _ in range(-(-total // size)):
        # Rounded up or down at random, so that the mean is exact.
        count = int(size * increment.growth_ratio + torch.rand((), generator=generator).item())
        yield BatchIndices(old.draw(size - count), new.draw(count))
