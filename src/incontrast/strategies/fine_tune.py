"""Training on the new items only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from incontrast.strategies.base import Strategy, contrast
from incontrast.training.increment import Increment
from incontrast.training.sampling import new_epoch
from incontrast.training.task import Task

__all__ = ["FineTune"]


@dataclass(frozen=True, kw_only=True)
class FineTune(Strategy):
    """NCE-I on ΔX from the current weights: fast, forgets, and biased on old and new data."""

    def epoch_items(self, increment: Increment) -> int:
        return len(increment.new)

    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        while True:
            yield contrast(task, new_epoch(task.increment, self.batch, task.draws))
