"""A time that several runs share."""

from __future__ import annotations

import math
import time

import pytest

from incontrast import ICL, Learner, NoUpdate, Retrain, Vectors
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
    clock = Clock(100.0, 4, closing=5.0)
    budgets = []
    for _ in range(4):
        budgets.append(clock.limits()["budget"].seconds)
        watch.now += budgets[-1] + 5.0
    assert budgets == [16.0] * 4
    assert watch.now <= 100.0


def test_a_machine_that_becomes_slower_does_not_move_the_end(watch) -> None:
    clock = Clock(100.0, 4, closing=1.0)
    for _ in range(4):
        limits = clock.limits()
        watch.now = min(watch.now + 1.25 * limits["budget"].seconds, limits["until"])
        watch.now += 8.0  # where one second was foreseen
        clock.closing = max(clock.closing, 8.0)
    assert watch.now <= 100.0 + 1e-6


def test_where_there_is_no_time_left_a_run_still_takes_a_step(watch) -> None:
    watch.now = 7.0
    limits = Clock(5.0, 2, closing=1.0).limits()
    assert limits["budget"].seconds > 0.0
    assert limits["until"] >= 7.0


def test_a_trace_knows_how_long_its_run_took_after_the_last_step(blobs) -> None:
    learner = Learner(Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=1))
    learner.fit(blobs(60))
    for strategy in (ICL(max_epochs=1), NoUpdate()):
        begin = time.perf_counter()
        closing = trace(learner, blobs(60), blobs(40, seed=1), strategy).closing_seconds
        assert 0.0 < closing < time.perf_counter() - begin


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
