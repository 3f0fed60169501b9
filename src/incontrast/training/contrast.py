"""From the embeddings of a batch's two views to the losses of its items.

An anchor is compared with the *other view* of every item (the paper's x⁺). Both directions count,
first view to second and second to first: the views are exchangeable, so the expectation is the
same and the variance smaller, for the price of a transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """NCE-I of every item of a batch, the rest of which is its noise (Eq. 1).

    Args:
        first: (n, d) embeddings of the first views, n >= 2.
        second: (n, d) embeddings of the second views.
        objective: Temperature and K.

    Returns:
        (n,) losses.
    """

    def one_way(logits: Tensor) -> Tensor:
        return info_nce(logits.diagonal(), others(logits), k=objective.negatives)

    if len(first) < 2:
        raise ValueError(
            f"NCE-I compares the items of a batch: at least 2 items are needed, got {len(first)}"
        )
    return _both_ways(one_way, similarities(first, second, objective))


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
    it is retraining's loss (Theorem 1). New items have L^{I,X′} with stratified noise (Eq. 2).
    A new item that is alone has no new noise beside it: its noise is then X.

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

    def of_old(logits: Tensor) -> Tensor:
        positive = logits[:old, :old].diagonal()
        noise, change = others(logits[:old, :old]), logits[:old, old:]
        if retention == 1.0:
            return retraining_info_nce(
                positive, noise, change, k=objective.negatives, growth_ratio=growth_ratio
            )
        loss = incremental_info_nce(
            positive, noise, change, k=objective.negatives, growth_ratio=growth_ratio
        )
        if retention == 0.0:
            return loss
        return loss + retention * info_nce(positive, noise, k=objective.negatives)

    def of_new(logits: Tensor) -> Tensor:
        positive, noise = logits[old:, old:].diagonal(), logits[old:, :old]
        if positive.shape[0] == 1:
            return info_nce(positive, noise, k=objective.negatives)
        return retraining_info_nce(
            positive,
            noise,
            others(logits[old:, old:]),
            k=objective.negatives,
            growth_ratio=growth_ratio,
        )

    logits = similarities(first, second, objective)
    return _both_ways(of_old, logits), _both_ways(of_new, logits)


def _both_ways(losses: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    return (losses(logits) + losses(logits.T)) / 2
