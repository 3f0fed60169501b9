"""The one training loop: sample → views → forward → loss → step."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from incontrast.randomness import seeded
from incontrast.schedules import ScheduleState
from incontrast.text import counted, duration
from incontrast.training.averages import ExponentialMovingAverage, calibrate, train_mode
from incontrast.training.engine import Engine
from incontrast.training.optimizers import Stepper, lr_factors_of, mark_tables
from incontrast.training.progress import (
    Budget,
    Callback,
    Epoch,
    Progress,
    ProgressCallback,
    Run,
    Stop,
)
from incontrast.training.resume import (
    AGREED,
    Checkpoint,
    CtrlC,
    TrainingFile,
    restore,
    training_state,
)
from incontrast.training.task import Task, ViewBatch

if TYPE_CHECKING:
    from incontrast.strategies.strategy import Strategy

log = logging.getLogger(__name__)

UNREAD = 50  # losses that may wait on the device: one that is not finite is noticed by then
UNLIMITED = Budget()


class TrainingDiverged(RuntimeError):
    """Training was stopped: its loss was not finite or had risen out of bounds."""


def check_budget(budget: object) -> Budget:
    """The budget, unlimited if None; an error for anything else."""
    if budget is None:
        return UNLIMITED
    if not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget, got {budget!r}: use Budget(seconds=...) "
            "or Budget(forward_passes=...)"
        )
    return budget


def train(
    task: Task,
    strategy: Strategy,
    *,
    budget: Budget | None = None,
    callbacks: Sequence[ProgressCallback] = (),
    schedule_state: ScheduleState | None = None,
    file: TrainingFile | None = None,
) -> Run:
    """Train ``task.encoder`` in place.

    The encoder ends in evaluation mode, with averaged weights (with those of the epoch of lowest
    loss, if there is no averaging) and BatchNorm statistics that fit them. Time spent in
    ``callbacks`` does not count. ``schedule_state`` is what the schedule of an earlier run has
    learned. The state of the run is kept in ``file``; where that has one of this very run, training
    resumes from it, and ends as if it had not been interrupted. An encoder whose training raises
    ``TrainingDiverged`` is in no useful state.
    """
    items = strategy.epoch_items(task.increment)
    if items == 0:
        task.encoder.eval()
        return Run((), 0, 0, 0.0, "nothing to do", 0, {})
    if task.engine.processes > 1:
        task.share_steps(strategy.batch_size + getattr(strategy, "old_batch_size", 0))
    with seeded(task.seed, "modules", *task.engine.own, device=task.engine.device):
        limit = check_budget(budget)
        run = Training(task, strategy, items, limit, callbacks, schedule_state, file).run()
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_end(run)
    return run


class Training:
    """One run: its optimiser, averaged weights, learning rate, losses and clock."""

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        epoch_items: int,
        budget: Budget,
        callbacks: Sequence[ProgressCallback],
        schedule_state: ScheduleState | None,
        file: TrainingFile | None,
    ) -> None:
        self.start = time.perf_counter()  # moved on by what callbacks take
        self.task, self.strategy, self.budget, self.callbacks = task, strategy, budget, callbacks
        self.file = file
        # Several processes step together: none of them waits by itself.
        self.ctrl_c = CtrlC() if file is not None and task.engine.processes == 1 else None
        self.saved = None if file is None else file.read(task.engine)
        if file is not None:
            task.record(*(self.saved[key] if self.saved else {} for key in ("schedules", "once")))
        self.parameters = [p for p in task.encoder.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("no weight of the encoder requires a gradient: all of it is frozen")
        mark_tables(task.encoder)
        self.optimizer = strategy.optimizer(self.parameters)
        self.max_norm: float | None = getattr(strategy.optimizer, "max_norm", None)
        self.stepper = Stepper(
            self.optimizer,
            getattr(strategy.optimizer, "max_relative_update", None),
            lr_factors_of(strategy.optimizer, task.encoder),
            strategy.prepare(task),
            task.engine.broadcast,
        )
        self.ema = ExponentialMovingAverage(
            self.parameters, strategy.ema_decay, strategy.ema_leaning
        )
        first = task.before is None or strategy.from_scratch
        kept = 1.0 if first else strategy.kept(task.growth_ratio)
        self.left_behind = 1.0 - kept
        self.origin = [p.detach().clone() for p in self.parameters] if kept < 1.0 else []
        self.schedule = task.learning_rate(strategy.lr, "schedule", schedule_state)
        collapsed = math.log(1 + task.objective.negatives)
        self.losses = _Losses(task.engine, least_bound=collapsed + 1.0 if first else 0.0)
        self.passes_before = task.forward_passes  # of what is measured before the first step
        self.passes_per_epoch, self.epochs = 2 * epoch_items, strategy.epochs(task.increment)
        self.steps, self.rollbacks, self.lr = 0, 0, math.nan
        self.clock = 0.0  # seconds of the first process, where they are counted
        self.begun: tuple[float, float] | None = None  # seconds and part done after a first step
        self.batches = 0  # of the epoch under way that were taken
        self.agreed = 0  # steps after which all processes last had the first one's weights
        self.history: list[Epoch] = []
        self.best: list[Tensor] = []  # the weights of the best epoch, where none are averaged

    def run(self) -> Run:
        task = self.task
        stopped: Stop | None = None
        train_mode(task.encoder)
        batches = None if self.saved is None else self.resumed(self.saved)
        with self.ctrl_c or nullcontext():
            while stopped is None:
                stopped = self.end_epoch(self.epoch(batches))
                batches = None
        if self.steps:
            self.settle(self.parameters, self.best)
            calibrate(task, task.encoder)
            task.engine.broadcast_weights(task.encoder)  # and statistics: not a bit may differ
            _check_weights(task.encoder)
        task.encoder.eval()
        return task.engine.broadcast(
            Run(
                tuple(self.history),
                self.steps,
                task.forward_passes,
                self.seconds(),
                stopped,
                self.rollbacks,
                self.schedule.state(),
            )
        )

    @torch.no_grad()
    def settle(self, parameters: Sequence[Tensor], best: Sequence[Tensor] = ()) -> None:
        """Set the weights that a run ends with: averaged, and as far from the first as is kept."""
        self.ema.apply(parameters)
        if best:
            torch._foreach_copy_(list(parameters), list(best))
        if self.origin:
            torch._foreach_lerp_(list(parameters), self.origin, self.left_behind)

    def epoch(self, resumed: Iterator[ViewBatch] | None = None) -> Stop | None:
        """One epoch, step by step; returns why training ends in the middle of it, if it does."""
        task, strategy, engine = self.task, self.strategy, self.task.engine
        if resumed is None:
            task.begun, task.epoch_part = task.done, self.epoch_part()
        # Sample; two views of every item.
        batches = self.counted(resumed or task.view_batches(strategy.sample(task)))
        for batch in batches:
            weights = strategy.adapt(task, batches)  # θ′ where there are inner steps, else None
            first, second = task.embed(batch.views, parameters=weights)  # forward
            loss = strategy.loss(task, batch, first, second)  # loss
            self.losses.add(loss.detach())
            if self.schedule.watches and self.rolled_back():
                continue
            self.lr = self.schedule.next_lr(task.done)
            if self.schedule.watches:  # what is learned may differ by a bit between processes
                self.lr = engine.broadcast_float(self.lr)
            for parameter in self.parameters:
                parameter.grad = None
            engine.backward(loss, self.parameters)
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
            self.stepper.step(self.lr)  # step
            self.ema.update()
            self.steps += 1
            spent = self.spent()
            passes = task.forward_passes - self.passes_before
            epochs = passes / (self.passes_per_epoch * self.epochs)
            task.done = min(max(spent, epochs), 1.0)
            stopped = self.tell(loss.detach())
            if spent >= 1.0:
                return "budget"
            if stopped:
                return "callback"
            pressed = self.ctrl_c is not None and self.ctrl_c.pressed
            if self.file is not None and (pressed or self.file.due(engine, self.steps)):
                self.file.write(training_state(self), engine, last=pressed)
            if pressed:
                raise KeyboardInterrupt
        return None

    def counted(self, batches: Iterator[ViewBatch]) -> Iterator[ViewBatch]:
        for batch in batches:
            self.batches += 1
            yield batch

    def resumed(self, saved: dict[str, Any]) -> Iterator[ViewBatch]:
        """Bring back what was saved; returns the rest of the epoch that was interrupted."""
        task = self.task
        for _ in saved["history"]:
            deque(task.view_batches(self.strategy.sample(task), skip=sys.maxsize), maxlen=0)
        rest = task.view_batches(self.strategy.sample(task), skip=saved["batches"])
        restore(self, saved)
        log.info("training resumes after %d steps", self.steps)
        return rest

    @cached_property
    def checkpoint(self) -> Checkpoint:
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
        strategy, number, self.batches = self.strategy, len(self.history) + 1, 0
        if not self.losses.added:
            raise ValueError("the strategy gave an epoch without a batch: sample at least one")
        mean = self.losses.end_epoch(number)
        if self.steps - self.agreed >= UNREAD:
            # Steps that multiply matrices round otherwise on another kind of processor.
            self.task.engine.broadcast_weights(self.task.encoder)
            self.agreed = self.steps
        passes = self.task.forward_passes
        self.history.append(Epoch(number, mean, self.lr, self.steps, passes, self.seconds()))
        if self.tell(torch.tensor(mean), self.history[-1]) and stopped is None:
            stopped = "callback"
        if self.losses.waited == 0 and strategy.ema_decay == 0.0:
            self.best = [parameter.detach().clone() for parameter in self.parameters]
        if stopped is not None:
            return stopped
        if number >= self.epochs:
            return "epochs"
        if strategy.patience is not None and self.losses.waited >= strategy.patience:
            return "patience"
        return None

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def epoch_part(self) -> float:
        """The part of the run that the next epoch is, as far as its length can be told."""
        parts = [1.0 / self.epochs]
        if self.budget.forward_passes is not None:
            parts.append(self.passes_per_epoch / self.budget.forward_passes)
        if self.budget.seconds is not None and self.history:
            parts.append(self.task.done / len(self.history))
        return max(parts)

    def spent(self) -> float:
        """The part of the budget that is spent; 1 and more is all of it."""
        limit, spent = self.budget, 0.0
        if limit.seconds is not None:
            # Several processes ask the first one's clock, but for the first steps at every tenth.
            many = self.task.engine.processes > 1 and self.clock and self.steps > AGREED
            if not many or self.steps % AGREED == 0:
                self.clock = self.task.engine.broadcast_float(self.seconds())
            spent = self.clock / limit.seconds
        if limit.forward_passes is not None:
            spent = max(spent, self.task.forward_passes / limit.forward_passes)
        return spent

    def tell(self, loss: Tensor, finished: Epoch | None = None) -> bool:
        """Call the callbacks; returns whether one of them wants the run to end."""
        if not self.callbacks:
            return False
        if self.begun is None:
            self.begun = self.seconds(), self.task.done
        progress = Progress(
            epoch=len(self.history) + (finished is None),
            epochs=self.epochs,
            lr=self.lr,
            steps=self.steps,
            forward_passes=self.task.forward_passes,
            seconds=self.seconds(),
            done=self.task.done,
            finished=finished,
            snapshot=self.snapshot,
            step_loss=loss,
            begun=self.begun,
        )
        before = time.perf_counter()
        answers = [callback(progress) for callback in self.callbacks]
        self.start += time.perf_counter() - before
        return any(answer is False for answer in answers)

    def snapshot(self) -> nn.Module:
        """The encoder as it is here, with averaged weights where weights are averaged."""
        twin = copy.deepcopy(self.task.encoder)
        self.settle([p for p in twin.parameters() if p.requires_grad])
        with seeded(self.task.seed, "snapshot", device=self.task.engine.device):
            calibrate(self.task, twin)
        return twin.eval()


class _Losses:
    """The loss of every step of an epoch, and the lowest mean of the epochs so far.

    All processes go by the first one's losses. No mean loss up to ``least_bound`` is out of bounds:
    training from scratch may begin with a batch whose loss is low by luck.
    """

    def __init__(self, engine: Engine, least_bound: float = 0.0) -> None:
        self.added = 0  # steps of the run, those that were rolled back too
        self.best = math.inf  # lowest mean of an epoch
        self.waited = 0  # epochs since then
        self._engine = engine
        self._read: list[float] = []  # of this epoch
        self._unread: list[Tensor] = []
        self._checkpoint = 0  # how many of them were read at the last checkpoint
        self._checked = 0  # how many of them are known to be finite
        self._least_bound, self._bound = least_bound, math.nan

    def add(self, loss: Tensor) -> None:
        self.added += 1
        self._unread.append(loss)
        if len(self._unread) >= UNREAD:
            self.check()

    def last(self) -> float:
        """The loss of the last step, finite or not."""
        self._flush()
        return self._read[-1]

    def check(self) -> None:
        self._flush()
        for value in self._read[self._checked :]:
            if not math.isfinite(value):
                raise TrainingDiverged(
                    f"the loss became {value}: look for extreme values in the data, "
                    "or lower the learning rate"
                )
        self._checked = len(self._read)
        if math.isnan(self._bound) and self._read:
            # From here on a loss is no longer that of training. A collapsed encoder has
            # log(1 + K), far above this where training began from good weights.
            self._bound = max(self._read[0] + max(1.0, abs(self._read[0])), self._least_bound)

    def checkpoint(self) -> None:
        self._checkpoint = len(self._read)

    def rollback(self) -> None:
        del self._read[self._checkpoint :]
        self._checked = min(self._checked, self._checkpoint)

    def end_epoch(self, number: int) -> float:
        """The mean over the epoch's steps; the next epoch begins."""
        self.check()
        mean = sum(self._read) / len(self._read) if self._read else self.best
        if mean > self._bound:
            raise TrainingDiverged(
                f"the loss rose to {mean:.3g} in epoch {number}, beyond {self._bound:.3g}: "
                "lower the learning rate"
            )
        self.best, self.waited = (mean, 0) if mean < self.best else (self.best, self.waited + 1)
        self._read, self._checkpoint, self._checked = [], 0, 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {name: vars(self)[name] for name in vars(self).keys() - {"_engine", "_unread"}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _flush(self) -> None:
        if self._unread:
            self._read += self._engine.broadcast_(torch.stack(self._unread)).tolist()
            self._unread = []


class HoursAhead:
    """Warns once, a few seconds into a run that will take hours, and names what takes minutes."""

    looked = False

    def __call__(self, progress: Progress) -> None:
        if self.looked or progress.steps < 4 or progress.seconds - progress.begun[0] < 5.0:
            return
        self.looked = True
        left = progress.seconds_left
        if left > 3600.0:
            epochs = max(1, int(progress.epochs * 600.0 * (1.0 - progress.done) / left))
            log.warning(
                "training will take about %s on this machine. Minutes instead: a budget "
                "(Budget(seconds=600), --seconds 600), %s (max_epochs=%d), or a smaller encoder "
                "and smaller images (Images(32, encoder='small'), init --size 32)",
                duration(left),
                counted(epochs, "epoch"),
                epochs,
            )


def _check_weights(encoder: nn.Module) -> None:
    buffers = {name for name, _ in encoder.named_buffers()}
    for name, values in encoder.state_dict().items():
        # A buffer may be a mask, which has -inf where attention does not look.
        wrong = values.isnan() | values.isposinf() if name in buffers else ~values.isfinite()
        if wrong.any():
            raise TrainingDiverged(
                f"the last step made {name} NaN or infinite: lower the learning rate"
            )
