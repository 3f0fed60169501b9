"""The paper's meta-optimisation: support steps on old items, a query on new ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from incontrast.bounds import check_whole, given
from incontrast.loss import increment_losses
from incontrast.names import NamedArguments
from incontrast.schedules import Schedule, as_schedule
from incontrast.training.engine import Engine
from incontrast.training.task import Task, ViewBatch


@dataclass(frozen=True, kw_only=True)
class Meta(NamedArguments):
    """Meta-optimisation (Eq. 11–12).

    Args:
        order: 2 differentiates the query loss through the support steps, 1 takes its gradient at
            the adapted weights.
        query: The items of the query loss: ``"new"`` as in the paper, whose outer gradient then
            holds no old data, or ``"both"``, weighted (1−α) and α.
        steps: Support steps; None is the paper's S = max(⌈(1−α)/α⌉, 1).
        lr: lr_s, the learning rate of the support steps (lr_q is the strategy's own).
    """

    order: Literal[1, 2] = 2
    query: Literal["new", "both"] = "new"
    steps: int | None = None
    lr: Schedule | float = 1e-3

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {self.order}")
        if self.query not in ("new", "both"):
            raise ValueError(f"query must be 'new' or 'both', got {self.query!r}")
        check_whole(1, **given(steps=self.steps))
        as_schedule(self.lr)  # says what is wrong with a number

    def support_steps(self, growth_ratio: float) -> int:
        """S: as many support items per query item as there are old items per new one."""
        if self.steps is not None:
            return self.steps
        # Rounded first: (1−α)/α of α = 1/3 is 2.0000000000000004, which is not 3 steps.
        return max(math.ceil(round((1.0 - growth_ratio) / growth_ratio, 9)), 1)


def support_steps(
    task: Task, meta: Meta, batches: Iterator[ViewBatch], retention: float
) -> dict[str, Tensor]:
    """θ′: weights and buffers after the support steps, on S batches (Eq. 11)."""
    lr = task.once("support lr", lambda: task.learning_rate(meta.lr, "support lr"))
    # Buffers are cloned, or BatchNorm would write the statistics of θ′ into the encoder.
    buffers = {name: buffer.clone() for name, buffer in task.encoder.named_buffers()}
    weights: dict[str, Tensor] = {
        name: p for name, p in task.encoder.named_parameters() if p.requires_grad
    }
    for batch in islice(batches, meta.support_steps(task.growth_ratio)):
        first, second = task.embed(batch.views, parameters={**weights, **buffers})
        of_old, _ = increment_losses(
            first,
            second,
            task.objective,
            old=batch.old,
            growth_ratio=task.growth_ratio,
            retention=retention,
        )
        loss = of_old.mean()
        if lr.watches:
            lr.observe(task.engine.broadcast_float(loss.item()))
        step = lr.next_lr(task.done)
        if lr.watches:  # what is learned may differ by a bit between processes
            step = task.engine.broadcast_float(step)
        weights = adapt(weights, loss, step, order=meta.order, engine=task.engine)
    return {**weights, **buffers}


def adapt(
    weights: dict[str, Tensor], loss: Tensor, lr: float, *, order: int, engine: Engine
) -> dict[str, Tensor]:
    """One support step θ′ = θ − lr_s·∂L/∂θ (Eq. 11), differentiable in θ to this order."""
    gradients = torch.autograd.grad(
        loss, list(weights.values()), create_graph=order == 2, materialize_grads=True
    )
    averaged = engine.average_gradients(gradients)
    return {
        name: weight - lr * gradient
        for (name, weight), gradient in zip(weights.items(), averaged, strict=True)
    }
