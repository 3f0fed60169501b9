"""From the embeddings of a batch's two views to the losses of its items.

An anchor is compared with the *other view* of every item (the paper's x⁺). Both directions count,
first view to second and second to first: the views are exchangeable, so the expectation is the
same and the variance smaller, for the price of a transpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.loss import incremental_info_nce, info_nce, retraining_info_nce

__all__ = ["Objective", "batch_losses", "increment_losses", "others", "similarities"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The numbers that define the contrastive loss.

    Args:
        temperature: τ, by which cosine similarities are divided.
        negatives: K, negatives per positive that the loss stands for, whatever the batch holds.
    """

    temperature: float = 0.1
    negatives: int = 31

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.negatives < 1:
            raise ValueError(f"negatives must be at least 1, got {self.negatives}")


def similarities(first: Tensor, second: Tensor, objective: Objective) -> Tensor:
    """Cosine similarities over τ: (n, d) and (m, d) embeddings to (n, m) logits."""
    return normalize(first) @ normalize(second).T / objective.temperature


def others(logits: Tensor) -> Tensor:
    """A square matrix without its diagonal: (n, n) to (n, n - 1)."""
    n = logits.shape[0]
    return logits.reshape(-1)[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def batch_losses(first: Tensor, second: Tensor, objective: Objective) -> Tensor:
    """NCE-I of every item of a batch, with the rest of it as negatives (Eq. 1).

    Args:
        first: (n, d) embeddings of the first views, n >= 2.
        second: (n, d) embeddings of the second views.
        objective: Temperature and K.

    Returns:
        (n,) losses.
    """
    if len(first) < 2:
        raise ValueError(
            f"NCE-I compares the items of a batch: at least 2 items are needed, got {len(first)}"
        )
    logits = similarities(first, second, objective)
    masked = _without_diagonal(logits)
    negatives = _log_mean_negatives(masked, masked, others=len(first) - 1)
    losses = info_nce(_positive(logits), negatives, k=objective.negatives)
    return _mean_of_ways(losses)


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
        second: (old + new, d) embeddings of the second views.
        objective: Temperature and K.
        old: How many of the items are old, at least 2.
        growth_ratio: α.
        retention: ρ.

    Returns:
        (old,) losses and (new,) losses.
    """
    k, new = objective.negatives, len(first) - old
    logits = similarities(first, second, objective)
    masked = _without_diagonal(logits)
    if retention == 1.0 and new > 1:
        # Old and new items have the same loss then: one pass over all, a third of the operations.
        from_old = _log_mean_negatives(
            masked[:, :old], masked[:old], others=[old - 1] * old + [old] * new
        )
        from_new = _log_mean_negatives(
            masked[:, old:], masked[old:], others=[new] * old + [new - 1] * new
        )
        losses = _mean_of_ways(
            retraining_info_nce(
                _positive(logits), from_old, from_new, k=k, growth_ratio=growth_ratio
            )
        )
        return losses[:old], losses[old:]

    positive = _positive(logits[:old, :old])
    from_old = _log_mean_negatives(masked[:old, :old], masked[:old, :old], others=old - 1)
    from_new = _log_mean_negatives(masked[:old, old:], masked[old:, :old], others=new)
    if retention == 1.0:
        of_old = retraining_info_nce(positive, from_old, from_new, k=k, growth_ratio=growth_ratio)
    else:
        of_old = incremental_info_nce(positive, from_old, from_new, k=k, growth_ratio=growth_ratio)
        if retention > 0.0:
            of_old = of_old + retention * info_nce(positive, from_old, k=k)

    positive = _positive(logits[old:, old:])
    from_old = _log_mean_negatives(masked[old:, :old], masked[:old, old:], others=old)
    if new == 1:
        of_new = info_nce(positive, from_old, k=k)
    else:
        from_new = _log_mean_negatives(masked[old:, old:], masked[old:, old:], others=new - 1)
        of_new = retraining_info_nce(positive, from_old, from_new, k=k, growth_ratio=growth_ratio)
    return _mean_of_ways(of_old), _mean_of_ways(of_new)


# Both directions are rows of one tensor of 2n: n first views as anchors, then n second views. The
# mean over an anchor's negatives stands for them, as one column: that is what the losses make of
# them anyway, and a quarter of the operations.


def _positive(logits: Tensor) -> Tensor:
    """(n, n) logits to (2n,) of the positive pairs, which are the same both ways."""
    return logits.diagonal().repeat(2)


def _log_mean_negatives(rows: Tensor, columns: Tensor, *, others: int | list[int]) -> Tensor:
    """The (2n, 1) log mean of f over the items that anchors are compared with.

    Args:
        rows: (n, m) logits of first views with second ones, −∞ where an anchor meets itself.
        columns: (m, n) logits of the same pairs the other way round.
        others: Items other than the anchor among the m, for all or for each of the n anchors.
    """
    both = torch.cat([torch.logsumexp(rows, dim=1), torch.logsumexp(columns, dim=0)])[:, None]
    if isinstance(others, int):
        return both - math.log(others)
    return both - both.new_tensor(others * 2).log()[:, None]


def _without_diagonal(logits: Tensor) -> Tensor:
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    return logits.masked_fill(own, -math.inf)


def _mean_of_ways(losses: Tensor) -> Tensor:
    return losses.view(2, -1).mean(dim=0)  # (2n,) → (n,)
