"""Training on the new items with the old encoder as a teacher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from incontrast.strategies.base import Strategy
from incontrast.training.contrast import Objective, batch_losses, others, similarities
from incontrast.training.increment import Increment
from incontrast.training.sampling import new_epoch
from incontrast.training.task import Task

__all__ = ["Distill", "relation_loss"]


@dataclass(frozen=True, kw_only=True)
class Distill(Strategy):
    """NCE-I on ΔX, plus the old encoder's similarities between its items.

    The frozen old encoder says how alike the items of a batch are; the new one learns to agree,
    as in SEED (Fang et al. 2021) and Co2L (Cha et al. 2021). No old item is needed.

    Args:
        weight: Weight of the teacher beside NCE-I.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight < 0.0:
            raise ValueError(f"weight must not be negative, got {self.weight}")

    def epoch_items(self, increment: Increment) -> int:
        return 2 * len(increment.new)  # by the student and by the teacher

    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        teacher = task.teacher()
        while True:
            yield self._epoch(task, teacher)

    def _epoch(self, task: Task, teacher: nn.Module) -> Iterator[Tensor]:
        for loaded in task.load(new_epoch(task.increment, self.batch, task.draws)):
            with torch.no_grad():
                taught = task.embed(loaded.views, encoder=teacher)
            learned = task.embed(loaded.views)
            contrast = batch_losses(*learned, task.objective)
            relation = relation_loss(learned, taught, task.objective)
            yield (contrast + self.weight * relation).mean()


def relation_loss(
    learned: tuple[Tensor, Tensor], taught: tuple[Tensor, Tensor], objective: Objective
) -> Tensor:
    """How far the student's similarities to the other items of a batch are from the teacher's.

    Args:
        learned: (n, d) and (n, d) embeddings of both views by the student.
        taught: (n, d′) and (n, d′) embeddings of the same views by the teacher.
        objective: The temperature.

    Returns:
        (n,) Kullback–Leibler divergences from the teacher's to the student's distribution.
    """
    student = others(similarities(*learned, objective)).log_softmax(dim=1)
    target = others(similarities(*taught, objective)).log_softmax(dim=1)
    return (target.exp() * (target - student)).sum(dim=1)
