"""The one training loop: sample → views → forward → loss → step."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from incontrast.randomness import seeded
from incontrast.schedules import ScheduleState, as_schedule
from incontrast.training.calibration import calibrate, train_mode
from incontrast.training.checkpoint import Checkpoint
from incontrast.training.optimizers import ExponentialMovingAverage, cap_learning_rates, set_lr
from incontrast.training.progress import (
    Budget,
    Callback,
    Epoch,
    Losses,
    Progress,
    ProgressCallback,
    Run,
    Stop,
    Stopwatch,
    TrainingDiverged,
    check_budget,
)
from incontrast.training.task import Task

if TYPE_CHECKING:
    from incontrast.strategies.strategy import Strategy

__all__ = ["TrainingDiverged", "train"]


def train(
    task: Task,
    strategy: Strategy,
    *,
    budget: Budget | None = None,
    callbacks: Sequence[ProgressCallback] = (),
    schedule_state: ScheduleState | None = None,
) -> Run:
    """Train ``task.encoder`` in place.

    The encoder ends in evaluation mode, with averaged weights (with those of the epoch of lowest
    loss, if there is no averaging) and BatchNorm statistics that fit them. Time spent in
    ``callbacks`` does not count. ``schedule_state`` is what the schedule of an earlier run has
    learned.

    Raises:
        TrainingDiverged: The loss was not finite or rose out of bounds. The encoder is then in no
            useful state.
    """
    with seeded(task.seed, "modules", *task.engine.own, device=task.engine.device):
        run = _Training(task, strategy, check_budget(budget), callbacks, schedule_state).run()
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_end(run)
    return run


class _Training:
    """One run: its optimiser, averaged weights, learning rate, losses and clock."""

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        budget: Budget,
        callbacks: Sequence[ProgressCallback],
        schedule_state: ScheduleState | None,
    ) -> None:
        self.task, self.strategy, self.budget, self.callbacks = task, strategy, budget, callbacks
        self.parameters = [p for p in task.encoder.parameters() if p.requires_grad]
        self.optimizer = strategy.optimizer(self.parameters)
        share = getattr(strategy.optimizer, "max_relative_update", None)
        if share is not None:
            cap_learning_rates(self.optimizer, share, task.engine.broadcast)
        self.ema = ExponentialMovingAverage(self.parameters, strategy.ema_decay)
        schedule = as_schedule(strategy.lr)
        self.schedule = schedule.begin(task.generator("schedule"), schedule_state)
        self.losses = Losses(task.engine)
        self.passes_per_epoch = 2 * strategy.epoch_items(task.increment)
        self.steps, self.rollbacks, self.lr = 0, 0, math.nan
        self.history: list[Epoch] = []
        self.best: list[Tensor] = []  # the weights of the best epoch, where none are averaged
        self.watch = Stopwatch()

    def run(self) -> Run:
        task = self.task
        stopped: Stop | None = None if self.passes_per_epoch else "nothing to do"
        train_mode(task.encoder)
        while stopped is None:
            stopped = self.end_epoch(self.epoch())
        if self.steps:
            self.ema.apply(self.parameters)
            if self.best:
                torch._foreach_copy_([p.data for p in self.parameters], self.best)
            calibrate(task, task.encoder)
            _check_weights(task.encoder)
        task.encoder.eval()
        return task.engine.broadcast(
            Run(
                tuple(self.history),
                self.steps,
                task.forward_passes,
                self.watch.seconds(),
                stopped,
                self.rollbacks,
                self.schedule.state(),
            )
        )

    def epoch(self) -> Stop | None:
        """One epoch, step by step; returns why training ends in the middle of it, if it does."""
        task, strategy, engine = self.task, self.strategy, self.task.engine
        batches = task.view_batches(strategy.sample(task))  # sample, two views of every item
        for batch in batches:
            weights = strategy.adapt(task, batches)  # θ′ where there are inner steps, else None
            first, second = task.embed(batch.views, parameters=weights)  # forward
            loss = strategy.loss(task, batch, first, second)  # loss
            self.losses.add(loss.detach())
            if self.schedule.watches and self.rolled_back():
                continue
            self.lr = engine.broadcast_float(self.schedule.next_lr(task.done))
            set_lr(self.optimizer, self.lr)
            self.optimizer.zero_grad()
            engine.backward(loss, self.parameters)
            self.optimizer.step()  # step
            self.ema.update()
            self.steps += 1
            spent = self.budget.spent(self.seconds(), task.forward_passes)
            epochs = task.forward_passes / (self.passes_per_epoch * strategy.max_epochs)
            task.done = min(max(spent, epochs), 1.0)
            stopped = self.tell(loss.detach())
            if spent >= 1.0:
                return "budget"
            if stopped:
                return "callback"
        return None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """What a schedule that watches may roll back to."""
        return Checkpoint(self.task.encoder, self.optimizer, self.ema)

    def rolled_back(self) -> bool:
        """Tell the schedule the loss of this step; returns whether it wants the past back."""
        verdict = self.schedule.observe(self.losses.last())
        if verdict == "rollback":
            self.checkpoint.restore()
            self.losses.rollback()
            self.rollbacks += 1
            return True
        self.losses.check()
        if verdict == "checkpoint":
            self.checkpoint.take()
            self.losses.checkpoint()
        return False

    def end_epoch(self, stopped: Stop | None) -> Stop | None:
        """Write the epoch into the history; returns why training ends, if it does."""
        strategy, number = self.strategy, len(self.history) + 1
        if not self.losses.added:
            raise ValueError("the strategy gave an epoch without a batch: sample at least one")
        mean = self.losses.end_epoch(number)
        passes = self.task.forward_passes
        self.history.append(Epoch(number, mean, self.lr, self.steps, passes, self.watch.seconds()))
        if self.tell(torch.tensor(mean), self.history[-1]) and stopped is None:
            stopped = "callback"
        if self.losses.waited == 0 and strategy.ema_decay == 0.0:
            self.best = [parameter.detach().clone() for parameter in self.parameters]
        if stopped is not None:
            return stopped
        if number >= strategy.max_epochs:
            return "epochs"
        if strategy.patience is not None and self.losses.waited >= strategy.patience:
            return "patience"
        return None

    def seconds(self) -> float:
        """Training time, as all processes see it; 0 where no budget asks."""
        if self.budget.seconds is None:
            return 0.0
        return self.task.engine.broadcast_float(self.watch.seconds())

    def tell(self, loss: Tensor, finished: Epoch | None = None) -> bool:
        """Call the callbacks; returns whether one of them wants the run to end."""
        if not self.callbacks:
            return False
        progress = Progress(
            epoch=len(self.history) + (finished is None),
            epochs=self.strategy.max_epochs,
            lr=self.lr,
            steps=self.steps,
            forward_passes=self.task.forward_passes,
            seconds=self.watch.seconds(),
            done=self.task.done,
            finished=finished,
            snapshot=self.snapshot,
            step_loss=loss,
        )
        with self.watch.paused():
            answers = [callback(progress) for callback in self.callbacks]
        return any(answer is False for answer in answers)

    def snapshot(self) -> nn.Module:
        """The encoder that training would give if it ended here."""
        twin = copy.deepcopy(self.task.encoder)
        self.ema.apply([p for p in twin.parameters() if p.requires_grad])
        with seeded(self.task.seed, "snapshot", device=self.task.engine.device):
            calibrate(self.task, twin)
        return twin.eval()


def _check_weights(encoder: nn.Module) -> None:
    for name, values in encoder.state_dict().items():
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise TrainingDiverged(
                f"the last step made {name} NaN or infinite: lower the learning rate"
            )
