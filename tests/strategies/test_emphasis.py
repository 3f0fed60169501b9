"""The weight of new items over a run."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from incontrast import ICL, Emphasis, Learner, Objective, Retrain, Vectors
from incontrast.loss import increment_losses
from incontrast.training.task import ViewBatch

shares = st.floats(0.001, 0.999)


@given(alpha=shares, start=shares, until=st.floats(0.05, 1.0), done=st.floats(0.0, 1.0))
def test_the_weight_falls_from_its_start_to_alpha(alpha, start, until, done) -> None:
    emphasis = Emphasis(start=start, until=until)
    weight = emphasis.weight(alpha, done)
    assert emphasis.weight(alpha, 0.0) == pytest.approx(max(start, alpha))
    assert alpha <= weight <= max(start, alpha) + 1e-12
    assert weight >= emphasis.weight(alpha, min(done + 0.1, 1.0))
    if done >= until:
        assert weight == alpha, "the end of a run is retraining's objective, exactly"


@pytest.mark.parametrize(("done", "weight"), [(0.0, 0.5), (0.3, 0.3), (0.6, 0.1), (1.0, 0.1)])
def test_a_step_weighs_old_and_new_items_so_that_weights_sum_to_one(done, weight) -> None:
    first, second = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0))
    task = SimpleNamespace(growth_ratio=0.1, done=done, objective=Objective())
    strategy = ICL(emphasis=Emphasis(start=0.5, until=0.6))
    loss = strategy.loss(task, ViewBatch(None, 8), first, second)
    of_old, of_new = increment_losses(
        first, second, Objective(), old=8, growth_ratio=0.1, retention=1.0
    )
    torch.testing.assert_close(loss, (1 - weight) * of_old.mean() + weight * of_new.mean())


def test_no_emphasis_is_retrainings_objective_all_along() -> None:
    first, second = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0))
    losses = [
        ICL(emphasis=emphasis).loss(
            SimpleNamespace(growth_ratio=0.1, done=done, objective=Objective()),
            ViewBatch(None, 8),
            first,
            second,
        )
        for emphasis, done in ((None, 0.0), (None, 1.0), (Emphasis(), 1.0))
    ]
    assert losses[0] == losses[1] == losses[2]


def test_new_items_that_are_rare_are_learned_sooner_with_emphasis(blobs) -> None:
    """At a growth ratio of 1 %, for the same steps and draws."""
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=2), seed=0)
    learner.fit(blobs(792))
    plain, emphasised = (
        copy.deepcopy(learner).update(
            blobs(8, shift=4.0, seed=1), strategy=ICL(emphasis=emphasis, max_epochs=16)
        )
        for emphasis in (None, Emphasis())
    )
    assert emphasised.loss_new.after < plain.loss_new.after


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"start must be in \(0, 1\), got 1.0"):
        Emphasis(start=1.0)
    with pytest.raises(ValueError, match=r"until must be in \(0, 1\], got 0.0"):
        Emphasis(until=0.0)
