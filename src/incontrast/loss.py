"""The losses of incremental contrastive learning: pure, per item, unreduced, in log space.

Every function takes *logits*: similarities divided by the temperature, log f(a, b) = sim(a, b) / τ.
``positive`` holds one logit per anchor, ``negatives`` one row of logits per anchor. A row of
negatives stands for a *distribution*: only its mean enters, scaled by ``k``, so the number of
columns m is free and need not equal K. The caller takes the mean over anchors.

``batch_losses`` and ``increment_losses`` make those logits from the embeddings of a batch's two
views. An anchor is compared with the *other view* of every item (the paper's x⁺). Both directions
count, first view to second and second to first: the views are exchangeable, so the expectation is
the same and the variance smaller, for the price of a transpose.

Equation and definition numbers are those of the paper (WSDM'23).

Shapes:
    positive: (n,) logits of the positive pairs
    negatives, old_negatives, new_negatives: (n, m) logits with items of the distribution they stand
        for, of X and of ΔX; any m >= 1, each its own m
    k: K, the number of negatives per positive that the loss stands for
    growth_ratio: α = ΔN / (N + ΔN), in [0, 1)
    result: (n,), in the dtype of ``positive``
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import normalize

from incontrast.bounds import check_number, check_whole
from incontrast.names import NamedArguments

EPS = 1e-12  # the least norm that is divided by, as in normalize()
AT_ONCE = 1024  # items of a batch up to which similarities and weights are kept
BLOCK = 256  # anchors that are compared at a time with the items of a larger batch


class Strata(NamedTuple):
    """The parts of a batch, in order, whose items have one weight as negatives."""

    counts: tuple[int, ...]  # items of each
    weights: tuple[tuple[float, ...], ...]  # by the part of the anchor (row) and of the item


@dataclass(frozen=True, kw_only=True)
class Objective(NamedArguments):
    """The numbers that define the contrastive loss.

    Args:
        temperature: τ, by which cosine similarities are divided.
        negatives: K, negatives per positive that the loss stands for, whatever the batch holds.
    """

    temperature: float = 0.1
    negatives: int = 31

    def __post_init__(self) -> None:
        check_number("(0, inf)", temperature=self.temperature)
        check_whole(1, negatives=self.negatives)

    def losses(self, first: Tensor, second: Tensor, strata: Strata) -> Tensor:
        """log(f⁺ + Σ w·f⁻) − log f⁺ of every item, the mean of both directions.

        K times the mean of f over some negatives is a sum with weights, and so is a mean over
        strata: any NCE-I is one softmax for each direction, in few and large operations.

        Args:
            first: (n, d) embeddings of the first views, stratum by stratum.
            second: The same of the second views.
            strata: Which items of the batch are alike, and what they weigh.
        """
        return anchor_losses(first, second, self, strata, range(len(first)))


def log_partition(positive: Tensor, negatives: Tensor, *, k: float) -> Tensor:
    """log(f⁺ + K·E f⁻): the denominator of Eq. 1."""
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
    positive: Tensor, old_negatives: Tensor, new_negatives: Tensor, *, k: float, growth_ratio: float
) -> Tensor:
    """NCE-II, L^II = log(α·r + 1 − α), for old anchors (Def. 5).

    Theorem 1: ``info_nce(old) + incremental_info_nce == retraining_info_nce``, for any embeddings.
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
    positive: Tensor, old_negatives: Tensor, new_negatives: Tensor, *, growth_ratio: float, k: float
) -> Tensor:
    """NCE-I over all data, L^{I,X′} (Eq. 2), with E_X′ = (1−α)·E_X + α·E_ΔX as a stratified mean.

    Right for old and for new anchors alike.
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


def similarities(first: Tensor, second: Tensor, objective: Objective) -> Tensor:
    """Cosine similarities over τ: (n, d) and (m, d) embeddings to (n, m) logits."""
    return normalize(first) @ normalize(second).T / objective.temperature


def others(logits: Tensor) -> Tensor:
    """A square matrix without its diagonal: (n, n) to (n, n - 1)."""
    n = logits.shape[0]
    return logits.reshape(-1)[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def batch_losses(first: Tensor, second: Tensor, objective: Objective) -> Tensor:
    """NCE-I of every item of a batch, with the rest of it as negatives (Eq. 1).

    (n,) losses from (n, d) embeddings of the first and of the second views, n >= 2.
    """
    n = len(first)
    if n < 2:
        raise ValueError(
            f"NCE-I compares the items of a batch: at least 2 items are needed, got {n}"
        )
    strata = Strata((n,), ((objective.negatives / (n - 1),),))
    return objective.losses(first, second, strata)


def increment_losses(
    first: Tensor,
    second: Tensor,
    objective: Objective,
    *,
    old: int,
    growth_ratio: float,
    retention: float,
) -> tuple[Tensor, Tensor]:
    """The losses of old and of new items, from one batch that holds both.

    Old items have L^II + ρ·L^{I,X}. With ρ = 0 that is the paper's objective (Eq. 9), with ρ = 1
    it is retraining's loss (Theorem 1). New items have L^{I,X′} with stratified negatives (Eq. 2).
    A new item that is alone has no new negatives beside it: they are then from X.

    Args:
        first: (old + new, d) embeddings of the first views, old items first.
        second: The same of the second views.
        objective: Temperature and K.
        old: How many of the items are old, at least 2.
        growth_ratio: α.
        retention: ρ.
    """
    check_growth_ratio(growth_ratio)
    k, new = objective.negatives, len(first) - old
    if old < 2 or new < 1:
        raise ValueError(
            f"a batch must have at least 2 old items and 1 new one, got {old} and {new}"
        )
    of_old = k * (1.0 - growth_ratio) / (old - 1), k * growth_ratio / new
    beside = 1.0 - growth_ratio if new > 1 else 1.0
    of_new = k * beside / old, k * growth_ratio / max(new - 1, 1)
    strata = Strata((old, new), (of_old, of_new))
    old_losses, new_losses = objective.losses(first, second, strata).tensor_split([old])
    if retention != 1.0:  # L^II is L^{I,X′} − L^{I,X} (Theorem 1)
        within = batch_losses(first[:old], second[:old], objective)
        old_losses = old_losses - (1.0 - retention) * within
    return old_losses, new_losses


def anchor_losses(
    first: Tensor, second: Tensor, objective: Objective, strata: Strata, anchors: range
) -> Tensor:
    """``objective.losses`` of these anchors alone, without the similarities of all others."""
    losses: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
        first, second, objective, strata, anchors
    )
    return losses


class _Losses(Function):
    """The losses with a backward pass by hand, in half as many operations as autograd's.

    Of a large batch, nothing is kept for it but a number for each anchor.
    """

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        objective: Objective,
        strata: Strata,
        anchors: range,
    ) -> Tensor:
        unit, scale = _units(first, second, objective.temperature)
        if len(anchors) == len(first) <= AT_ONCE:
            logits = unit[0] @ unit[1].T
            logits = torch.stack([logits, logits.T]).add_(_log_weights(unit, strata, anchors))
            kept = logits.log_softmax(dim=2)
            losses = kept.diagonal(dim1=1, dim2=2).mean(dim=0).neg_()
        else:
            kept = unit.new_empty(2, len(anchors))  # log of each anchor's denominator
            losses = unit.new_empty(len(anchors))
            for block, at, logits in _blocks(unit, strata, anchors):
                torch.logsumexp(logits, dim=2, out=kept[:, at])
                losses[at] = (kept[:, at] - logits.diagonal(block.start, 1, 2)).mean(dim=0)
        ctx.save_for_backward(first, second, unit, scale, kept)
        ctx.given = objective.temperature, strata, anchors
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first, second, unit, scale, kept = ctx.saved_tensors
        temperature, strata, anchors = ctx.given
        half = gradient / 2  # for each direction
        if torch.is_grad_enabled():  # to be differentiated again: by autograd
            unit, _ = _units(first, second, temperature)
            rows = unit[:, anchors.start : anchors.stop]
            logits = rows @ unit.flip(0).mT + _log_weights(unit, strata, anchors)
            log_shares = logits.log_softmax(dim=2).diagonal(anchors.start, 1, 2)
            wanted = [x for x in (first, second) if x.requires_grad]
            found = torch.autograd.grad(log_shares, wanted, -half.expand(2, -1), create_graph=True)
            each = iter(found)
            pair = (next(each) if x.requires_grad else None for x in (first, second))
            return *pair, None, None, None
        if kept.dim() == 3:
            shares = kept.exp().mul_(half[:, None])
            of_logits = shares[0].add_(shares[1].T)  # both directions are of the same similarities
            of_logits.diagonal().sub_(gradient)
            of_unit = torch.stack([of_logits @ unit[1], of_logits.T @ unit[0]])
        else:
            of_unit = torch.zeros_like(unit)
            for block, at, logits in _blocks(unit, strata, anchors):
                of_logits = logits.sub_(kept[:, at, None]).exp_().mul_(half[at, None])
                of_logits.diagonal(block.start, 1, 2).sub_(half[at])
                own = slice(block.start, block.stop)
                of_unit[:, own].baddbmm_(of_logits, unit.flip(0))
                for side, other in ((0, 1), (1, 0)):
                    of_unit[other].addmm_(of_logits[side].T, unit[side, own])
        along = (of_unit * unit).sum(dim=2, keepdim=True).mul_(temperature)
        of_first, of_second = of_unit.addcmul_(unit, along, value=-1).div_(scale)
        return of_first, of_second, None, None, None


def _units(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(2, n, d) embeddings as they enter a product of similarities, and what they are divided by.

    √τ on each side: no pass over the product for τ.
    """
    both = torch.stack([first, second])
    scale = torch.linalg.vector_norm(both, dim=2, keepdim=True).clamp_min(EPS) * temperature**0.5
    return both / scale, scale


def _blocks(unit: Tensor, strata: Strata, anchors: range) -> Iterator[tuple[range, slice, Tensor]]:
    """Some anchors, their places among ``anchors``, and their (2, some, n) logits + log w."""
    work = unit.new_empty(2, min(BLOCK, len(anchors)), unit.shape[1])  # one for all blocks
    for start in range(0, len(anchors), BLOCK):
        block = anchors[start : start + BLOCK]
        logits = work[:, : len(block)]
        torch.bmm(unit[:, block.start : block.stop], unit.flip(0).mT, out=logits)
        logits += _log_weights(unit, strata, block)
        yield block, slice(start, start + len(block)), logits


def _log_weights(like: Tensor, strata: Strata, anchors: range) -> Tensor:
    """(anchors, n) log of the weights of items as negatives, by the strata of anchor and item.

    Those of a small batch are kept for the next one.
    """
    make = _weights if like.shape[1] <= AT_ONCE else _weights.__wrapped__
    return make(strata, anchors, like.dtype, like.device)


@lru_cache(maxsize=8)
def _weights(strata: Strata, anchors: range, dtype: torch.dtype, device: torch.device) -> Tensor:
    counts, weights = strata
    with torch.inference_mode(False):  # what is kept must serve gradients too
        table = torch.empty(len(anchors), sum(counts), dtype=dtype, device=device)
        start = -anchors.start  # of a stratum's rows
        for count, own in zip(counts, weights, strict=True):
            rows, start = table[max(start, 0) : max(start + count, 0)], start + count
            for block, weight in zip(torch.split(rows, list(counts), dim=1), own, strict=True):
                block.fill_(math.log(weight) if weight > 0.0 else -math.inf)
        # The positive pair counts as it is.
        table.diagonal(anchors.start).fill_(0.0)
        return table


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
