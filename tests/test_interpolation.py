"""Which part of a change is kept, for losses that are known along the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from incontrast import Objective, Vectors
from incontrast.evaluate.probes import ProbeScores, Scores
from incontrast.interpolation import Bounds, Measured, between, keep_part, lerp_statistics
from incontrast.parity import EvaluationLoss
from incontrast.training.engine import Engine
from incontrast.training.task import Increment, Task


def at(value: float) -> nn.Module:
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.constant_(encoder.weight, value)
    return encoder


def part_kept(
    old: Callable[[float], float],
    new: Callable[[float], float],
    tolerance: float | None = None,
    neighbours: float | None = None,
    stay: Callable[[float], float] | None = None,
    knn: Callable[[float], float] | None = None,
) -> tuple[float, int]:
    """The part that is kept of a change from 0 to 1, and how many were tried.

    By the losses of old and of new items, the share of neighbours that stay, and a probe's scores
    at every part of the way.
    """
    tried = 0

    def measured(encoder: nn.Module) -> Any:
        nonlocal tried
        tried += 1
        part = encoder.weight.item()
        return Measured(
            population=None,
            loss=EvaluationLoss(old(part), new(part), 0.0),
            probe=knn and ProbeScores(Scores(knn(part), knn(part), 10_000)),
            neighbours=stay and stay(part),
        )

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
    encoder, found, part = keep_part(task, before, after, measured, Bounds(tolerance, neighbours))
    assert encoder.weight.item() == pytest.approx(part)
    assert found.loss.old == pytest.approx(old(part), nan_ok=True)
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


@pytest.mark.parametrize("neighbours", [None, 0.6])
def test_without_old_items_all_is_kept(neighbours: float | None) -> None:
    nothing = lambda part: math.nan  # noqa: E731
    assert part_kept(nothing, falls, 0.05, neighbours) == (1.0, 0)


def test_half_is_kept_where_it_is_better_on_old_and_new_items() -> None:
    assert part_kept(lambda part: 1.0 + part, lambda part: abs(part - 0.4), 10.0) == (0.5, 1)


def test_all_is_kept_where_it_is_allowed_and_half_that_is_better_is_not() -> None:
    """A probe falls half of the way alone."""
    better, knn = lambda part: abs(part - 0.4), lambda part: 0.5 if part == 0.5 else 0.8
    assert part_kept(lambda part: 1.0 + part / 10, better, 0.2, knn=knn) == (1.0, 1)


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


def gone(part: float) -> float:
    """The share of neighbours that stay: all of them at first, none in the end."""
    return 1.0 - part


@pytest.mark.parametrize(
    ("least", "kept", "tried"), [(0.6, 0.25, 2), (0.2, 0.5, 1), (0.9, 0.0625, 4), (0.97, 0.0, 4)]
)
def test_old_items_keep_their_neighbours(least: float, kept: float, tried: int) -> None:
    """Losses fall all along, as they do where an encoder forgets what views cannot teach it."""
    assert part_kept(falls, falls, neighbours=least, stay=gone) == (kept, tried)


def test_all_is_kept_where_neighbours_stay() -> None:
    assert part_kept(falls, falls, neighbours=0.6, stay=lambda part: 0.7) == (1.0, 0)


def test_nothing_is_kept_of_what_new_items_lose_by_within_the_bound_on_neighbours() -> None:
    worse = lambda part: 1.0 + part * (1.2 - part)  # noqa: E731
    assert part_kept(falls, worse, neighbours=0.6, stay=gone)[0] == 0.0


def test_labels_know_better_than_neighbours() -> None:
    for knn, kept in ((lambda part: 0.5 + part / 4, 1.0), (lambda part: 0.8 - part / 8, 0.0625)):
        assert part_kept(falls, falls, neighbours=0.9, stay=gone, knn=knn)[0] == kept


def test_both_bounds_hold() -> None:
    rises = lambda part: 1.0 + part  # noqa: E731
    assert part_kept(rises, falls, 0.3, neighbours=0.6, stay=gone)[0] == 0.25
    assert part_kept(rises, falls, 0.6, neighbours=0.8, stay=gone)[0] == 0.125


def test_statistics_move_as_far_as_weights() -> None:
    before, after = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for layer, value in ((before, 1.0), (after, 3.0)):
        nn.init.constant_(layer.running_mean, value)
    lerp_statistics(before, after, 0.25)
    assert after.running_mean.item() == pytest.approx(1.5)
    assert before.running_mean.item() == 1.0


def test_what_an_encoder_keeps_for_itself_may_have_grown() -> None:
    before, after = (nn.Sequential(nn.BatchNorm1d(1), nn.Identity()) for _ in range(2))
    nn.init.constant_(after[0].running_mean, 2.0)
    before[1].register_buffer("seen", torch.zeros(2))
    after[1].register_buffer("seen", torch.ones(3))
    after[1].register_buffer("more", torch.ones(3))
    lerp_statistics(before, after, 0.5)
    assert after[0].running_mean.item() == 1.0
    assert after[1].seen.tolist() == after[1].more.tolist() == [1.0] * 3


def test_a_mask_stays_as_it_is() -> None:
    before, after = nn.Identity(), nn.Identity()
    for module in (before, after):
        module.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    lerp_statistics(before, after, 0.5)
    assert torch.equal(after.mask, before.mask)


def test_a_probe_is_kept_from_falling_wherever_there_is_a_bound() -> None:
    def falling(steps: float) -> Callable[[float], float]:
        return lambda part: 0.8 - part / steps

    assert part_kept(falls, falls, 0.05, knn=falling(4.0)) == (0.125, 3)
    assert part_kept(falls, falls, 0.05, knn=falling(30.0)) == (1.0, 0)
    assert part_kept(falls, falls, 0.05, knn=falling(1.0))[0] == 1.0  # no part will do
