"""A budget of seconds is for the whole call, by a clock that only the encoder moves."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch import Tensor, nn

import incontrast as ic

PER_ROW = 0.01  # seconds of a forward pass


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Ticking(nn.Sequential):
    """Every row that goes through it takes time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.clock = clock

    def forward(self, rows: Tensor) -> Tensor:
        self.clock.now += PER_ROW * len(rows)
        return super().forward(rows)

    def __deepcopy__(self, memo) -> Ticking:
        twin = Ticking(self.clock)
        twin.load_state_dict(self.state_dict())
        return twin


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.fixture
def learner(clock, blobs) -> ic.Learner:
    domain = ic.Vectors(8, encoder=lambda: Ticking(clock))
    learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=1), seed=0)
    learner.fit(blobs(700))
    return learner


@pytest.mark.parametrize("seconds", [60.0, 100.0])
def test_the_whole_update_takes_the_seconds_it_was_given(learner, clock, blobs, seconds) -> None:
    before = clock.now
    outcome = learner.update(
        blobs(300, shift=1.0),
        strategy=ic.ICL(max_epochs=10_000),
        budget=ic.Budget(seconds=seconds),
    )
    assert outcome.stopped == "budget"
    step = 2 * 96 * PER_ROW
    assert 0.8 * seconds <= clock.now - before <= 1.1 * seconds + step


def test_a_first_fit_too(clock, blobs) -> None:
    domain = ic.Vectors(8, encoder=lambda: Ticking(clock))
    learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=10_000), seed=0)
    outcome = learner.fit(blobs(700), budget=ic.Budget(seconds=80.0))
    assert outcome.stopped == "budget"
    assert 0.8 * 80.0 <= clock.now <= 1.1 * 80.0 + 2 * 32 * PER_ROW


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_a_budget_too_small_is_not_overspent(learner, clock, blobs, seconds) -> None:
    before = clock.now
    with pytest.raises(ValueError, match="is too small: reading and evaluating alone take") as seen:
        learner.update(blobs(300, shift=1.0), budget=ic.Budget(seconds=seconds))
    assert clock.now - before <= 1.1 * seconds + 512 * PER_ROW  # a batch that is embedded
    told = float(re.search(r"give at least ([\d.]+)", str(seen.value))[1])
    given = learner.update(blobs(300, shift=1.0), budget=ic.Budget(seconds=told))
    assert given.steps > 0


def test_a_budget_too_small_says_what_is_needed(learner, blobs) -> None:
    weights = {name: value.clone() for name, value in learner.encoder.state_dict().items()}
    with pytest.raises(ValueError, match=r"a budget of 5 seconds is too small: .* at least \d+"):
        learner.update(blobs(300), budget=ic.Budget(seconds=5.0))
    assert learner.version == 1
    for name, value in learner.encoder.state_dict().items():
        assert torch.equal(value, weights[name])
