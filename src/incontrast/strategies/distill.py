"""Training on the new items with the old encoder as a teacher."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number
from incontrast.loss import Objective, batch_losses, others, similarities
from incontrast.strategies.strategy import Strategy
from incontrast.training.task import BatchIndices, Increment, Task, ViewBatch, new_epoch


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
        check_number("[0, inf)", weight=self.weight)

    def epoch_items(self, increment: Increment) -> int:
        return 2 * increment.new_count  # by the student and by the teacher

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        self._teacher(task)  # the encoder as it is before the first step
        return new_epoch(task.increment, self.batch_size, task.draws)

    def loss(self, task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
        with torch.no_grad():
            taught = task.embed(batch.views, encoder=self._teacher(task))
        relation = relation_loss((first, second), taught, task.objective)
        return (batch_losses(first, second, task.objective) + self.weight * relation).mean()

    def _teacher(self, task: Task) -> nn.Module:
        before = task.before or task.encoder
        return task.once("teacher", lambda: copy.deepcopy(before).eval().requires_grad_(False))


def relation_loss(
    learned: tuple[Tensor, Tensor], taught: tuple[Tensor, Tensor], objective: Objective
) -> Tensor:
    """How far the student's similarities to the other items of a batch are from the teacher's.

    (n,) Kullback–Leibler divergences from the teacher's to the student's distribution, from the
    embeddings of both views: (n, d) learned by the student, (n, d′) taught.
    """
    student = others(similarities(*learned, objective)).log_softmax(dim=1)
    target = others(similarities(*taught, objective)).log_softmax(dim=1)
    return (target.exp() * (target - student)).sum(dim=1)
