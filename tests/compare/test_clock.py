"""A time that several runs share."""

from __future__ import annotations

import math

import pytest

from incontrast import ICL, Learner, Retrain, Vectors
from incontrast.compare import run as comparison
from incontrast.compare.run import SAMPLE, Clock, _affordable
from incontrast.compare.trace import trace


class Watch:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(comparison, "time", made)
    return made


def test_runs_have_the_same_time(watch) -> None:
    clock = Clock(100.0, 4, ending=5.0, measuring=0.25)
    seen = []
    for _ in range(4):
        with clock:
            seen.append(clock.limits(lambda step: None))
            watch.now += seen[-1]["budget"].seconds
            seen[-1]["progress"](None)  # the last step
            watch.now += 5.0
    assert [limits["budget"].seconds for limits in seen] == [16.0] * 4
    assert watch.now <= 100.0


def test_a_machine_that_becomes_slower_does_not_move_the_end(watch) -> None:
    clock = Clock(100.0, 4, ending=1.0, measuring=0.0)
    for _ in range(4):
        with clock:
            limits = clock.limits(lambda step: None)
            watch.now = min(watch.now + limits["budget"].seconds, limits["until"])
            limits["progress"](None)
            watch.now += 8.0  # where one second was foreseen
    assert watch.now <= 100.0 + 1e-6


def test_where_there_is_no_time_left_a_run_still_takes_a_step(watch) -> None:
    watch.now = 7.0
    clock = Clock(5.0, 2, ending=1.0, measuring=0.25)
    with clock:
        limits = clock.limits(lambda step: None)
    assert limits["budget"].seconds > 0.0
    assert limits["until"] >= 7.0


def test_training_ends_when_it_must(blobs) -> None:
    learner = Learner(Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=1))
    learner.fit(blobs(60))
    traced = trace(learner, blobs(60), blobs(40, seed=1), ICL(max_epochs=100), until=0.0)
    assert (traced.outcome.steps, traced.outcome.stopped) == (1, "callback")


def test_evaluation_is_of_fewer_items_where_it_is_slow(blobs) -> None:
    learner = Learner(Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=1))
    learner.fit(blobs(600))
    assert _affordable(learner, blobs(600), blobs(600), end=0.0, runs=6)[0] == 64
    assert _affordable(learner, blobs(600), blobs(600), end=math.inf, runs=6)[0] == SAMPLE
