"""Schedules that look at nothing but how far the run is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Generator

from incontrast import Budget, Cosine, Fixed, Learner, LearningRate, Retrain, Schedule, Vectors
from incontrast.schedules import as_schedule


def test_a_fixed_learning_rate_stays() -> None:
    fixed = Fixed(0.1).begin(Generator())
    assert [fixed.next_lr(done) for done in (0.0, 0.5, 1.0)] == [0.1, 0.1, 0.1]


def test_a_cosine_falls_over_the_run() -> None:
    cosine = Cosine(0.1).begin(Generator())
    for done in (0.0, 0.25, 0.5, 1.0, 1.2):
        expected = 0.1 * (1 + math.cos(math.pi * min(done, 1.0))) / 2
        assert cosine.next_lr(done) == pytest.approx(expected)


@pytest.mark.parametrize(("schedule", "later"), [(Cosine, 0.05), (Fixed, 0.1)])
def test_a_warm_up_rises_first(schedule, later) -> None:
    begun = schedule(0.1, warmup=0.2).begin(Generator())
    assert 0 < begun.next_lr(0.0) < 0.001
    assert begun.next_lr(0.1) == pytest.approx(0.05)
    assert begun.next_lr(0.2) == pytest.approx(0.1)
    assert begun.next_lr(0.6) == pytest.approx(later)


@pytest.mark.parametrize("budget", [None, Budget(forward_passes=640)])
def test_a_cosine_takes_its_length_from_the_run(budget: Budget | None, blobs) -> None:
    told = []
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=10, lr=Cosine(1e-3)))
    learner.fit(blobs(64), budget=budget, callbacks=[told.append])
    rates = [step.lr for step in told if step.finished is None]
    steps = 20 if budget is None else 10
    expected = [1e-3 * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
    assert rates == pytest.approx(expected)


def test_a_number_is_a_fixed_schedule() -> None:
    assert as_schedule(0.25) == Fixed(0.25)
    assert as_schedule(Cosine(0.25)) == Cosine(0.25)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_learning_rates_are_checked(lr: float) -> None:
    for make in (Fixed, Cosine, lambda lr: Retrain(lr=lr)):
        with pytest.raises(ValueError, match="a learning rate must be positive and finite"):
            make(lr)


@pytest.mark.parametrize("schedule", [Cosine, Fixed])
def test_a_warm_up_is_a_part_of_the_run(schedule) -> None:
    with pytest.raises(ValueError, match=r"warmup must be in \[0, 1\)"):
        schedule(1e-3, warmup=1.0)


@dataclass(frozen=True)
class Halving(Schedule):
    """A schedule of one's own."""

    def begin(self, generator, state=None) -> LearningRate:
        class Half(LearningRate):
            def next_lr(self, progress: float) -> float:
                return 1e-3 if progress < 0.5 else 5e-4

        return Half()


def test_a_schedule_of_ones_own_needs_one_method(blobs) -> None:
    told = []
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=2, lr=Halving()))
    learner.fit(blobs(64), callbacks=[told.append])
    assert [step.lr for step in told if step.finished is None] == [1e-3, 1e-3, 5e-4, 5e-4]
    assert torch.isfinite(learner.embed(blobs(4))).all()
