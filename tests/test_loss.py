"""The losses against loops written from the formulas, an independent library, and the theorems."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from incontrast.loss import (
    Objective,
    batch_losses,
    change_ratio,
    incremental_info_nce,
    info_nce,
    log_partition,
    retraining_info_nce,
)

K = 31.0


def draw(
    seed: int, n: int, m: int, m_new: int, scale: float = 3.0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)

    return normal(n), normal(n, m), normal(n, m_new)


cases = given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 6),
    m=st.integers(1, 9),
    m_new=st.integers(1, 9),
    k=st.floats(0.5, 500.0),
    alpha=st.floats(0.0, 0.999),
)


def f(logit: Tensor) -> float:
    return math.exp(logit.item())


def noise(row: Tensor) -> float:
    return sum(f(logit) for logit in row) / len(row)


@cases
def test_every_loss_is_its_formula(
    seed: int, n: int, m: int, m_new: int, k: float, alpha: float
) -> None:
    positive, old, new = draw(seed, n, m, m_new)
    for i in range(n):
        positive_f, e_old, e_new = f(positive[i]), noise(old[i]), noise(new[i])
        ratio = (positive_f + k * e_new) / (positive_f + k * e_old)
        e_all = (1 - alpha) * e_old + alpha * e_new
        expected = {
            "log_partition": math.log(positive_f + k * e_old),
            "info_nce": -math.log(positive_f / (positive_f + k * e_old)),
            "change_ratio": ratio,
            "incremental": math.log(alpha * ratio + 1 - alpha),
            "retraining": -math.log(positive_f / (positive_f + k * e_all)),
        }
        got = {
            "log_partition": log_partition(positive, old, k=k)[i],
            "info_nce": info_nce(positive, old, k=k)[i],
            "change_ratio": change_ratio(positive, old, new, k=k)[i],
            "incremental": incremental_info_nce(positive, old, new, k=k, growth_ratio=alpha)[i],
            "retraining": retraining_info_nce(positive, old, new, k=k, growth_ratio=alpha)[i],
        }
        for name, value in expected.items():
            assert got[name].item() == pytest.approx(value, rel=1e-10, abs=1e-12), name


@cases
def test_theorem_1(seed: int, n: int, m: int, m_new: int, k: float, alpha: float) -> None:
    positive, old, new = draw(seed, n, m, m_new, scale=20.0)
    whole = retraining_info_nce(positive, old, new, k=k, growth_ratio=alpha)
    parts = info_nce(positive, old, k=k) + incremental_info_nce(
        positive, old, new, k=k, growth_ratio=alpha
    )
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-10)


@given(seed=st.integers(0, 10_000), alpha=st.floats(0.0, 0.999))
def test_unchanged_noise_costs_nothing(seed: int, alpha: float) -> None:
    positive, old, _ = draw(seed, 5, 7, 1)
    loss = incremental_info_nce(positive, old, old.flip(1), k=K, growth_ratio=alpha)
    torch.testing.assert_close(loss, torch.zeros_like(loss), rtol=0, atol=1e-13)
    ratio = change_ratio(positive, old, old.flip(1), k=K)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-13, atol=0)


def test_no_growth_is_exactly_zero_and_differentiable() -> None:
    positive, old, new = draw(0, 5, 7, 3)
    positive.requires_grad_()
    loss = incremental_info_nce(positive, old, new, k=K, growth_ratio=0.0)
    assert (loss == 0).all()
    loss.sum().backward()
    assert positive.grad is not None
    assert (positive.grad == 0).all()


def test_the_number_of_negatives_does_not_matter_only_their_distribution() -> None:
    positive, old, new = draw(1, 4, 3, 5)
    once = retraining_info_nce(positive, old, new, k=K, growth_ratio=0.4)
    thrice = retraining_info_nce(
        positive, old.repeat(1, 3), new.repeat(1, 2), k=K, growth_ratio=0.4
    )
    torch.testing.assert_close(once, thrice)


def test_info_nce_equals_pytorch_metric_learning() -> None:
    # Their NT-Xent sums over the negatives at hand; ours is K times the mean, so K = their number.
    from pytorch_metric_learning.losses import NTXentLoss

    n, temperature = 6, 0.1
    embeddings = torch.randn(2 * n, 16, dtype=torch.float64, generator=Generator().manual_seed(0))
    theirs = NTXentLoss(temperature=temperature)(embeddings, torch.arange(n).repeat(2))
    unit = torch.nn.functional.normalize(embeddings)
    logits = unit @ unit.T / temperature
    positive = torch.cat([logits.diagonal(n), logits.diagonal(-n)])
    rows = torch.arange(2 * n)
    is_negative = (rows[:, None] % n) != (rows[None, :] % n)
    negatives = logits[is_negative].view(2 * n, 2 * n - 2)
    ours = info_nce(positive, negatives, k=2 * n - 2).mean()
    torch.testing.assert_close(ours, theirs)


LOSSES = [
    lambda p, o, n: info_nce(p, o, k=K),
    lambda p, o, n: log_partition(p, o, k=K),
    lambda p, o, n: change_ratio(p, o, n, k=K),
    lambda p, o, n: incremental_info_nce(p, o, n, k=K, growth_ratio=0.3),
    lambda p, o, n: retraining_info_nce(p, o, n, k=K, growth_ratio=0.3),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients(loss) -> None:
    inputs = [tensor.requires_grad_() for tensor in draw(3, 4, 5, 6, scale=1.0)]
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "loss",
    [
        partial(info_nce, k=K),
        partial(log_partition, k=K),
        partial(incremental_info_nce, k=K, growth_ratio=0.3),
        partial(incremental_info_nce, k=K, growth_ratio=0.0),
        partial(retraining_info_nce, k=K, growth_ratio=0.3),
    ],
)
@settings(max_examples=30)
@given(corner=st.lists(st.sampled_from([-1e4, 0.0, 1e4]), min_size=5, max_size=5))
def test_extreme_logits_stay_finite(loss, dtype: torch.dtype, corner: list[float]) -> None:
    positive = torch.tensor(corner[:1], dtype=dtype, requires_grad=True)
    negatives = [
        torch.tensor([corner[i : i + 2]], dtype=dtype, requires_grad=True)
        for i in ((1, 3) if "growth_ratio" in loss.keywords else (1,))
    ]
    value = loss(positive, *negatives)
    assert value.dtype == dtype
    assert torch.isfinite(value).all()
    for gradient in torch.autograd.grad(value.sum(), [positive, *negatives]):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [info_nce, log_partition])
def test_negatives_per_positive_must_be_some(loss) -> None:
    with pytest.raises(ValueError, match="k must be positive, got 0"):
        loss(torch.zeros(1), torch.zeros(1, 2), k=0)


def test_bfloat16_is_summed_in_float32() -> None:
    # 300 terms of e⁰: bfloat16 cannot count beyond 256.
    positive, negatives = (
        torch.zeros(1, dtype=torch.bfloat16),
        torch.zeros(1, 300, dtype=torch.bfloat16),
    )
    assert info_nce(positive, negatives, k=300).item() == pytest.approx(math.log(301), rel=4e-3)


@pytest.mark.parametrize("alpha", [-0.1, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("loss", [incremental_info_nce, retraining_info_nce])
def test_growth_ratio_out_of_range(loss, alpha: float) -> None:
    positive, old, new = draw(0, 2, 3, 3)
    with pytest.raises(ValueError, match=r"growth ratio must be in \[0, 1\), got"):
        loss(positive, old, new, k=K, growth_ratio=alpha)


def test_growth_ratio_of_one_says_what_to_do() -> None:
    positive, old, new = draw(0, 2, 3, 3)
    with pytest.raises(ValueError, match=r"there is no old data, call fit\(\) first"):
        incremental_info_nce(positive, old, new, k=K, growth_ratio=1.0)


@pytest.mark.parametrize(
    ("positive", "negatives", "message"),
    [
        (torch.zeros(2, 1), torch.zeros(2, 3), r"positive must have shape \(n,\), got \(2, 1\)"),
        (torch.zeros(2), torch.zeros(3, 3), r"negatives must have shape \(2, m\)"),
        (torch.zeros(2), torch.zeros(2, 0), r"m >= 1, got \(2, 0\)"),
        (torch.zeros(2), torch.zeros(2), r"got \(2,\): give one row of logits per anchor"),
    ],
)
def test_wrong_shapes(positive: Tensor, negatives: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        info_nce(positive, negatives, k=K)


def test_wrong_k() -> None:
    with pytest.raises(ValueError, match="k must be positive, got 0"):
        info_nce(torch.zeros(2), torch.zeros(2, 3), k=0)


@pytest.mark.parametrize("loss", [incremental_info_nce, retraining_info_nce])
def test_wrong_shapes_of_either_negatives(loss) -> None:
    good, bad = torch.zeros(2, 3), torch.zeros(3, 3)
    for negatives in ((good, bad), (bad, good)):
        with pytest.raises(ValueError, match=r"negatives must have shape \(2, m\)"):
            loss(torch.zeros(2), *negatives, k=K, growth_ratio=0.5)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_negatives_count_by_their_mean(columns: int) -> None:
    negatives = torch.arange(float(columns))[None]
    expected = math.log(1.0 + K * negatives.exp().mean().item())
    assert info_nce(torch.zeros(1), negatives, k=K).item() == pytest.approx(expected, rel=1e-5)


def test_without_growth_retraining_is_training_on_the_old_items() -> None:
    draws = Generator().manual_seed(0)
    positive, (old, new) = torch.zeros(3), torch.randn(2, 3, 5, generator=draws)
    retraining = retraining_info_nce(positive, old, new, k=K, growth_ratio=0.0)
    torch.testing.assert_close(retraining, info_nce(positive, old, k=K))


def test_a_loss_without_gradients_leaves_nothing_behind_that_gradients_cannot_use() -> None:
    first, second = (torch.randn(7, 5, requires_grad=True) for _ in range(2))
    with torch.inference_mode():
        batch_losses(first.detach(), second.detach(), Objective())
    batch_losses(first, second, Objective()).mean().backward()
    assert first.grad is not None
