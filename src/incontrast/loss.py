"""The losses of incremental contrastive learning: pure, per item, unreduced, in log space.

Every function takes *logits*: similarities divided by the temperature, log f(a, b) = sim(a, b) / τ.
``positive`` holds one logit per anchor, ``negatives`` one row of logits per anchor. A row of
negatives stands for a *distribution*: only its mean enters, scaled by ``k``, so the number of
columns m is free and need not equal K. The caller takes the mean over anchors.

Equation and definition numbers are those of the paper (WSDM'23).

Shapes:
    positive: (n,)
    negatives, old_negatives, new_negatives: (n, m), any m >= 1, each its own m
    result: (n,), in the dtype of ``positive``
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "change_ratio",
    "incremental_info_nce",
    "info_nce",
    "log_partition",
    "retraining_info_nce",
]


def log_partition(positive: Tensor, negatives: Tensor, *, k: float) -> Tensor:
    """log(f⁺ + K·E f⁻): the denominator of Eq. 1.

    Args:
        positive: (n,) logits of the positive pairs.
        negatives: (n, m) logits of negatives, drawn from the distribution they stand for.
        k: K, the number of negatives per positive that the loss stands for.
    """
    _check(positive, negatives, k=k)
    return _partition(_wide(positive), _log_mean_exp(negatives), k).to(positive.dtype)


def info_nce(positive: Tensor, negatives: Tensor, *, k: float) -> Tensor:
    """NCE-I, L^{I,P} = −log f⁺ + log(f⁺ + K·E_P f⁻) (Eq. 1).

    >>> positive, negatives = torch.tensor([2.0]), torch.tensor([[0.0, 0.0]])
    >>> info_nce(positive, negatives, k=31)  # log(1 + 31·e⁻²)
    tensor([1.6478])
    """
    _check(positive, negatives, k=k)
    wide = _wide(positive)
    return (_partition(wide, _log_mean_exp(negatives), k) - wide).to(positive.dtype)


def change_ratio(
    positive: Tensor, old_negatives: Tensor, new_negatives: Tensor, *, k: float
) -> Tensor:
    """r = (f⁺ + K·E_ΔX f⁻) / (f⁺ + K·E_X f⁻): how negatives change (Def. 4); 1 is not at all.

    The ratio itself overflows where its logarithm does not: beyond e^88 it is infinite in float32.
    """
    return _log_change_ratio(positive, old_negatives, new_negatives, k).exp().to(positive.dtype)


def incremental_info_nce(
    positive: Tensor,
    old_negatives: Tensor,
    new_negatives: Tensor,
    *,
    k: float,
    growth_ratio: float,
) -> Tensor:
    """NCE-II, L^II = log(α·r + 1 − α), for old anchors (Def. 5).

    Theorem 1: ``info_nce(old) + incremental_info_nce == retraining_info_nce``, for any embeddings.

    Args:
        positive: (n,) logits of the positive pairs of old items.
        old_negatives: (n, m) logits with items of X.
        new_negatives: (n, m′) logits with items of ΔX.
        k: K, the number of negatives per positive that the loss stands for.
        growth_ratio: α = ΔN / (N + ΔN), in [0, 1).
    """
    check_growth_ratio(growth_ratio)
    log_ratio = _log_change_ratio(positive, old_negatives, new_negatives, k)
    if growth_ratio == 0.0:
        loss = log_ratio * 0.0  # exactly 0, and still part of the graph
    else:
        loss = torch.logaddexp(
            log_ratio + math.log(growth_ratio),
            torch.full_like(log_ratio, math.log1p(-growth_ratio)),
        )
    return loss.to(positive.dtype)


def retraining_info_nce(
    positive: Tensor,
    old_negatives: Tensor,
    new_negatives: Tensor,
    *,
    k: float,
    growth_ratio: float,
) -> Tensor:
    """NCE-I over all data, L^{I,X′} (Eq. 2), with E_X′ = (1−α)·E_X + α·E_ΔX as a stratified mean.

    Right for old and for new anchors alike; arguments as in ``incremental_info_nce``.
    """
    check_growth_ratio(growth_ratio)
    _check(positive, old_negatives, new_negatives, k=k)
    negatives = _log_mean_exp(old_negatives)
    if growth_ratio > 0.0:
        negatives = torch.logaddexp(
            negatives + math.log1p(-growth_ratio),
            _log_mean_exp(new_negatives) + math.log(growth_ratio),
        )
    wide = _wide(positive)
    return (_partition(wide, negatives, k) - wide).to(positive.dtype)


def check_growth_ratio(growth_ratio: float) -> None:
    """Raise unless α is in [0, 1)."""
    if not 0.0 <= growth_ratio < 1.0:
        advice = (
            "there is no old data, call fit() first"
            if growth_ratio == 1.0
            else "it is the share of new items, new / (old + new)"
        )
        raise ValueError(f"growth ratio must be in [0, 1), got {growth_ratio}: {advice}")


def _log_change_ratio(
    positive: Tensor, old_negatives: Tensor, new_negatives: Tensor, k: float
) -> Tensor:
    _check(positive, old_negatives, new_negatives, k=k)
    wide = _wide(positive)
    return _partition(wide, _log_mean_exp(new_negatives), k) - _partition(
        wide, _log_mean_exp(old_negatives), k
    )


def _partition(positive: Tensor, log_mean: Tensor, k: float) -> Tensor:
    return torch.logaddexp(positive, log_mean + math.log(k))


def _log_mean_exp(logits: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return _wide(logits)[:, 0]
    return torch.logsumexp(_wide(logits), dim=1) - math.log(logits.shape[1])


def _wide(logits: Tensor) -> Tensor:
    """Half precision has too few digits to add terms of different sizes: sum in float32."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _check(positive: Tensor, *negatives: Tensor, k: float) -> None:
    if positive.dim() != 1:
        raise ValueError(
            f"positive must have shape (n,), got {tuple(positive.shape)}: give one logit per anchor"
        )
    for logits in negatives:
        if logits.dim() != 2 or logits.shape[0] != positive.shape[0] or logits.shape[1] == 0:
            raise ValueError(
                f"negatives must have shape ({positive.shape[0]}, m) with m >= 1, "
                f"got {tuple(logits.shape)}: give one row of logits per anchor"
            )
    if not k > 0:
        raise ValueError(f"k must be positive, got {k}: the paper uses 31 negatives per positive")
