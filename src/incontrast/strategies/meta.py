"""The paper's meta-optimisation: support steps on old items, a query on new ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

import torch
from torch import Tensor

from incontrast.rates import Fixed, RatePlan, Rates
from incontrast.strategies.joint import joint_losses, weigh
from incontrast.training.engine import Engine
from incontrast.training.sampling import Picks, Rounds, new_epoch
from incontrast.training.task import Loaded, Task

__all__ = ["Meta", "meta_losses"]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Meta-optimisation (Eq. 11–12).

    Args:
        order: 2 differentiates the query loss through the support steps, 1 takes its gradient at
            the adapted weights.
        query: The items of the query loss: ``"new"`` as in the paper, whose outer gradient then
            holds no old data, or ``"both"``, weighted (1−α) and α.
        steps: Support steps; None is the paper's S = max(⌈(1−α)/α⌉, 1).
        rates: lr_s, the rates of the support steps (lr_q is the strategy's own).
    """

    order: Literal[1, 2] = 2
    query: Literal["new", "both"] = "new"
    steps: int | None = None
    rates: RatePlan = Fixed(1e-3)

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {self.order}")
        if self.query not in ("new", "both"):
            raise ValueError(f"query must be 'new' or 'both', got {self.query!r}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def support_steps(self, growth_ratio: float) -> int:
        """S: as many support items per query item as there are old items per new one."""
        if self.steps is not None:
            return self.steps
        # Rounded first: (1−α)/α of α = 1/3 is 2.0000000000000004, which is not 3 steps.
        return max(math.ceil(round((1.0 - growth_ratio) / growth_ratio, 9)), 1)


def meta_losses(
    task: Task, meta: Meta, old: Rounds, old_batch: int, batch: int, retention: float
) -> Iterator[Iterable[Tensor]]:
    """Epochs of query losses, each of which depends on θ through its support steps."""
    support = meta.support_steps(task.growth_ratio)
    rates = meta.rates.begin(task.generator("support rates"))

    def picks() -> Iterator[Picks]:
        # Every support step has its own old items; the new ones serve all steps and the query.
        for pick in new_epoch(task.increment, batch, task.draws):
            for _ in range(support + 1):
                yield Picks(old.draw(old_batch), pick.new)

    def epoch() -> Iterator[Tensor]:
        batches = task.load(picks())
        for first in batches:
            supports = chain([first], islice(batches, support - 1))
            yield _query_loss(task, meta, rates, supports, batches, retention)

    while True:
        yield epoch()


def _query_loss(
    task: Task,
    meta: Meta,
    rates: Rates,
    supports: Iterator[Loaded],
    queries: Iterator[Loaded],
    retention: float,
) -> Tensor:
    # Buffers are cloned, or BatchNorm would write the statistics of θ′ into the encoder.
    buffers = {name: buffer.clone() for name, buffer in task.encoder.named_buffers()}
    weights: dict[str, Tensor] = {
        name: p for name, p in task.encoder.named_parameters() if p.requires_grad
    }
    for batch in supports:
        of_old, _ = joint_losses(task, batch, retention, {**weights, **buffers})
        loss = of_old.mean()
        rates.observe(task.engine.agree(loss.item()))
        rate = task.engine.agree(rates.propose())
        weights = adapt(weights, loss, rate, order=meta.order, engine=task.engine)
    of_old, of_new = joint_losses(task, next(queries), retention, {**weights, **buffers})
    if meta.query == "new":
        return of_new.mean()
    return weigh(of_old, of_new, task.growth_ratio)


def adapt(
    weights: dict[str, Tensor], loss: Tensor, rate: float, *, order: int, engine: Engine
) -> dict[str, Tensor]:
    """One support step θ′ = θ − lr_s·∂L/∂θ (Eq. 11), differentiable in θ to this order."""
    gradients = torch.autograd.grad(
        loss, list(weights.values()), create_graph=order == 2, materialize_grads=True
    )
    return {
        name: weight - rate * gradient
        for (name, weight), gradient in zip(weights.items(), engine.average(gradients), strict=True)
    }
