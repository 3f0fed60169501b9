"""A time that several runs share."""

from __future__ import annotations

import math

import pytest

from incontrast import ICL, Learner, Retrain, Vectors
from incontrast.compare import run as comparison
from incontrast.compare.run import SAMPLE, _affordable, _limits
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


def run_all(watch: Watch, end: float, runs: int, evaluating: float) -> list[float]:
    """The seconds of training of runs that each use all they may and then evaluate."""
    budgets: list[float] = []
    for number in range(runs):
        limits = _limits(end, runs - number, min(budgets, default=math.inf))
        budgets.append(limits["budget"].seconds)
        watch.now = min(watch.now + 1.25 * budgets[-1], limits["until"]) + evaluating
    return budgets


def test_runs_have_the_same_time(watch) -> None:
    assert run_all(watch, 100.0, 4, evaluating=7.5) == pytest.approx([14.0] * 4)
    assert watch.now == pytest.approx(100.0)


def test_a_machine_that_becomes_slower_hardly_moves_the_end(watch) -> None:
    budgets = run_all(watch, 100.0, 4, evaluating=10.0)
    assert budgets == sorted(budgets, reverse=True)
    assert watch.now < 105.0, "within the time that is spare"


def test_where_there_is_no_time_left_a_run_still_takes_a_step(watch) -> None:
    watch.now = 7.0
    limits = _limits(5.0, 2, math.inf)
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
    assert _affordable(learner, blobs(600), blobs(600), end=0.0, runs=6) == 64
    assert _affordable(learner, blobs(600), blobs(600), end=math.inf, runs=6) == SAMPLE
