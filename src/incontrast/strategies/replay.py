"""Training on the new items and some old ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from incontrast.strategies.base import Strategy, contrast
from incontrast.training.increment import Increment
from incontrast.training.sampling import Picks, shuffled
from incontrast.training.task import Task

__all__ = ["Replay"]


@dataclass(frozen=True, kw_only=True)
class Replay(Strategy):
    """NCE-I on ΔX mixed with a fixed part of the old items, from the current weights.

    Args:
        share: Part of the old items at hand that is mixed in, drawn once per update.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}: it is a part of X")

    def epoch_items(self, increment: Increment) -> int:
        return len(increment.new) - int(-increment.kept * self.share // 1)

    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        kept, new = task.increment.kept, len(task.increment.new)
        count = -int(-kept * self.share // 1)
        replayed = torch.randperm(kept, generator=task.generator("replay"))[:count]

        def epoch() -> Iterator[Picks]:
            for mixed in shuffled(new + count, self.batch, task.draws):
                yield Picks(replayed[mixed[mixed >= new] - new], mixed[mixed < new])

        while True:
            yield contrast(task, epoch())
