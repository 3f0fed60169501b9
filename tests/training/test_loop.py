"""The training loop, on strategies that do nothing but show what it does."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from incontrast import (
    Adam,
    Budget,
    Fixed,
    NoUpdate,
    Retrain,
    Strategy,
    TensorCollection,
    TrainingDiverged,
    Vectors,
)
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.schedules.schedule import LearningRate, Schedule, ScheduleState, Verdict
from incontrast.training.averages import ExponentialMovingAverage, calibrate
from incontrast.training.engine import Engine
from incontrast.training.loop import UNREAD, HoursAhead, Training, _Losses, train
from incontrast.training.progress import Progress
from incontrast.training.task import BatchIndices, Increment, Task, ViewBatch


def task(rows: Tensor, encoder: nn.Module | None = None) -> Task:
    domain = Vectors(rows.shape[1], hidden=16, out=8).fit_statistics(TensorCollection(rows))
    with seeded(0, "test"):
        encoder = encoder or domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(None, TensorCollection(rows), 0),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
    )


@dataclass(frozen=True, kw_only=True)
class Scripted(Strategy):
    """Losses whose values are given, epoch by epoch; two steps of five items each."""

    values: tuple[float, ...]

    def epoch_items(self, increment: Increment) -> int:
        return 10

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        for _ in range(2):
            yield BatchIndices(torch.arange(0), torch.arange(5))

    def loss(self, task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
        step = next(task.once("steps", itertools.count))
        total = torch.stack([p.sum() for p in task.encoder.parameters()]).sum()
        return total - total.detach() + self.values[step // 2]


def scripted(*values: float, **settings: Any) -> Scripted:
    return Scripted(**{"values": values, "max_epochs": len(values), **settings})


def test_patience_ends_training_after_so_many_epochs_without_a_new_low(blobs) -> None:
    strategy = scripted(3.0, 2.0, 2.5, 2.0, 1.5, 2.0, 2.0, 2.0, 1.0, patience=3)
    run = train(task(blobs(8)), strategy)
    assert run.stopped == "patience"
    assert [epoch.loss for epoch in run.history] == [3.0, 2.0, 2.5, 2.0, 1.5, 2.0, 2.0, 2.0]
    assert run.steps == 16


def test_max_epochs_ends_training(blobs) -> None:
    run = train(task(blobs(8)), scripted(*(1.0,) * 9, max_epochs=4))
    assert (run.stopped, len(run.history), run.steps) == ("epochs", 4, 8)


def test_a_budget_of_passes_ends_training_inside_an_epoch(blobs) -> None:
    run = train(task(blobs(8)), scripted(*(1.0,) * 9), budget=Budget(forward_passes=50))
    assert (run.stopped, run.steps, run.forward_passes) == ("budget", 5, 50)


def test_a_budget_of_seconds_ends_training(blobs) -> None:
    run = train(
        task(blobs(64)), Retrain(max_epochs=10**6, patience=None), budget=Budget(seconds=0.2)
    )
    assert run.stopped == "budget"
    assert run.steps > 0


def test_time_in_callbacks_does_not_count(blobs) -> None:
    import time

    run = train(
        task(blobs(8)), scripted(*(1.0,) * 5), callbacks=[lambda progress: time.sleep(0.05)]
    )
    assert 0.0 < run.seconds < 0.05 * 15


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_training(blobs, value: float) -> None:
    with pytest.raises(TrainingDiverged, match=f"the loss became {value}"):
        train(task(blobs(8)), Scripted(values=(1.0, value)))


def test_a_diverging_loss_stops_training(blobs) -> None:
    updated = task(blobs(8))
    updated.before = updated.encoder
    with pytest.raises(TrainingDiverged, match="rose to 9 in epoch 2, beyond 2: lower"):
        train(updated, scripted(1.0, 9.0))
    with pytest.raises(TrainingDiverged, match=r"rose to 9 in epoch 2, beyond 4\.47: lower"):
        train(task(blobs(8)), scripted(1.0, 9.0))


def test_weights_that_the_last_step_made_infinite_are_refused(blobs) -> None:
    with pytest.raises(TrainingDiverged, match=r"the last step made .* NaN or infinite"):
        train(task(blobs(16)), Retrain(max_epochs=1, lr=Fixed(1e38)))


def test_without_averaging_the_best_epoch_counts(blobs) -> None:
    weights: list[dict[str, Tensor]] = []

    def remember(progress) -> None:
        if progress.finished is not None:
            copy = {n: p.detach().clone() for n, p in trained.encoder.named_parameters()}
            weights.append(copy)

    trained = task(blobs(8))
    train(trained, scripted(2.0, 1.0, 1.5, ema_decay=0.0), callbacks=[remember])
    for name, parameter in trained.encoder.named_parameters():
        assert torch.equal(parameter, weights[1][name])
        assert not torch.equal(parameter, weights[2][name])


def test_an_epoch_without_losses_is_an_error(blobs) -> None:
    class Empty(Scripted):
        def sample(self, task):
            return iter(())

    with pytest.raises(ValueError, match="an epoch without a batch"):
        train(task(blobs(8)), Empty(values=(1.0,)))


def test_progress_is_told_after_each_step_and_each_epoch(blobs) -> None:
    told = []
    train(task(blobs(8)), scripted(2.0, 1.0, lr=Fixed(0.25)), callbacks=[told.append])
    assert [(p.epoch, p.steps, p.finished is not None) for p in told] == [
        (1, 1, False),
        (1, 2, False),
        (1, 2, True),
        (2, 3, False),
        (2, 4, False),
        (2, 4, True),
    ]
    assert told[0].epochs == 2
    assert told[0].lr == 0.25
    assert told[-1].forward_passes == 40


def test_a_snapshot_is_what_training_would_give_and_disturbs_nothing(blobs) -> None:
    strategy = Retrain(max_epochs=3)
    undisturbed = task(blobs(64))
    train(undisturbed, strategy)
    watched, snapshots = task(blobs(64)), []

    def look(progress) -> None:
        if progress.finished is not None:
            snapshots.append(progress.snapshot())

    train(watched, strategy, callbacks=[look])
    for name, value in undisturbed.encoder.state_dict().items():
        assert torch.equal(watched.encoder.state_dict()[name], value), name
        assert torch.equal(snapshots[-1].state_dict()[name], value), name
    assert not snapshots[-1].training
    one_epoch = task(blobs(64))
    train(one_epoch, dataclasses.replace(strategy, max_epochs=1))
    for name, value in one_epoch.encoder.state_dict().items():
        assert torch.equal(snapshots[0].state_dict()[name], value), name


@pytest.mark.parametrize("leaning", [1.0, 2.5])
def test_weights_end_as_the_average_of_the_iterates(leaning: float) -> None:
    weight = torch.zeros(2)
    average = ExponentialMovingAverage([weight], 0.5, leaning)
    iterates = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 0.0])]
    mean = weight.clone()
    for step, iterate in enumerate(iterates, start=1):
        weight.copy_(iterate)
        average.update()
        mean = mean + max(0.5, leaning / (step + leaning)) * (iterate - mean)
    result = torch.empty(2)
    average.apply([result])
    torch.testing.assert_close(result, mean)


def test_an_update_keeps_a_part_of_its_change_and_a_first_fit_all_of_it(blobs) -> None:
    def weights(interpolation: float, *, update: bool) -> Tensor:
        run = task(blobs(8))
        if update:
            run.before = copy.deepcopy(run.encoder)
        train(run, scripted(1.0, 0.5, interpolation=interpolation))
        return torch.cat([p.detach().flatten() for p in run.encoder.parameters()])

    origin = torch.cat([p.detach().flatten() for p in task(blobs(8)).encoder.parameters()])
    whole = weights(1.0, update=True)
    assert not torch.equal(whole, origin)
    torch.testing.assert_close(weights(0.25, update=True), origin + 0.25 * (whole - origin))
    assert torch.equal(weights(0.25, update=False), whole)


def test_the_part_of_a_run_that_an_epoch_is() -> None:
    def part(*history: int, done: float = 0.0, **limits: Any) -> float:
        run = SimpleNamespace(epochs=10, passes_per_epoch=20, history=history)
        run.budget, run.task = Budget(**limits), SimpleNamespace(done=done)
        return Training.epoch_part(run)

    assert part() == pytest.approx(0.1)
    assert part(forward_passes=100) == pytest.approx(0.2)
    assert part(seconds=9.0) == pytest.approx(0.1)  # nobody knows yet how long an epoch takes
    assert part(1, 2, done=0.6, seconds=9.0) == pytest.approx(0.3)


def test_calibration_sets_batch_norm_to_the_statistics_of_views(blobs) -> None:
    # BatchNorm first, and no corruption: its statistics are then those of the standardised rows.
    rows = blobs(512)
    calibrated = task(rows, nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)))
    calibrated.domain = dataclasses.replace(calibrated.domain, drop=0.0, noise=0.0)
    norm = calibrated.encoder[0]
    norm.running_mean.fill_(7.0)
    calibrate(calibrated, calibrated.encoder)
    variance, mean = torch.var_mean(calibrated.domain.prepare(rows), dim=0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-2, atol=0.0)


def test_dropout_is_reproducible_and_the_global_generator_untouched(blobs) -> None:
    def weights() -> Tensor:
        with seeded(0, "encoder"):
            encoder = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
        trained = task(blobs(32), encoder)
        train(trained, Retrain(max_epochs=1))
        return trained.encoder[0].weight.detach()

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = weights()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(weights(), first)


def test_bfloat16_trains(blobs) -> None:
    domain = Vectors(8, hidden=16, out=8)
    half = task(blobs(64), domain.encoder())
    half.engine = Engine("cpu", "bfloat16")
    run = train(half, Retrain(max_epochs=3))
    assert math.isfinite(run.history[-1].loss)
    assert next(half.encoder.parameters()).dtype == torch.float32


def test_devices_and_precisions_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here"):
        Engine("cuda:99")
    with pytest.raises(ValueError, match="precision must be 'float32' or 'bfloat16', got 'half'"):
        Engine("cpu", "half")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 3}, "batch_size must be at least 4"),
        ({"max_epochs": 0}, "max_epochs must be at least 1"),
        ({"patience": 0}, "None waits for ever"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\)"),
    ],
)
def test_settings_are_checked(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retrain(**arguments)


@pytest.mark.parametrize("limit", [{"seconds": 0}, {"forward_passes": -1}])
def test_budgets_are_checked(limit) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Budget(**limit)


@dataclass(frozen=True)
class Judging(Schedule):
    """Verdicts that are given, step by step."""

    verdicts: tuple[str | None, ...]

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearningRate:
        return _JudgingRates(list(self.verdicts))


class _JudgingRates(LearningRate):
    watches = True

    def __init__(self, verdicts: list[str | None]) -> None:
        self._verdicts = verdicts

    def observe(self, loss: float) -> Verdict | None:
        return self._verdicts.pop(0) if self._verdicts else None

    def next_lr(self, progress: float) -> float:
        return 0.1

    def state(self) -> ScheduleState:
        return {"left": torch.tensor(float(len(self._verdicts)))}


def test_steps_that_are_rolled_back_leave_no_trace(blobs) -> None:
    def weights(*verdicts: str | None, epochs: int) -> tuple[list[Tensor], int]:
        own = task(blobs(8))
        strategy = scripted(*(1.0,) * epochs, lr=Judging(verdicts), ema_decay=0.9)
        run = train(own, strategy)
        return [p.detach().clone() for p in own.encoder.parameters()], run.rollbacks

    straight, none = weights("checkpoint", None, epochs=1)
    detour, once = weights(None, "checkpoint", None, "rollback", epochs=2)
    # One step before the checkpoint, one after it that is rolled back; the step at hand is dropped.
    assert (none, once) == (0, 1)
    one, _ = weights("checkpoint", "rollback", None, "rollback", epochs=2)
    for ours, theirs, start in zip(
        one, [p.detach() for p in task(blobs(8)).encoder.parameters()], detour, strict=True
    ):
        assert torch.equal(ours, theirs)
        assert not torch.equal(start, theirs)
    assert all(not torch.equal(a, b) for a, b in zip(straight, one, strict=True))


def test_what_a_schedule_has_learned_is_handed_over(blobs) -> None:
    run = train(task(blobs(8)), scripted(1.0, lr=Judging((None,) * 5)))
    assert run.schedule_state["left"].item() == 3.0


def test_an_epoch_of_rolled_back_steps_counts_as_no_progress(blobs) -> None:
    verdicts = ("checkpoint", None, "rollback", "rollback", None, None)
    run = train(task(blobs(8)), scripted(1.0, 9.0, 0.5, lr=Judging(verdicts)))
    assert [epoch.loss for epoch in run.history] == [1.0, 1.0, 0.5]
    assert run.rollbacks == 2


def test_layers_of_an_update_are_capped(blobs) -> None:
    def capped(optimizer: Adam) -> int:
        strategy = Retrain(optimizer=optimizer)
        return len(Training(task(blobs(8)), strategy, 8, Budget(), (), None, None).stepper.capped)

    assert capped(Adam()) == 0
    assert capped(Adam(max_relative_update=1 / 8)) == 3  # the layers of the encoder


def test_a_first_loss_that_is_low_by_luck_does_not_end_a_fit() -> None:
    losses = _Losses(Engine("cpu"), least_bound=math.log(32) + 1.0)
    for value in (0.5, 3.0, 3.2):
        losses.add(torch.tensor(value))
    assert losses.end_epoch(1) == pytest.approx(6.7 / 3)
    losses.add(torch.tensor(4.6))
    with pytest.raises(TrainingDiverged, match=r"rose to 4\.6"):
        losses.end_epoch(2)


def test_a_frozen_encoder_can_be_left_as_it_is(blobs) -> None:
    frozen = task(blobs(64))
    frozen.encoder.requires_grad_(False)
    assert train(frozen, NoUpdate()).stopped == "nothing to do"


def test_losses_are_read_every_so_many_steps() -> None:
    losses = _Losses(Engine("cpu"))
    for _ in range(UNREAD - 1):
        losses.add(torch.tensor(math.nan))  # nobody looks yet: that would make a device wait
    with pytest.raises(TrainingDiverged, match="the loss became nan"):
        losses.add(torch.tensor(1.0))
    assert losses.added == UNREAD


def test_processes_get_the_first_ones_weights_at_the_end_of_an_epoch_after_so_many_steps(
    blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, told = [0], []
    monkeypatch.setattr(Engine, "broadcast_weights", lambda *_: told.append(taken[-1]))
    strategy = scripted(*(1.0,) * 60, patience=None)  # epochs of two steps
    train(task(blobs(8)), strategy, callbacks=[lambda progress: taken.append(progress.steps)])
    assert told == [UNREAD, 2 * UNREAD, 120]  # and at the end of the run


def test_the_time_left_is_told_and_hours_are_warned_of(caplog) -> None:
    progress = Progress(
        epoch=1,
        epochs=200,
        lr=1e-3,
        steps=3,
        forward_passes=600,
        seconds=10.0,
        done=0.0005,
        finished=None,
        snapshot=lambda: None,
        step_loss=torch.tensor(1.0),
    )
    assert progress.seconds_left == pytest.approx(19990.0)
    assert replace(progress, done=0.0).seconds_left == math.inf
    warm = replace(progress, seconds=110.0, done=0.5, begun=(100.0, 0.4))  # after a slow first step
    assert warm.seconds_left == pytest.approx(50.0)
    begun = (100.0, 0.0)  # slow, as first steps are
    first = replace(progress, steps=1, seconds=100.0, done=0.0, begun=begun)
    later = replace(progress, steps=4, seconds=110.0, begun=begun)
    warn = HoursAhead()
    with caplog.at_level(logging.WARNING):
        warn(first)
        warn(replace(later, done=0.5))
        warn(later)  # looked once
    assert not caplog.text
    warn = HoursAhead()
    with caplog.at_level(logging.WARNING):
        warn(first)
        warn(later)
    assert "will take about 5.6 h on this machine" in caplog.text
    assert "--seconds 600), 6 epochs (max_epochs=6)" in caplog.text


def test_a_slow_first_step_does_not_end_a_budget_of_several_processes() -> None:
    run = SimpleNamespace(
        budget=Budget(seconds=30), clock=0.0, steps=0, task=SimpleNamespace(forward_passes=0)
    )
    run.task.engine = SimpleNamespace(processes=2, broadcast_float=lambda number: number)
    seconds, spent = 0.0, [0.0]
    for run.steps in range(1, 201):
        seconds += 4.0 if run.steps == 1 else 0.1
        run.seconds = lambda now=seconds: now
        spent.append(Training.spent(run))
    assert spent == sorted(spent)
    assert spent[20] == pytest.approx((4.0 + 1.9) / 30)
