"""Training on everything, from fresh or from current weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incontrast.strategies.base import Strategy, contrast
from incontrast.training.sampling import joint_epoch
from incontrast.training.task import Task

__all__ = ["Retrain", "WarmStart"]


@dataclass(frozen=True, kw_only=True)
class WarmStart(Strategy):
    """Retraining's loss over X′ from the current weights: the strong rival."""

    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        while True:
            yield contrast(task, joint_epoch(task.increment, self.batch, task.draws))


@dataclass(frozen=True, kw_only=True)
class Retrain(WarmStart):
    """NCE-I over X′ from scratch: the ceiling of every comparison, and how a learner is fitted."""

    from_scratch: ClassVar[bool] = True
