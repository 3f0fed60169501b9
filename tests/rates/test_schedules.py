"""Rates that follow a plan."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from incontrast import Cosine, Fixed


def test_schedules() -> None:
    fixed = Fixed(0.1).begin(Generator())
    cosine = Cosine(0.1, steps=4).begin(Generator())
    proposed = []
    for _ in range(6):
        fixed.observe(1.0)
        cosine.observe(1.0)
        assert fixed.propose() == 0.1
        proposed.append(cosine.propose())
    expected = [0.1 * (1 + math.cos(math.pi * min(t / 4, 1))) / 2 for t in range(6)]
    assert proposed == pytest.approx(expected)


def test_a_rate_has_a_ceiling_where_a_step_would_change_a_layer_too_much() -> None:
    plan = Fixed(2e-3, largest_change=1 / 8)
    wide = 0.02 * torch.randn(512, 256, 3, 3, generator=torch.Generator().manual_seed(0))
    step = torch.full_like(wide, plan.ceiling(wide)).flatten(1)  # every weight by the rate
    norms = [torch.linalg.matrix_norm(part, 2).item() for part in (step, wide.flatten(1))]
    assert norms[0] / norms[1] == pytest.approx(1 / 8, rel=1e-4)
    tall = wide.flatten(1).T
    assert plan.ceiling(tall) == pytest.approx(plan.ceiling(wide), rel=1e-4)


@pytest.mark.parametrize(
    ("plan", "weights"),
    [
        (Fixed(2e-3, largest_change=1 / 8), torch.eye(8)),  # a small layer
        (Fixed(2e-3, largest_change=1 / 8), torch.zeros(8, 8)),  # else it would never move
        (Fixed(2e-3, largest_change=1 / 8), torch.full((4096,), 1e-4)),  # a bias
        (Fixed(2e-3, largest_change=1 / 8), torch.full((8, 8), math.nan)),  # told by the loop
        (Fixed(2e-3, largest_change=1 / 8), torch.zeros(0, 8)),
        (Fixed(1.0), torch.full((64, 64), 1e-4)),
        (Cosine(1.0, 10), torch.full((64, 64), 1e-4)),
    ],
)
def test_otherwise_it_has_none(plan, weights) -> None:
    assert plan.ceiling(weights) == math.inf


def test_a_layer_that_begins_next_to_nothing_may_grow() -> None:
    assert Fixed(3.2e-3, largest_change=1 / 8).ceiling(torch.full((64, 64), 1e-6)) == 1e-4


@pytest.mark.parametrize("change", [0.0, -1.0, 1.5, math.nan])
def test_a_change_beyond_the_whole_layer_is_refused(change) -> None:
    with pytest.raises(ValueError, match="largest_change must be in"):
        Fixed(1e-3, largest_change=change)
