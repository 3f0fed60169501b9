"""Which items go into which batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from incontrast.training.increment import Increment

__all__ = ["Picks", "Rounds", "joint_epoch", "new_epoch", "shuffled"]


class Picks(NamedTuple):
    """The items of one batch, by their places in the old items at hand and in the new ones."""

    old: Tensor  # (o,)
    new: Tensor  # (n,)


class Rounds:
    """Draws without end, and without repeats inside a round over all items.

    What is left at the end of a round and too little for the next draw is dropped.
    """

    def __init__(self, count: int, generator: Generator) -> None:
        self.count = count
        self._generator = generator
        self._rest = torch.empty(0, dtype=torch.int64)

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


def new_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[Picks]:
    """Every new item once, and no old one."""
    nothing = torch.empty(0, dtype=torch.int64)
    for new in shuffled(len(increment.new), size, generator):
        yield Picks(nothing, new)


def joint_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[Picks]:
    """As many draws from X′ as there are items at hand, as retraining makes them.

    With all of X at hand, every item comes once. When memory holds a sample of X, a share α of
    each batch is new on average, so that X keeps its weight.
    """
    new_count = len(increment.new)
    total = increment.kept + new_count
    if increment.complete:
        for mixed in shuffled(total, size, generator):
            yield Picks(mixed[mixed >= new_count] - new_count, mixed[mixed < new_count])
        return
    old_rounds, new_rounds = Rounds(increment.kept, generator), Rounds(new_count, generator)
    if increment.kept < 2:  # too few to weigh: they go along with the new ones
        yield from (
            Picks(old_rounds.draw(1), pick) for pick in shuffled(new_count, size, generator)
        )
        return
    size = min(size, increment.kept)  # an item must not come twice in a batch
    for _ in range(-(-total // size)):
        # Rounded up or down at random, so that the mean is exact.
        new = int(size * increment.growth_ratio + torch.rand((), generator=generator).item())
        yield Picks(old_rounds.draw(size - new), new_rounds.draw(new))
