"""Contract checks for people who bring their own strategy."""

import copy
import dataclasses
from itertools import islice
from typing import Any

import torch
from torch import Generator, Tensor

from incontrast.domains.vectors import Vectors
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.strategies.strategy import Strategy
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import BatchIndices, Increment, Task

MISCOUNTED = 0.1  # of an epoch's items, by which batches that are drawn at random may differ


class StrategyError(ValueError):
    """A strategy does not keep its contract."""


def check_strategy(strategy: Any) -> None:
    """Run a strategy on a little synthetic data and raise at the first thing that is wrong.

    Raises:
        StrategyError: Says which rule was broken, and how.
    """
    if not isinstance(strategy, Strategy):
        hint = " (without its parentheses?)" if isinstance(strategy, type) else ""
        raise StrategyError(f"a strategy must derive from Strategy, got {strategy!r}{hint}")
    parameters = vars(type(strategy)).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise StrategyError(f"{type(strategy).__name__} must be a frozen dataclass, it is not")
    try:
        _check_losses(strategy)
        _check_epoch(strategy)
    except IndexError as error:
        raise StrategyError(f"sample() gave places where there is no item: {error}") from error
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
    for indices in islice(strategy.sample(task), 3):
        if not isinstance(indices, BatchIndices):
            raise StrategyError(
                f"sample() must yield BatchIndices(old, new), got {indices!r}: places of old and "
                "of new items, as tensors"
            )
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


def _check_epoch(strategy: Strategy) -> None:
    for task in (_task(), _task(seen=320)):  # all old items, and a sample of them
        run = train(task, dataclasses.replace(strategy, max_epochs=2))
        told, passes = strategy.epoch_items(task.increment), [e.forward_passes for e in run.history]
        # The second epoch: what is measured before the first step belongs to none.
        embedded = (passes[1] - passes[0]) / 2 if len(passes) == 2 else 0.0
        if abs(told - embedded) > MISCOUNTED * embedded:
            raise StrategyError(
                f"epoch_items() must count the items that an epoch embeds, by which schedules and "
                f"forecasts go: it says {told}, an epoch embedded {embedded:g}"
            )


def _trained(strategy: Strategy) -> dict[str, Tensor]:
    task = _task()
    train(task, strategy)
    return copy.deepcopy(task.encoder.state_dict())


def _task(seen: int = 32) -> Task:
    rows = torch.randn(48, 6, generator=Generator().manual_seed(0))
    domain = Vectors(6, hidden=16, out=8, mean=(0.0,) * 6, std=(1.0,) * 6)
    old, new = domain.collect(rows[:32]), domain.collect(rows[32:] + 1.0)
    with seeded(0, "check"):
        encoder = domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(old, new, seen),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
        before=copy.deepcopy(encoder),
    )
