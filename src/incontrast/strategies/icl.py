"""Incremental contrastive learning: one joint step over old and new items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from incontrast.bounds import check_number, check_whole
from incontrast.loss import increment_losses
from incontrast.names import NamedArguments
from incontrast.schedules import DDPG, Fixed, Schedule
from incontrast.strategies.hard_negatives import HardNegatives, HardSampler
from incontrast.strategies.meta import Meta, support_steps
from incontrast.strategies.strategy import Strategy
from incontrast.training.optimizers import Adam, Muon, OptimizerFactory
from incontrast.training.protection import Protection
from incontrast.training.task import BatchIndices, Increment, Task, ViewBatch, new_epoch

ENOUGH = 600  # steps of an update, if they make no more or less passes than this
PASSES = range(4, 20)
FEW, MANY = 0.1, 0.5  # growth ratios: up to few, old items are spared; from many on, not at all


@dataclass(frozen=True, kw_only=True)
class Emphasis(NamedArguments):
    """The weight of new items in a step's loss; old ones have the rest.

    Old items begin at their optimum, new ones do not. With weight α the gradient of a few new
    items drowns in the noise of the old ones'. The weight comes down to α before the run ends: the
    last steps minimise exactly retraining's objective. Averaged weights lag behind: in a run of a
    few hundred steps most of their weight is on steps of before.

    Args:
        start: The weight that new items begin with, where it is more than α.
        until: The part of the run in which it falls to α, linearly.

    >>> emphasis = Emphasis(start=0.5, until=0.6)
    >>> tuple(round(emphasis.weight(0.05, done), 3) for done in (0.0, 0.3, 0.6, 1.0))
    (0.5, 0.275, 0.05, 0.05)
    >>> emphasis.weight(0.7, 0.0)
    0.7
    """

    start: float = 0.7
    until: float = 0.9

    def __post_init__(self) -> None:
        check_number("(0, 1)", "it is the weight of new items", start=self.start)
        check_number("(0, 1]", "it is a part of the run", until=self.until)

    def weight(self, growth_ratio: float, done: float) -> float:
        """The weight of new items at a growth ratio α when this part of the run is done."""
        left = max(1.0 - done / self.until, 0.0)
        return growth_ratio + left * max(self.start - growth_ratio, 0.0)


@dataclass(frozen=True, kw_only=True)
class ICL(Strategy):
    """The update that users get: retraining's objective from the old weights, at ΔX's cost.

    A step draws old and new items, embeds both views of all in one forward pass, and minimises
    (1−w)·mean over old + w·mean over new, with negatives from X′ as a stratified mean. The weight w
    begins above the growth ratio α (``emphasis``) and ends as α. From then on a step is, whatever
    its number of old and new items, an unbiased estimate, over the draw of anchors, of retraining's
    mean loss over X′. An epoch is one pass over ΔX, or as many as its steps need, so an update's
    cost follows ΔN, not N.

    ``Muon``'s learning rate is relative; with another optimiser give ``lr`` too, such as
    ``ICL(optimizer=Adam(max_relative_update=1 / 2), lr=2e-3)``. The defaults were chosen on two
    data sets (docs/explanation/updates.md).

    Args:
        interpolation: The part of the change that is kept where α is at most 0.1; see ``kept``.
        old_batch_size: Old items per step; ``batch_size`` is the number of new ones. Where α is
            above the share of new items that this gives, a step of as many items has them in
            proportion to α, until the two numbers have changed places: see ``per_step``.
        retention: ρ. Old items have L^II + ρ·L^{I,X}: 1 is retraining's loss on them (Theorem 1),
            0 the paper's objective (Eq. 9), which collapses old data when the negatives change.
        meta: Meta-optimisation (Eq. 11–12) instead of the joint step.
        emphasis: How much more than α new items weigh at first; None is α all along.
        hard_negatives: Old items that new ones are easily mistaken for, drawn more often at first;
            None draws all alike.
        protection: What keeps steps away from what old items use; None lets them go anywhere.
        epoch_steps: Steps of an epoch at least. A small increment is passed over several times:
            20 new items need as many steps as 160.
        compatible: Weight of 1 − cos between old items and their embeddings of before. More of it
            keeps stored vectors more usable without a map, and holds new items back.
    """

    lr: Schedule | float = Fixed(1.2e-2, warmup=0.1)
    batch_size: int = 16
    max_epochs: int | None = None
    patience: int | None = None
    ema_leaning: float = 4.0
    interpolation: float = 0.8
    optimizer: OptimizerFactory = Muon()
    old_batch_size: int = 48
    retention: float = 1.0
    meta: Meta | None = None
    emphasis: Emphasis | None = Emphasis()
    hard_negatives: HardNegatives | None = HardNegatives()
    protection: Protection | None = Protection()
    epoch_steps: int = 10
    compatible: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {"emphasis": Emphasis, "hard_negatives": HardNegatives, "protection": Protection}
        for name, kind in {**kinds, "meta": Meta}.items():
            if (given := getattr(self, name)) is not None and not isinstance(given, kind):
                raise TypeError(
                    f"{name} must be {kind.__name__}(...), or None to go without, got {given!r}"
                )
        advice = "old items are each other's negatives"
        check_whole(2, advice, old_batch_size=self.old_batch_size)
        advice = "1 is retraining's loss on old items, 0 the paper's"
        check_number("[0, inf)", advice, retention=self.retention)
        check_whole(1, epoch_steps=self.epoch_steps)
        check_number("[0, inf)", "0 holds nothing in its place", compatible=self.compatible)

    @classmethod
    def small_steps(cls, *, lr: float = 2e-5, **settings: Any) -> ICL:
        """The update with Adam's small steps, by which pretrained transformers are fine-tuned.

        Args:
            lr: The learning rate after a warm-up of a tenth of the run.
            settings: Of ``ICL``.
        """
        return cls(lr=Fixed(lr, warmup=0.1), optimizer=Adam(), **settings)

    @classmethod
    def paper(
        cls,
        *,
        meta: bool = True,
        learned_lr: bool = True,
        lr: float = 1e-3,
        order: Literal[1, 2] = 2,
        max_epochs: int = 200,
        patience: int | None = 50,
    ) -> ICL:
        """The paper to the letter: retention 0, meta-optimisation, learning rates learned by DDPG.

        Args:
            meta: False is the ablation "w/o M".
            learned_lr: False is the ablation "w/o LRL".
            lr: The learning rate without LRL.
            order: Of the meta gradient: 2 as the paper writes it, 1 as its released code has it.
            max_epochs: Epochs at most.
            patience: Epochs without a new lowest loss after which it stops.
        """
        chosen: Schedule | float = DDPG() if learned_lr else lr
        return cls(
            retention=0.0,
            meta=Meta(order=order, lr=chosen) if meta else None,
            lr=chosen,
            ema_decay=0.0,
            ema_leaning=1.0,
            interpolation=1.0,
            optimizer=Adam(),
            batch_size=32,
            old_batch_size=32,
            epoch_steps=1,
            emphasis=None,
            hard_negatives=None,
            protection=None,
            max_epochs=max_epochs,
            patience=patience,
        )

    def per_step(self, growth_ratio: float) -> tuple[int, int]:
        """New and old items of a step.

        A mean of α-weighted parts has the least variance if the parts are as large as they weigh.

        >>> tuple(ICL().per_step(growth_ratio) for growth_ratio in (0.01, 0.3, 0.5, 0.7, 0.99))
        ((16, 48), (19, 45), (32, 32), (45, 19), (48, 16))
        """
        items = self.batch_size + self.old_batch_size
        most = max(self.batch_size, self.old_batch_size)
        new = min(max(self.batch_size, round(growth_ratio * items)), most)
        return new, items - new

    def steps(self, increment: Increment) -> int:
        """Of an epoch."""
        new, _ = self.per_step(increment.growth_ratio)
        return -(-increment.new_count // new) * self.rounds(increment)

    def rounds(self, increment: Increment) -> int:
        """Passes over the new items that an epoch makes: one, or as many as its steps need."""
        new, _ = self.per_step(increment.growth_ratio)
        return -(-self.epoch_steps // -(-increment.new_count // new))

    def epochs(self, increment: Increment) -> int:
        """As given, or 4 to 20: as many as make about 600 steps.

        >>> at = [Increment(range(9000), range(count), 9000) for count in (20, 400, 2000, 9000)]
        >>> tuple(map(ICL().epochs, at)), ICL(max_epochs=7).epochs(at[0])
        ((20, 20, 5, 4), 7)
        """
        if self.max_epochs is not None:
            return self.max_epochs
        return min(max(round(ENOUGH / self.steps(increment)), PASSES.start), PASSES.stop)

    def kept(self, growth_ratio: float) -> float:
        """``interpolation`` up to α = 0.1, all of the change from 0.5 on, in between a line.

        What is left behind spares old items. The fewer of all they are, the less it is worth.

        >>> tuple(round(ICL().kept(ratio), 3) for ratio in (0.01, 0.1, 0.3, 0.5, 0.7))
        (0.8, 0.8, 0.9, 1.0, 1.0)
        """
        few = min(max((MANY - growth_ratio) / (MANY - FEW), 0.0), 1.0)
        return 1.0 - few * (1.0 - self.interpolation)

    def epoch_items(self, increment: Increment) -> int:
        _, old = self.per_step(increment.growth_ratio)
        items = increment.new_count * self.rounds(increment)
        items += self.steps(increment) * min(old, increment.stored)
        supports = 0 if self.meta is None else self.meta.support_steps(increment.growth_ratio)
        return items * (1 + supports)

    def _hard(self, task: Task) -> HardSampler | None:
        """None where steps draw all old items alike, or have all of them anyway."""
        _, old = self.per_step(task.growth_ratio)
        if self.hard_negatives is None or self.from_scratch or task.before is None:
            return None
        if task.increment.stored <= old:
            return None
        return task.once("hard negatives", partial(self.hard_negatives.sampler, task))

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        """Every new item, each batch with old ones; with ``meta``, a query, then supports."""
        if task.increment.seen == 0 and task.before is None:
            raise ValueError("ICL updates an encoder, and there is none yet: fit with Retrain()")
        if task.increment.stored < 2:
            raise ValueError(
                f"ICL needs at least 2 old items in memory, got {task.increment.stored}: "
                "give the learner a larger memory (an adopted one seen=...), or use FineTune() or "
                "Distill()"
            )
        new, old = self.per_step(task.growth_ratio)
        supports = 0 if self.meta is None else self.meta.support_steps(task.growth_ratio)
        hard, done = self._hard(task), task.begun
        step = task.epoch_part / self.steps(task.increment)
        for _ in range(self.rounds(task.increment)):
            for batch in new_epoch(task.increment, new, task.draws):
                # Every support step has old items of its own; the new ones serve all steps.
                for _ in range(1 + supports):
                    drawn = task.old_items.draw(old)
                    if hard is not None:
                        drawn = self._with_hard(drawn, hard.draw(old, batch.new), done)
                    yield BatchIndices(drawn, batch.new)
                done += step

    def _with_hard(self, drawn: Tensor, near: Tensor, done: float) -> Tensor:
        """As many old items as are drawn, some of them near the new ones.

        What is drawn depends on no clock: a run that resumes draws it again.
        """
        assert self.hard_negatives is not None
        near = near[: round(self.hard_negatives.left(done) * len(drawn))]
        others = drawn[~torch.isin(drawn, near)]
        return torch.cat([near, others[: len(drawn) - len(near)]])

    def prepare(self, task: Task) -> dict[nn.Parameter, Tensor]:
        self._hard(task)
        if self.protection is None or self.from_scratch:
            return {}
        return self.protection.factors(task)

    def adapt(self, task: Task, batches: Iterator[ViewBatch]) -> dict[str, Tensor] | None:
        return (
            None if self.meta is None else support_steps(task, self.meta, batches, self.retention)
        )

    def loss(self, task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
        """(1−w)·mean over old anchors + w·mean over new ones; w = α is unbiased for any number."""
        alpha = task.growth_ratio
        of_old, of_new = increment_losses(
            first,
            second,
            task.objective,
            old=batch.old,
            growth_ratio=alpha,
            retention=self.retention,
        )
        if self.meta is not None and self.meta.query == "new":
            return of_new.mean()
        weight = alpha if self.emphasis is None else self.emphasis.weight(alpha, task.done)
        loss = (1.0 - weight) * of_old.mean() + weight * of_new.mean()
        if self.compatible:
            loss = loss + self.compatible * anchor_loss(task, batch, first, second)
        return loss


def anchor_loss(task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
    """Mean 1 − cos between views of old items and their embeddings by the encoder of before.

    Those are computed when an item is drawn for the first time, and kept: most steps need no
    further forward pass.
    """
    old, places = task.increment.old, batch.places
    if old is None or task.before is None:
        return first.new_zeros(())
    width, count = first.shape[1], len(old)
    known = task.once("anchors", lambda: torch.zeros(count, width, device=first.device))
    there = task.once("anchored", lambda: torch.zeros(count, dtype=torch.bool))
    missing = places[~there[places]]
    if len(missing):
        known[missing] = task.embed_before(old, missing)
        there[missing] = True
    sides = (views[: batch.old] for views in (first, second))
    near = [cosine_similarity(side, known[places]).mean() for side in sides]
    return 1.0 - torch.stack(near).mean()
