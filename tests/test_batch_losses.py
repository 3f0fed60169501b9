"""The joint loss of a batch against a loop over the population, written from the formulas."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from incontrast.loss import (
    Objective,
    batch_losses,
    increment_losses,
    others,
    similarities,
)

OBJECTIVE = Objective()


def embeddings(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Generator().manual_seed(seed))


def f(a: Tensor, b: Tensor) -> Tensor:
    cosine = (a * b).sum() / (a.norm() * b.norm())
    return torch.exp(cosine / OBJECTIVE.temperature)


def mean_f(anchor: Tensor, items: list[Tensor]) -> Tensor:
    return torch.stack([f(anchor, item) for item in items]).mean()


def naive_loss(
    first: Tensor, second: Tensor, i: int, old: int, alpha: float, retention: float | None
) -> Tensor:
    """One anchor, one direction. ``retention`` None is retraining's loss on any item."""
    k, n = OBJECTIVE.negatives, len(first)
    positive = f(first[i], second[i])
    of_old = [second[j] for j in range(old) if j != i]
    of_new = [second[j] for j in range(old, n) if j != i]
    e_old, e_new = mean_f(first[i], of_old), mean_f(first[i], of_new)
    if retention is None or i >= old:
        e_all = (1 - alpha) * e_old + alpha * e_new
        return -torch.log(positive / (positive + k * e_all))
    ratio = (positive + k * e_new) / (positive + k * e_old)
    nce_2 = torch.log(alpha * ratio + 1 - alpha)
    return nce_2 + retention * -torch.log(positive / (positive + k * e_old))


def naive_mean(first, second, old, alpha, retention) -> Tensor:
    def direction(a: Tensor, b: Tensor) -> Tensor:
        n = len(a)
        losses = [naive_loss(a, b, i, old, alpha, retention) for i in range(n)]
        return (1 - alpha) * sum(losses[:old]) / old + alpha * sum(losses[old:]) / (n - old)

    return (direction(first, second) + direction(second, first)) / 2


@pytest.mark.parametrize(("retention", "means"), [(1.0, None), (0.0, 0.0), (0.4, 0.4)])
@pytest.mark.parametrize(("old", "new"), [(5, 3), (2, 6)])
def test_all_data_as_one_batch_is_the_population(
    old: int, new: int, retention: float, means: float | None
) -> None:
    """Retention 1 is retraining over X′, retention 0 the paper's Eq. 9: value and gradient."""
    alpha = new / (old + new)
    first = embeddings(0, old + new, 4).requires_grad_()
    second = embeddings(1, old + new, 4).requires_grad_()
    of_old, of_new = increment_losses(
        first, second, OBJECTIVE, old=old, growth_ratio=alpha, retention=retention
    )
    joint = (1 - alpha) * of_old.mean() + alpha * of_new.mean()
    population = naive_mean(first, second, old, alpha, means)
    torch.testing.assert_close(joint, population, rtol=0, atol=1e-8)
    for got, expected in zip(
        torch.autograd.grad(joint, [first, second]),
        torch.autograd.grad(population, [first, second]),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("old_anchors", "new_anchors"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_anchors_are_drawn_without_bias(old_anchors: int, new_anchors: int) -> None:
    """For fixed noise, the mean over all draws of anchors is the mean over X′."""
    old, new, alpha = 5, 3, 3 / 8
    first, second = embeddings(2, 8, 4), embeddings(3, 8, 4)
    of_old, of_new = increment_losses(
        first, second, OBJECTIVE, old=old, growth_ratio=alpha, retention=1.0
    )
    draws = [
        (1 - alpha) * of_old[list(a)].mean() + alpha * of_new[list(b)].mean()
        for a in itertools.combinations(range(old), old_anchors)
        for b in itertools.combinations(range(new), new_anchors)
    ]
    mean = torch.cat([of_old, of_new]).mean()
    torch.testing.assert_close(torch.stack(draws).mean(), mean, rtol=0, atol=1e-8)


def test_bias_of_few_negatives_is_no_larger_than_retrainings() -> None:
    """What is left is the log of a mean over few negatives, which retraining in batches has too."""
    old, new = 140, 60
    alpha = new / (old + new)
    centres = embeddings(4, 1, 4)
    first = torch.cat([embeddings(5, old, 4), embeddings(6, new, 4) + 2 * centres])
    second = first + 0.3 * embeddings(7, old + new, 4)
    of_old, of_new = increment_losses(
        first, second, OBJECTIVE, old=old, growth_ratio=alpha, retention=1.0
    )
    truth = torch.cat([of_old, of_new]).mean().item()
    generator = Generator().manual_seed(8)

    def joint(size: int) -> float:
        a = torch.randperm(old, generator=generator)[:size]
        b = old + torch.randperm(new, generator=generator)[:size]
        picks = torch.cat([a, b])
        losses = increment_losses(
            first[picks], second[picks], OBJECTIVE, old=size, growth_ratio=alpha, retention=1.0
        )
        return ((1 - alpha) * losses[0].mean() + alpha * losses[1].mean()).item()

    def retraining(size: int) -> float:
        picks = torch.randperm(old + new, generator=generator)[:size]
        return batch_losses(first[picks], second[picks], OBJECTIVE).mean().item()

    def bias(estimate, size: int, draws: int = 1000) -> tuple[float, float]:
        values = torch.tensor([estimate(size) for _ in range(draws)])
        return values.mean().item() - truth, values.std().item() / math.sqrt(draws)

    found = {}
    for size in (4, 16):
        ours, our_error = bias(joint, size)
        theirs, their_error = bias(retraining, size)
        assert abs(ours) <= abs(theirs) + 3 * (our_error + their_error)
        assert ours < 3 * our_error, "the log of a mean over few negatives can only be too small"
        found[size] = abs(ours)
    assert found[16] < found[4] / 2


def test_batch_losses_are_info_nce_in_both_directions() -> None:
    first, second = embeddings(0, 4, 3), embeddings(1, 4, 3)
    k = OBJECTIVE.negatives

    def one_way(a: Tensor, b: Tensor, i: int) -> Tensor:
        positive = f(a[i], b[i])
        noise = mean_f(a[i], [b[j] for j in range(4) if j != i])
        return -torch.log(positive / (positive + k * noise))

    expected = torch.stack(
        [(one_way(first, second, i) + one_way(second, first, i)) / 2 for i in range(4)]
    )
    torch.testing.assert_close(batch_losses(first, second, OBJECTIVE), expected)


def test_a_single_new_item_has_the_old_ones_as_noise() -> None:
    first, second = embeddings(0, 5, 3), embeddings(1, 5, 3)
    _, of_new = increment_losses(first, second, OBJECTIVE, old=4, growth_ratio=0.2, retention=1.0)
    positive = f(first[4], second[4])
    forward = -torch.log(positive / (positive + 31 * mean_f(first[4], list(second[:4]))))
    backward = -torch.log(positive / (positive + 31 * mean_f(second[4], list(first[:4]))))
    torch.testing.assert_close(of_new, ((forward + backward) / 2)[None])


@given(n=st.integers(2, 12))
def test_others_drops_the_diagonal(n: int) -> None:
    square = torch.arange(n * n).view(n, n)
    rows = [[square[i, j].item() for j in range(n) if j != i] for i in range(n)]
    assert others(square).tolist() == rows


def test_similarities_are_cosines_over_the_temperature() -> None:
    first, second = embeddings(0, 2, 3), embeddings(1, 4, 3)
    logits = similarities(first, second, Objective(temperature=0.5))
    expected = torch.nn.functional.cosine_similarity(first[:, None], second[None], dim=2) / 0.5
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"negatives": 0}, "negatives must be"),
    ],
)
def test_objective_is_checked(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(**arguments)


def test_every_other_item_is_a_negative() -> None:
    """One item after the other comes close to the last anchor: each of them raises its loss."""
    first, second = embeddings(0, 6, 4), embeddings(1, 6, 4)

    def losses(second: Tensor) -> Tensor:
        settings = {"old": 3, "growth_ratio": 0.5, "retention": 1.0}
        return torch.cat(increment_losses(first, second, OBJECTIVE, **settings))

    apart = losses(second)
    for anchor, other in itertools.permutations(range(6), 2):
        near = second.clone()
        near[other] = first[anchor]
        assert losses(near)[anchor] > apart[anchor]


def test_one_negative_is_enough_and_none_too_few() -> None:
    assert Objective(negatives=1).negatives == 1
    with pytest.raises(ValueError, match="negatives must be at least 1, got 0"):
        Objective(negatives=0)


@pytest.mark.parametrize(("retention", "at_once"), [(1.0, 256), (0.4, 256), (0.4, 2)])
def test_the_backward_pass_by_hand_is_the_derivative(
    retention: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and twice as the meta step takes it; also of one side alone, and of large batches."""
    monkeypatch.setattr("incontrast.loss.AT_ONCE", at_once)
    monkeypatch.setattr("incontrast.loss.BLOCK", 3)
    first, second = (embeddings(seed, 7, 4).requires_grad_() for seed in (0, 1))

    def losses(first: Tensor, second: Tensor) -> Tensor:
        settings = {"old": 4, "growth_ratio": 0.3, "retention": retention}
        return torch.cat(increment_losses(first, second, OBJECTIVE, **settings))

    for inputs in ((first, second), (first.detach(), second), (first, second.detach())):
        assert torch.autograd.gradcheck(losses, inputs)
        assert torch.autograd.gradgradcheck(losses, inputs)


def test_an_embedding_of_zeros_has_a_finite_loss_and_gradient() -> None:
    first = embeddings(0, 4, 3)
    first[2] = 0.0
    first.requires_grad_()
    batch_losses(first, embeddings(1, 4, 3), OBJECTIVE).mean().backward()
    assert first.grad is not None
    assert bool(torch.isfinite(first.grad).all())
