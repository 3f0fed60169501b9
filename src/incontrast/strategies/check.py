"""Contract checks for people who bring their own strategy."""

import copy
import dataclasses
from itertools import islice

import torch
from torch import Generator, Tensor

from incontrast.domains.vectors import Vectors
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.strategies.strategy import Strategy
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, Task


class StrategyError(ValueError):
    """A strategy does not keep its contract."""


def check_strategy(strategy: Strategy) -> None:
    """Run a strategy on a little synthetic data and raise at the first thing that is wrong.

    Raises:
        StrategyError: Says which rule was broken, and how.
    """
    parameters = vars(type(strategy)).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise StrategyError(f"{type(strategy).__name__} must be a frozen dataclass, it is not")
    _check_losses(strategy)
    short = dataclasses.replace(strategy, max_epochs=2)
    first, second = _trained(short), _trained(short)
    for name, weights in first.items():
        if not torch.isfinite(weights).all():
            raise StrategyError(f"training made {name} NaN or infinite")
        if not torch.equal(weights, second[name]):
            raise StrategyError(
                "the same seed must give the same weights: draw from task.draws or "
                "task.generator(...), and keep state with task.once(...), not in the strategy"
            )


def _check_losses(strategy: Strategy) -> None:
    task = _task()
    for _ in range(2):
        count = 0
        batches = task.view_batches(strategy.sample(task))
        for batch in islice(batches, 3):
            count += 1
            weights = strategy.adapt(task, batches)
            first, second = task.embed(batch.views, parameters=weights)
            loss = strategy.loss(task, batch, first, second)
            if not isinstance(loss, Tensor) or loss.dim() != 0:
                shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise StrategyError(f"a loss must be a scalar tensor, got {shape}: take a mean")
            if not loss.requires_grad:
                raise StrategyError(
                    "a loss must be differentiable in the encoder's weights, this one is detached"
                )
            gradients = torch.autograd.grad(
                loss, list(task.encoder.parameters()), allow_unused=True
            )
            if all(gradient is None for gradient in gradients):
                raise StrategyError("a loss must depend on task.encoder, this one does not")
        if count == 0 and strategy.epoch_items(task.increment):
            raise StrategyError("an epoch must have at least one batch, this one has none")


def _trained(strategy: Strategy) -> dict[str, Tensor]:
    task = _task()
    train(task, strategy)
    return copy.deepcopy(task.encoder.state_dict())


def _task() -> Task:
    rows = torch.randn(48, 6, generator=Generator().manual_seed(0))
    domain = Vectors(6, hidden=16, out=8, mean=(0.0,) * 6, std=(1.0,) * 6)
    old, new = domain.collect(rows[:32]), domain.collect(rows[32:] + 1.0)
    with seeded(0, "check"):
        encoder = domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(old, new, 32),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
        before=copy.deepcopy(encoder),
    )
