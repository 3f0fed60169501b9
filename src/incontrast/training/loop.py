"""The one training loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from incontrast.randomness import seeded
from incontrast.rates.base import RatePlan, RatesState
from incontrast.training.average import Average
from incontrast.training.mark import Mark
from incontrast.training.optimizers import OptimizerPlan, hold_back, set_rate
from incontrast.training.progress import (
    Budget,
    Epoch,
    Progress,
    ProgressCallback,
    Run,
    Stop,
    Stopwatch,
)
from incontrast.training.sampling import joint_epoch
from incontrast.training.task import Task

__all__ = ["Recipe", "TrainingDiverged", "calibrate", "train"]

CALIBRATION_BATCHES = 8  # batches of X′ whose views set BatchNorm's statistics
CALIBRATION_SIZE = 64  # items in each of them


class TrainingDiverged(RuntimeError):
    """Training was stopped: its loss was not finite or had risen out of bounds."""


class Recipe(Protocol):
    """What the loop needs to know of a strategy."""

    @property
    def rates(self) -> RatePlan: ...
    @property
    def average(self) -> float: ...
    @property
    def max_epochs(self) -> int: ...
    @property
    def patience(self) -> int | None: ...
    @property
    def optimizer(self) -> OptimizerPlan: ...
    def run(self, task: Task) -> Iterator[Iterable[Tensor]]: ...


def train(
    task: Task,
    recipe: Recipe,
    *,
    budget: Budget | None = None,
    progress: ProgressCallback | None = None,
    rates_state: RatesState | None = None,
) -> Run:
    """Train ``task.encoder`` in place on the losses that ``recipe.run`` yields, epoch by epoch.

    The encoder ends in evaluation mode, with averaged weights (with those of the epoch of lowest
    loss, if there is no averaging) and BatchNorm statistics that fit them. Time spent in
    ``progress`` does not count. ``rates_state`` is what the rates of an earlier run have learned.

    Raises:
        TrainingDiverged: The loss was not finite or rose out of bounds. The encoder is then in no
            useful state.
    """
    encoder, budget = task.encoder, budget or Budget()
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    optimizer = recipe.optimizer.make(parameters)
    if recipe.optimizer.rate_is_step:
        hold_back(optimizer, lambda weights: task.engine.agree(recipe.rates.ceiling(weights)))
    average = Average(parameters, recipe.average)
    mark = Mark(encoder, optimizer, average)
    rates = recipe.rates.begin(task.generator("rates"), rates_state)
    history: list[Epoch] = []
    steps, undone, best, waited, bound = 0, 0, math.inf, 0, math.inf
    kept: list[Tensor] | None = None  # the weights of the best epoch, where none are averaged
    stopped: Stop = "nothing to do"
    watch = Stopwatch()

    def tell(epoch: int, loss: float, rate: float, finished: Epoch | None = None) -> None:
        if progress is not None:
            seconds = watch.seconds()
            with watch.paused():
                progress(
                    Progress(
                        epoch=epoch,
                        epochs=recipe.max_epochs,
                        loss=loss,
                        rate=rate,
                        steps=steps,
                        passes=task.passes,
                        seconds=seconds,
                        finished=finished,
                        snapshot=lambda: _snapshot(task, average),
                    )
                )

    with seeded(task.seed, "modules", *task.engine.own, device=task.engine.device):
        encoder.train()
        for number, losses in enumerate(recipe.run(task), start=1):
            values: list[float] = []
            stopped, marked, rate = "epochs", 0, math.nan
            for loss in losses:
                value = task.engine.agree(loss.item())
                rates.observe(value)
                verdict = rates.verdict()
                if verdict == "undo":
                    mark.restore()
                    del values[marked:]
                    undone += 1
                    continue
                values.append(_finite(value))
                if steps == 0:
                    # From here on a loss is no longer that of training. A collapsed encoder has
                    # log(1 + K), far above this where training began from good weights.
                    bound = value + max(1.0, abs(value))
                if verdict == "mark":
                    mark.take()
                    marked = len(values)
                rate = task.engine.agree(rates.propose())
                _step(loss, optimizer, rate, task)
                average.update()
                steps += 1
                tell(number, value, rate)
                if budget.spent(task.engine.agree(watch.seconds()), task.passes):
                    stopped = "budget"
                    break
            if not values and not undone:
                raise ValueError("the strategy gave an epoch without a loss: yield at least one")
            mean = sum(values) / len(values) if values else best
            history.append(Epoch(number, mean, rate, steps, task.passes, watch.seconds()))
            tell(number, mean, rate, history[-1])
            if mean > bound:
                raise TrainingDiverged(
                    f"the loss rose to {mean:.3g} in epoch {number}, beyond {bound:.3g}: "
                    "lower the learning rate"
                )
            best, waited = (mean, 0) if mean < best else (best, waited + 1)
            if waited == 0 and recipe.average == 0.0:
                kept = [parameter.detach().clone() for parameter in parameters]
            if stopped == "budget" or number >= recipe.max_epochs:
                break
            if recipe.patience is not None and waited >= recipe.patience:
                stopped = "patience"
                break
        if steps:
            average.apply(parameters)
            if kept is not None:
                torch._foreach_copy_([parameter.data for parameter in parameters], kept)
            calibrate(task, encoder)
            _check_weights(encoder)
        encoder.eval()
    return task.engine.same(
        Run(tuple(history), steps, task.passes, watch.seconds(), stopped, undone, rates.state())
    )


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise TrainingDiverged(
            f"the loss became {value}: look for extreme values in the data, "
            "or lower the learning rate"
        )
    return value


def _check_weights(encoder: nn.Module) -> None:
    for name, values in encoder.state_dict().items():
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise TrainingDiverged(
                f"the last step made {name} NaN or infinite: lower the learning rate"
            )


def _step(loss: Tensor, optimizer: torch.optim.Optimizer, rate: float, task: Task) -> None:
    set_rate(optimizer, rate)
    optimizer.zero_grad()
    task.engine.backward(loss, [p for group in optimizer.param_groups for p in group["params"]])
    optimizer.step()


def _snapshot(task: Task, average: Average) -> nn.Module:
    twin = copy.deepcopy(task.encoder)
    average.apply([p for p in twin.parameters() if p.requires_grad])
    with seeded(task.seed, "snapshot", device=task.engine.device):
        calibrate(task, twin)
    return twin.eval()


@torch.no_grad()
def calibrate(task: Task, encoder: nn.Module) -> None:
    """Set BatchNorm's running statistics to those of views of X′ under the current weights.

    The running mean of a training run lags behind the weights, and belongs to none of them once
    they are averaged: the loss in evaluation mode can jump by half from one epoch to the next.
    """
    draws, views = task.generator("calibration draws"), task.generator("calibration views")
    picks = islice(joint_epoch(task.increment, CALIBRATION_SIZE, draws), CALIBRATION_BATCHES)
    with task.engine.encoding():
        update_bn((loaded.views for loaded in task.load(picks, views)), encoder)
