"""Rates as far as each layer's ceiling lets them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from incontrast import ICL, Adam, Fixed, Learner, Prodigy, Retrain, Vectors
from incontrast.training.optimizers import hold_back, set_rate


def test_bounded_parameters_take_smaller_steps_and_the_others_the_same() -> None:
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    bounds = dict(zip(parameters, (math.inf, 0.01, 0.5), strict=True))
    optimizer = Adam().make(parameters)
    hold_back(optimizer, bounds.__getitem__)
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    set_rate(optimizer, 0.1)
    optimizer.step()
    assert [parameter[0].item() for parameter in parameters] == pytest.approx([-0.1, -0.01, -0.1])


def test_bounded_parameters_keep_the_options_of_their_group() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([{"params": [weight], "betas": (0.5, 0.9), "weight_decay": 0.1}])
    hold_back(optimizer, lambda _: 0.01)
    (group,) = (group for group in optimizer.param_groups if group["params"])
    assert (group["betas"], group["weight_decay"], group["ceiling"]) == ((0.5, 0.9), 0.1, 0.01)


def test_the_first_step_of_an_update_changes_a_wide_layer_by_its_share_at_most() -> None:
    items = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    learner = Learner(Vectors(16, hidden=1024), fitting=Retrain(max_epochs=1))
    learner.fit(items[:40])

    def change(rates: Fixed) -> float:
        twin = copy.deepcopy(learner)
        strategy = ICL(rates=rates, max_epochs=1, average=0.0)
        assert twin.update(items[40:], strategy=strategy).steps == 1
        before, after = (
            next(w for w in one.encoder.parameters() if w.shape == (1024, 1024)).detach()
            for one in (learner, twin)
        )
        return float(torch.linalg.matrix_norm(after - before, 2) / torch.linalg.norm(before, 2))

    assert change(Fixed(2e-3)) > 0.3
    assert 0.01 < change(Fixed(2e-3, largest_change=1 / 8)) <= 1 / 8 + 1e-6


def test_an_optimiser_of_its_own_rates_has_no_ceilings() -> None:
    pytest.importorskip("prodigyopt")
    items = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    learner = Learner(Vectors(16, hidden=1024), fitting=Retrain(max_epochs=1))
    learner.fit(items[:40])
    assert learner.update(items[40:], strategy=ICL(optimizer=Prodigy(), max_epochs=2)).steps == 2
