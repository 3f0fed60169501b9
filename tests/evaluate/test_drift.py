"""Drift: quiet where nothing changed, loud where something did, and honest about chance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from incontrast import (
    ICL,
    Distill,
    FineTune,
    Learner,
    NoUpdate,
    Objective,
    Replay,
    Reservoir,
    Retrain,
    Vectors,
)
from incontrast.evaluate.drift import drift
from incontrast.loss import change_ratio
from incontrast.strategies import Meta
from incontrast.training.loop import Training
from incontrast.training.task import Increment


def embeddings(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, 6, generator=Generator().manual_seed(seed)) + shift


def compare(new: torch.Tensor, seed: int = 0, **options):
    anchors = embeddings(50, 1000 + seed)
    settings = {"objective": Objective(), "growth_ratio": 0.1} | options
    return drift(
        (anchors, anchors + 0.1 * embeddings(50, 2000 + seed)),
        embeddings(100, 3000 + seed),
        new,
        draws=Generator().manual_seed(seed),
        **settings,
    )


def test_the_change_ratio_is_the_one_of_the_paper() -> None:
    anchors, reference, new = embeddings(20, 1), embeddings(40, 2), embeddings(15, 3)
    views = anchors + 0.1 * embeddings(20, 4)

    def logits(first, second):
        return torch.nn.functional.normalize(first) @ torch.nn.functional.normalize(second).T / 0.2

    objective = Objective(temperature=0.2, negatives=7)
    expected = change_ratio(
        logits(anchors, views).diagonal(), logits(anchors, reference), logits(anchors, new), k=7
    )
    found = drift(
        (anchors, views),
        reference,
        new,
        objective=objective,
        growth_ratio=0.1,
        draws=Generator().manual_seed(0),
    )
    assert found.change_ratio == pytest.approx(
        [expected.quantile(part).item() for part in (0.25, 0.5, 0.75)], rel=1e-4
    )
    assert found.distance == pytest.approx(expected.log().square().mean().sqrt().item(), rel=1e-4)


def test_p_values_are_uniform_where_nothing_changed() -> None:
    """Whatever the encoder, shuffling is exact: P(p ≤ 0.2) is 0.2 (100 draws, deviation 0.04)."""
    values = [compare(embeddings(30, seed), seed).p_value for seed in range(100)]
    assert 0.08 < sum(value <= 0.2 for value in values) / 100 < 0.32
    assert 0.35 < sum(values) / 100 < 0.65


def test_a_shift_is_seen() -> None:
    found = compare(embeddings(30, 0, shift=1.0))
    assert found.p_value == 0.001
    assert found.drifted
    assert found.advice == "update"
    assert compare(embeddings(30, 0, shift=1.0), growth_ratio=0.6).advice == "consider retraining"


@pytest.mark.parametrize("significance", [0.05, 0.3])
def test_what_is_shown_of_chance_agrees_with_the_advice(significance: float) -> None:
    """Also where a few anchors changed much, and the median is as chance would have it."""
    shifts = (0.0, 0.0, 0.2, 0.4)
    for seed, shift in enumerate(shifts * 5):
        found = compare(embeddings(30, seed, shift), seed, significance=significance)
        assert found.drifted == (found.distance > found.by_chance)
    assert (
        f"{found.distance:.3f} away from 1 where chance gives up to {found.by_chance:.3f}, p ="
    ) in str(found)


def test_embeddings_that_are_one_point_are_no_drift() -> None:
    point = torch.ones(10, 6)
    found = drift(
        (point, point),
        point,
        point,
        objective=Objective(temperature=0.01),
        growth_ratio=0.1,
        draws=Generator().manual_seed(0),
    )
    assert found.p_value == 1.0
    assert found.change_ratio == pytest.approx((1.0, 1.0, 1.0))


def test_a_learner_says_what_to_do(blobs) -> None:
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=10), strategy=ICL(max_epochs=3))
    learner.fit(blobs(300))
    same, other = learner.drift(blobs(40, seed=1)), learner.drift(blobs(40, seed=1) * 0.2 + 2)
    assert str(same).startswith("Nothing to do: the new items look like the old ones (change")
    assert same.seconds is None
    assert "An update should take about" not in str(same)
    assert str(other).startswith("Update: the new items differ from the old ones")
    assert (other.anchors, other.reference, other.new) == (100, 200, 40)
    assert other.seconds is not None
    assert "An update should take about" in str(other)
    assert learner.drift(blobs(40, seed=1)).p_value == same.p_value
    few = learner.drift(blobs(5, seed=2), forecast=False)
    assert few.seconds is None
    assert "With 5 new items only large differences show." in str(few)
    with pytest.raises(ValueError, match="significance must be in"):
        learner.drift(blobs(5), significance=5)
    with pytest.raises(RuntimeError, match=r"call fit\(\) first"):
        Learner(Vectors(8)).drift(blobs(5))


def test_a_forecast_leaves_out_a_slow_first_step(blobs, monkeypatch) -> None:
    """Ten minutes of a cold start are not multiplied by the number of steps."""
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=3), strategy=ICL(max_epochs=5))
    learner.fit(blobs(300))
    steps = 0

    def seconds(training: Training) -> float:
        nonlocal steps
        steps = training.steps
        return 0.4 * steps + (600.0 if steps else 0.0)

    monkeypatch.setattr(Training, "seconds", seconds)
    found = learner.drift(blobs(400, seed=1) * 0.2 + 2)
    assert found.seconds is not None
    assert steps >= 2
    assert found.seconds < 60.0


def test_a_forecast_counts_steps_that_have_to_wait(blobs, monkeypatch) -> None:
    """On a busy machine most steps are quick, and every fourth waits for its turn."""
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=3), strategy=ICL(max_epochs=20))
    learner.fit(blobs(300))

    def seconds(training: Training) -> float:
        return 0.002 * training.steps + 0.04 * (training.steps // 4)

    monkeypatch.setattr(Training, "seconds", seconds)
    found = learner.drift(blobs(400, seed=1) * 0.2 + 2)
    outcome = learner.update(blobs(400, seed=1) * 0.2 + 2)
    assert found.seconds == pytest.approx(0.012 * outcome.steps, rel=0.25)


def test_a_forecast_has_what_an_update_takes_besides_training(blobs, monkeypatch) -> None:
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=3), strategy=ICL(max_epochs=1))
    learner.fit(blobs(60))
    monkeypatch.setattr("incontrast.call.FITTING", 1000.0)  # seconds for each pair of the map
    found = learner.drift(blobs(40, seed=1) * 0.2 + 2)
    assert found.seconds is not None
    assert found.seconds >= 100 * 1000.0


def test_items_are_compared_as_they_are_where_views_are_not_the_encoders_own(blobs) -> None:
    def foreign(rows: Tensor, generator: Generator) -> Tensor:
        return rows + 20.0 * torch.randn(rows.shape, generator=generator)

    def slight(rows: Tensor, generator: Generator) -> Tensor:
        return rows + 0.01 * torch.randn(rows.shape, generator=generator)

    new, same = blobs(60, seed=1) * 0.5 + 1.0, blobs(60, seed=2)
    plain = {"mean": (0.0,) * 8, "std": (1.0,) * 8, "limit": None}
    for views in (foreign, slight):
        domain = Vectors(8, views=views, **plain)
        learner = Learner.from_encoder(torch.nn.Identity(), domain, seen=blobs(300))
        found = learner.drift(new, forecast=False)
        assert found.as_they_are == (views is foreign)
        assert ("compared as they are" in str(found)) == (views is foreign)
        assert found.drifted
        assert learner.drift(same, forecast=False).p_value > 0.01


def test_drift_needs_finite_embeddings() -> None:
    new = embeddings(40, 1)
    new[3, 2] = torch.inf
    with pytest.raises(ValueError, match="embeddings are not finite"):
        compare(new)


def test_drift_needs_old_items(blobs) -> None:
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1), memory=Reservoir(items=20))
    learner.fit(blobs(60))
    with pytest.raises(ValueError, match="at least 30 old items, memory holds 20"):
        learner.drift(blobs(10))


@pytest.mark.parametrize(
    "strategy",
    [
        *(ICL(), ICL(meta=Meta(steps=2)), FineTune(), Distill(), Replay(), Retrain()),
        NoUpdate(),
    ],
)
def test_the_work_of_an_update_is_known_before(strategy, blobs) -> None:
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1))
    learner.fit(blobs(100))
    domain = learner.domain
    increment = Increment(domain.collect(blobs(100)), domain.collect(blobs(40, seed=1)), 100)
    expected = 2 * strategy.epoch_items(increment)
    if isinstance(strategy, ICL):  # which first measures what old items use, and which are near
        expected += 2 * 100 + (100 + 40)
    outcome = learner.update(blobs(40, seed=1), strategy=replace(strategy, max_epochs=1))
    assert outcome.forward_passes == expected
