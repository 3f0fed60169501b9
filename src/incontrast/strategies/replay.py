"""Training on the new items and some old ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from incontrast.strategies.strategy import Strategy
from incontrast.training.task import BatchIndices, Increment, Task, shuffled


@dataclass(frozen=True, kw_only=True)
class Replay(Strategy):
    """NCE-I on ΔX mixed with a fixed part of the old items, from the current weights.

    Args:
        share: Part of the stored old items that is mixed in, drawn once per update.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}: it is a part of X")

    def replayed(self, increment: Increment) -> int:
        """How many old items are mixed in."""
        return math.ceil(increment.stored * self.share)

    def epoch_items(self, increment: Increment) -> int:
        return increment.new_count + self.replayed(increment)

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        new, count = task.increment.new_count, self.replayed(task.increment)
        order = torch.randperm(task.increment.stored, generator=task.generator("replay"))
        for mixed in shuffled(new + count, self.batch_size, task.draws):
            yield BatchIndices(order[mixed[mixed >= new] - new], mixed[mixed < new])
