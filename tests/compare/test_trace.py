"""An update, watched."""

from __future__ import annotations

import pytest
import torch

from incontrast import ICL, Budget, Learner, NoUpdate, Retrain, Vectors
from incontrast.compare.trace import Point, Trace, trace
from incontrast.evaluate import EvaluationLoss


@pytest.fixture
def learner(blobs) -> Learner:
    fitted = Learner(Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=3), seed=0)
    fitted.fit(blobs(60))
    return fitted


def test_a_trace_begins_before_the_update_and_ends_after_it(learner, blobs) -> None:
    weights = {name: value.clone() for name, value in learner.encoder.state_dict().items()}
    new = blobs(40, seed=1)
    traced = trace(learner, blobs(60), new, ICL(max_epochs=4))
    assert traced.points[0].loss == learner.evaluation_loss(blobs(60), new)
    assert traced.points[-1].loss == traced.learner.evaluation_loss(blobs(60), new)
    assert traced.points[-1].forward_passes == traced.outcome.forward_passes
    assert [point.epochs for point in traced.points] == [0, 1, 2, 3, 4, 4]
    assert learner.version == 1
    for name, value in learner.encoder.state_dict().items():
        assert torch.equal(weights[name], value)


def test_watching_changes_nothing(learner, blobs) -> None:
    traced = trace(learner, blobs(60), blobs(40, seed=1), ICL(max_epochs=4))
    learner.update(blobs(40, seed=1), strategy=ICL(max_epochs=4))
    rows = blobs(10, seed=2)
    assert torch.equal(traced.learner.embed(rows), learner.embed(rows))


def test_budgets_and_nothing_to_do(learner, blobs) -> None:
    ended = trace(learner, blobs(60), blobs(40, seed=1), ICL(), budget=Budget(forward_passes=200))
    assert ended.outcome.stopped == "budget"
    assert len(trace(learner, blobs(60), blobs(40, seed=1), NoUpdate()).points) == 2


def test_reaching_is_about_old_new_and_all() -> None:
    losses = [
        (1.0, 1.0, 1.0),
        (0.5, 0.9, 0.6),
        (0.61, 0.5, 0.58),
        (0.51, 0.51, 0.51),
        (0.5, 0.5, 0.5),
    ]
    points = tuple(Point(float(t), t, t, EvaluationLoss(*loss)) for t, loss in enumerate(losses))
    traced = Trace(NoUpdate(), points, None, None)  # type: ignore[arg-type]
    assert traced.reaches(EvaluationLoss(0.6, 0.6, 0.6)).seconds == 2
    assert traced.reaches(EvaluationLoss(0.5, 0.5, 0.51)).seconds == 3
    assert traced.reaches(EvaluationLoss(0.5, 0.5, 0.5)).seconds == 4
    assert traced.reaches(EvaluationLoss(0.4, 0.6, 0.6)) is None
    assert traced.reaches(EvaluationLoss(2.0, 2.0, 2.0)).seconds == 1, "the start does not count"


def test_measuring_waits_where_it_takes_too_long(learner, blobs) -> None:
    traced = trace(learner, blobs(60), blobs(40, seed=1), ICL(max_epochs=4), measuring=0.0)
    assert [point.epochs for point in traced.points] == [0, 1, 4], "one along the way, and the end"
