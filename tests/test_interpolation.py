"""Which part of a change is kept, for losses that are known along the way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from incontrast import Objective, Vectors
from incontrast.interpolation import between, keep_part
from incontrast.parity import EvaluationLoss
from incontrast.training.engine import Engine
from incontrast.training.task import Increment, Task


def at(value: float) -> nn.Module:
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.constant_(encoder.weight, value)
    return encoder


def part_kept(
    old: Callable[[float], float], new: Callable[[float], float], tolerance: float
) -> tuple[float, int]:
    """The part that is kept of a change from 0 to 1, and how many were tried."""
    tried = 0

    def measured(encoder: nn.Module) -> Any:
        nonlocal tried
        tried += 1
        part = encoder.weight.item()
        return SimpleNamespace(loss=EvaluationLoss(old(part), new(part), 0.0))

    items = Vectors(1).collect(torch.zeros(4, 1))
    task = Task(
        at(1.0),
        Vectors(1),
        Increment(items, items, 4),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
        before=at(0.0),
    )
    before, after = measured(at(0.0)), measured(at(1.0))
    tried = 0
    encoder, found, part = keep_part(task, before, after, measured, tolerance)
    assert encoder.weight.item() == pytest.approx(part)
    assert found.loss.old == pytest.approx(old(part))
    return part, tried


def falls(part: float) -> float:
    return 2.0 - part


@pytest.mark.parametrize(
    ("tolerance", "kept", "tried"),
    [(0.45, 0.375, 3), (1.1, 1.0, 1), (0.2, 0.125, 3), (0.9, 0.875, 3)],
)
def test_as_much_is_kept_as_is_tolerated(tolerance: float, kept: float, tried: int) -> None:
    assert part_kept(lambda part: 1.0 + part, falls, tolerance) == (kept, tried)


def test_a_change_that_old_items_gain_by_is_kept_without_further_ado() -> None:
    assert part_kept(lambda part: 1.0 - part / 2, falls, 0.0) == (1.0, 0)


def test_half_is_kept_where_it_is_better_on_old_and_new_items() -> None:
    assert part_kept(lambda part: 1.0 + part, lambda part: abs(part - 0.4), 10.0) == (0.5, 1)


def test_less_than_half_is_kept_where_half_is_better_and_still_too_much() -> None:
    assert part_kept(lambda part: 1.0 + part, lambda part: abs(part - 0.4), 0.3) == (0.25, 3)


def test_half_is_kept_where_it_is_better_and_no_part_will_do() -> None:
    losses = {0.0: (1.0, 3.0), 1.0: (5.0, 6.0)}

    def at_part(number: int) -> Callable[[float], float]:
        return lambda part: losses.get(part, (2.0, 2.0))[number]

    assert part_kept(at_part(0), at_part(1), 0.1)[0] == 0.5


def test_all_is_kept_where_no_part_will_do() -> None:
    assert part_kept(lambda part: 1.0 if part == 0.0 else 3.0 + part, falls, 0.1)[0] == 1.0
    # Within the tolerance, but new items lose: the whole is refused with its own figures.
    assert part_kept(lambda part: 1.0 + part, lambda part: 1.0 + part * (1.2 - part), 0.6)[0] == 1.0


def test_between_leaves_both_encoders_as_they_are() -> None:
    first, second = at(1.0), at(3.0)
    assert between(first, second, 0.25).weight.item() == pytest.approx(1.5)
    assert (first.weight.item(), second.weight.item()) == (1.0, 3.0)
