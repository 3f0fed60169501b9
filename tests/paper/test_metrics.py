"""The metrics of a row, from an update that is written down by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from incontrast import Learner, NoUpdate, Vectors
from incontrast.compare.trace import Point, Trace, trace
from incontrast.data import Labelled
from incontrast.evaluate import EvaluationLoss
from incontrast.outcome import Change, Outcome
from incontrast.training.progress import Epoch, Progress
from paper import experiment
from paper.clock import Clock
from paper.experiment import Experiment
from paper.metrics import accuracies, curve, paper_protocol, parity_protocol, totals
from paper.sets import SMALL, Splits
from paper.strategies import retraining

# Five epochs, each ten seconds by the wall and one of the processor. The paper's rule with a
# patience of two stops after the fourth, whose lowest loss was the second's; the evaluation loss
# is at parity with 0.5 from the third on.
TRAINING_LOSSES = (3.0, 2.0, 2.5, 2.6, 1.0)
EVALUATION_LOSSES = (0.9, 0.8, 0.7, 0.5, 0.4, 0.3)
TARGET = EvaluationLoss(0.5, 0.5, 0.5)
DATA = replace(SMALL["digits-vectors"], items=90, patience=2, max_epochs=10)


def by_hand(encoder: nn.Module | None = None) -> Trace:
    history = tuple(
        Epoch(number, loss, 1e-3, 3 * number, 100 * number, 10.0 * number)
        for number, loss in enumerate(TRAINING_LOSSES, start=1)
    )
    points = [
        Point(10.0 * number, 100 * number, number, EvaluationLoss(loss, loss, loss))
        for number, loss in enumerate(EVALUATION_LOSSES)
    ]
    first, last = points[0].loss, points[-1].loss
    outcome = Outcome(
        strategy=NoUpdate(),
        growth_ratio=0.3,
        loss=Change(first, last),
        change_ratio=None,
        seconds=51.0,
        evaluation_seconds=0.0,
        epochs=5,
        steps=15,
        forward_passes=500,
        stopped="budget",
        rollbacks=0,
        kept=1.0,
        history=history,
    )
    points.append(Point(51.0, 500, 5, last))
    learner = SimpleNamespace(encoder=encoder)
    return Trace(NoUpdate(), tuple(points), outcome, learner)


@pytest.mark.parametrize(("second", "end"), [(1.0, 5.5), (10.0, 51.0)])
def test_each_figure_is_of_its_moment_and_its_clock(second: float, end: float) -> None:
    epochs = [number * second for number in range(1, 6)]
    clock = SimpleNamespace(points=[0.0, *epochs, end], epochs=epochs)
    paper = paper_protocol(by_hand(), DATA, clock)
    assert (paper["stopped"], paper["epochs"]) == ("patience", 4)
    assert paper["best"] == {
        "seconds": 2 * second,
        "wall_seconds": 20.0,
        "epochs": 2,
        "forward_passes": 200,
        "loss": 2.0,
    }
    parity = parity_protocol(by_hand(), TARGET, clock)
    assert parity["reached"] == {
        "seconds": 3 * second,
        "wall_seconds": 30.0,
        "epochs": 3,
        "forward_passes": 300,
    }
    assert [parity[part]["all"] for part in ("before", "target", "after")] == [0.9, 0.5, 0.3]
    assert parity_protocol(by_hand(), EvaluationLoss(0.2, 0.2, 0.2), clock)["reached"] is None
    assert totals(by_hand(), clock) == {
        "seconds": end,
        "wall_seconds": 51.0,
        "epochs": 5,
        "steps": 15,
        "forward_passes": 500,
        "stopped": "budget",
    }
    drawn = curve(by_hand(), clock)
    assert drawn["seconds"] == [*(number * second for number in range(6)), end]
    assert drawn["forward_passes"] == [0, 100, 200, 300, 400, 500, 500]
    assert drawn["new"] == [*EVALUATION_LOSSES, EVALUATION_LOSSES[-1]]
    assert drawn["training_loss"] == list(TRAINING_LOSSES)


@pytest.fixture
def row_of(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Gives the row of an update by hand, with names of its encoders as accuracies."""
    (group,) = tiny(max_epochs=10).groups()
    encoders = [nn.Identity() for _ in range(6)]  # after each epoch; the last is the whole run's
    names = ["epoch 1", "epoch 2", "epoch 3", "epoch 4", "epoch 5", "end"]
    named = dict(zip(map(id, encoders), names, strict=True))
    budgets = []
    spent = 0.0
    monkeypatch.setattr("paper.clock.time", SimpleNamespace(process_time=lambda: spent))

    def traced(learner, old, new, strategy, *, budget, progress, seen, **options) -> Trace:
        nonlocal spent
        budgets.append(budget)
        found = by_hand(encoders[-1])
        epochs = zip(found.outcome.history, found.points[1:-1], encoders[:-1], strict=True)
        for epoch, point, encoder in epochs:
            step = Progress(
                epoch=epoch.number,
                epochs=10,
                lr=epoch.lr,
                steps=epoch.steps,
                forward_passes=epoch.forward_passes,
                seconds=epoch.seconds,
                done=0.1 * epoch.number,
                finished=epoch,
                snapshot=lambda encoder=encoder: encoder,
                step_loss=torch.tensor(epoch.loss),
            )
            spent += 1.0
            progress(step)
            seen(point, encoder)
        seen(found.points[-1], encoders[-1])
        return found

    monkeypatch.setattr(experiment, "trace", traced)
    monkeypatch.setattr(experiment, "biases", lambda *of: {})
    monkeypatch.setattr(experiment, "accuracies", lambda encoder, *of: named[id(encoder)])
    bench = Experiment(group, retraining(group.data, 1e-3), None, tmp_path)
    learner = SimpleNamespace(
        engine=SimpleNamespace(device=torch.device("cpu")), memory=SimpleNamespace(items=None)
    )

    def make(target: EvaluationLoss | None):
        retrained = None
        if target is not None:
            retrained = {"parity": {"after": target._asdict()}, "total": {"forward_passes": 700}}
        row = bench.run("icl", NoUpdate(), learner, retrained=retrained, callback=lambda step: None)
        return row, budgets[-1]

    return make


def test_accuracy_is_that_of_the_encoder_of_each_protocols_moment(row_of) -> None:
    row, budget = row_of(TARGET)
    assert row["paper"]["accuracy"] == "epoch 4", "where the paper's rule stops"
    assert row["parity"]["accuracy"] == "epoch 3", "the first at parity"
    assert budget.forward_passes == 700, "as many as retraining"
    assert row["paper"]["best"]["epochs"] == 2
    assert row["parity"]["reached"]["forward_passes"] == 300
    # Up to the first callback and after the last one the wall counts, between them the processor.
    assert row["total"]["seconds"] == 10.0 + 4 * 1.0 + 1.0


def test_without_a_moment_accuracy_is_that_of_the_whole_run(row_of) -> None:
    never, _ = row_of(EvaluationLoss(0.2, 0.2, 0.2))
    assert never["parity"]["accuracy"] == "end"
    assert never["paper"]["accuracy"] == "epoch 4"
    retrained, budget = row_of(None)
    assert retrained["paper"]["accuracy"] == retrained["parity"]["accuracy"] == "end"
    assert budget is None


@pytest.mark.parametrize(
    ("threads", "points"), [(1, [0.0, 2.5, 5.5, 6.5]), (2, [0.0, 4.0, 9.0, 10.0])]
)
def test_processor_time_is_that_between_callbacks(
    threads: int, points: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    def measured(*of: object, **options: object) -> SimpleNamespace:
        spend(100.0)  # not of training
        return SimpleNamespace(evaluation_loss=lambda: TARGET)

    class Fake:
        domain = SimpleNamespace(collect=list)
        memory = SimpleNamespace(seen=2)
        objective = engine = encoder = None
        seed = 0

        def update(self, new, *, strategy, budget, callbacks) -> Outcome:
            def step(number: int, wall: float, ended: Epoch | None) -> None:
                loss = torch.tensor(1.0)
                now = Progress(
                    number, 2, 1e-3, number, number, wall, 0.5, ended, lambda: None, loss
                )
                for callback in callbacks:
                    callback(now)

            spend(9.0)  # before the first callback, where the wall's 0.5 count
            step(1, 0.5, None)
            spend(2.0)
            step(2, 4.0, Epoch(1, 1.0, 1e-3, 2, 2, 4.0))
            spend(3.0)
            step(3, 9.0, Epoch(2, 1.0, 1e-3, 3, 3, 9.0))
            spend(9.0)  # after the last one, where the wall's 1.0 count
            return replace(by_hand().outcome, seconds=10.0)

    monkeypatch.setattr("paper.clock.time", SimpleNamespace(process_time=lambda: now))
    monkeypatch.setattr("incontrast.compare.trace.measure", measured)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    clock = Clock(torch.device("cpu"))

    def progress(step: Progress) -> None:
        clock.stop(step.seconds, epoch_ended=step.finished is not None)
        spend(50.0)
        clock.go()

    def seen(point: Point, encoder: object) -> None:
        clock.point(point.seconds)

    traced = trace(Fake(), [1, 2], [3], NoUpdate(), progress=progress, seen=seen)
    assert clock.points == points
    assert clock.epochs == points[1:3]
    assert [point.seconds for point in traced.points] == [0.0, 4.0, 9.0, 10.0]


def two_kinds(count: int, *, wrong: bool = False) -> Labelled:
    """Points on two sides, easily told apart; with wrong labels, each has the other's."""
    labels = np.arange(count) % 2
    spread = np.random.default_rng(count).normal(scale=0.1, size=(count, 2))
    items = (spread + 10.0 * labels[:, None]).astype(np.float32)
    return Labelled(items, 1 - labels if wrong else labels)


def test_held_out_accuracy_is_of_items_held_out() -> None:
    learner = Learner(Vectors(2, mean=(5.0, 5.0), std=(2.0, 2.0)), seed=0)
    old, new = two_kinds(40), two_kinds(24)
    right, wrong = two_kinds(12), two_kinds(16, wrong=True)
    found = accuracies(nn.Identity(), learner, Splits(old, new, right, wrong), 2)
    assert found == {
        "svm_old": 1.0,
        "svm_new": 1.0,
        "knn_old": 1.0,
        "knn_new": 1.0,
        "held_out": {"old": 1.0, "new": 0.0},
    }
    found = accuracies(nn.Identity(), learner, Splits(old, new, wrong, None), 2)
    assert found["held_out"] == {"all": 0.0}
    # Old and new items are told apart as well: here only the new ones' labels mean nothing.
    odd = replace(new, labels=np.arange(24) // 2 % 2)
    found = accuracies(nn.Identity(), learner, Splits(old, odd, right, None), 2)
    assert found["svm_old"] == 1.0
    assert found["svm_new"] < 0.8
    assert found["knn_new"] < 0.8
