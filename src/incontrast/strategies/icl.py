"""Incremental contrastive learning: one joint step over old and new items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from incontrast.rates import Fixed, RatePlan
from incontrast.rates.literal import DDPG
from incontrast.strategies.base import Strategy
from incontrast.strategies.joint import joint_losses, weigh
from incontrast.strategies.meta import Meta, meta_losses
from incontrast.training.increment import Increment
from incontrast.training.sampling import Picks, Rounds, new_epoch
from incontrast.training.task import Task

__all__ = ["ICL"]


@dataclass(frozen=True, kw_only=True)
class ICL(Strategy):
    """The update that users get: retraining's objective from the old weights, at ΔX's cost.

    A step draws old and new items, embeds both views of all in one forward pass, and minimises
    (1−α)·mean over old + α·mean over new, with noise from X′ as a stratified mean. Whatever the
    number of old and new items in a step, that is an unbiased estimate, over the draw of anchors,
    of retraining's mean loss over X′. An epoch is one pass over ΔX, so an update's cost follows
    ΔN, not N.

    The defaults are a compromise: larger steps at a higher rate are faster where new classes have
    to be learned, smaller ones where the data hardly changes (docs/updates.md).

    Args:
        old_batch: Old items per step; ``batch`` is the number of new ones. Where new items weigh
            more than that (α above ``batch / (batch + old_batch)``), a step of as many items has
            them in proportion to α, until the two numbers have changed places: see ``per_step``.
        retention: ρ. Old items have L^II + ρ·L^{I,X}: 1 is retraining's loss on them (Theorem 1),
            0 the paper's objective (Eq. 9), which collapses old data when the noise changes.
        meta: Meta-optimisation (Eq. 11–12) instead of the joint step.
    """

    rates: RatePlan = Fixed(2e-3, largest_change=1 / 8)
    batch: int = 32
    max_epochs: int = 40
    patience: int | None = None
    old_batch: int = 64
    retention: float = 1.0
    meta: Meta | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.old_batch < 2:
            raise ValueError(
                f"old_batch must be at least 2, got {self.old_batch}: "
                "old items are each other's negatives"
            )
        if self.retention < 0.0:
            raise ValueError(
                f"retention must not be negative, got {self.retention}: "
                "1 is retraining's loss on old items, 0 the paper's"
            )

    @classmethod
    def paper(
        cls,
        *,
        meta: bool = True,
        learned_rates: bool = True,
        rate: float = 1e-3,
        order: Literal[1, 2] = 2,
        max_epochs: int = 200,
        patience: int | None = 50,
    ) -> ICL:
        """The paper to the letter: retention 0, meta-optimisation, rates learned by DDPG.

        Args:
            meta: False is the ablation "w/o M".
            learned_rates: False is the ablation "w/o LRL".
            rate: The learning rate without LRL.
            order: Of the meta gradient: 2 as the paper writes it, 1 as its released code has it.
            max_epochs: Epochs at most.
            patience: Epochs without a new lowest loss after which it stops.
        """
        rates: RatePlan = DDPG() if learned_rates else Fixed(rate)
        return cls(
            retention=0.0,
            meta=Meta(order=order, rates=rates) if meta else None,
            rates=rates,
            average=0.0,
            batch=32,
            old_batch=32,
            max_epochs=max_epochs,
            patience=patience,
        )

    def per_step(self, growth_ratio: float) -> tuple[int, int]:
        """New and old items of a step.

        A mean of α-weighted parts has the least variance if the parts are as large as they weigh.

        >>> tuple(ICL().per_step(growth_ratio) for growth_ratio in (0.01, 0.3, 0.5, 0.7, 0.99))
        ((32, 64), (32, 64), (48, 48), (64, 32), (64, 32))
        """
        items = self.batch + self.old_batch
        most = max(self.batch, self.old_batch)
        new = min(max(self.batch, round(growth_ratio * items)), most)
        return new, items - new

    def epoch_items(self, increment: Increment) -> int:
        new, old = self.per_step(increment.growth_ratio)
        steps = -(-len(increment.new) // new)
        items = len(increment.new) + steps * min(old, increment.kept)
        if self.meta is None:
            return items
        return items * (1 + self.meta.support_steps(increment.growth_ratio))

    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        if task.increment.kept < 2:
            raise ValueError(
                f"ICL needs at least 2 old items in memory, got {task.increment.kept}: "
                "give the learner a larger memory, or use FineTune()"
            )
        old = Rounds(task.increment.kept, task.draws)
        batch, old_batch = self.per_step(task.growth_ratio)
        if self.meta is not None:
            yield from meta_losses(task, self.meta, old, old_batch, batch, self.retention)
        while True:
            yield self._epoch(task, old, batch, old_batch)

    def _epoch(self, task: Task, old: Rounds, batch: int, old_batch: int) -> Iterator[Tensor]:
        new = new_epoch(task.increment, batch, task.draws)
        picks = (Picks(old.draw(old_batch), pick.new) for pick in new)
        for loaded in task.load(picks):
            yield weigh(*joint_losses(task, loaded, self.retention), task.growth_ratio)
