"""How far a strategy's losses are from retraining's at the same weights: Table 2 and Theorem 2.

Over its whole training, a strategy has minimised some loss of each item. Its bias is retraining's
loss L^{I,X′} of the item, less this one; see docs/explanation/theory.md.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from incontrast.bounds import check_number
from incontrast.evaluate.population import Population
from incontrast.loss import incremental_info_nce, info_nce, retraining_info_nce

ROUNDING = 1e-9  # relative; at one encoder, Theorem 2 is an equality


class OldNew(NamedTuple):
    """A figure of the old items, and the same of the new ones."""

    old: float
    new: float


@dataclass(frozen=True, eq=False)
class Bias:
    """The bias of one strategy on each of the N old and of the ΔN new items, in float64."""

    old: Tensor
    new: Tensor

    def mean(self) -> OldNew:
        """The mean, in which positive and negative biases cancel out."""
        return OldNew(self.old.mean().item(), self.new.mean().item())

    def mean_absolute(self) -> OldNew:
        return Bias(self.old.abs(), self.new.abs()).mean()


class Biases(NamedTuple):
    """The rows of Table 2."""

    no_update: Bias
    fine_tuning: Bias
    retraining: Bias
    icl: Bias


def bias(population: Population) -> Biases:
    """Each strategy's bias (Table 2) under an encoder, with at least two old and two new items.

    Every entry is the difference of two losses, each computed from its definition.

    >>> from incontrast.evaluate.population import population
    >>> from incontrast.loss import Objective
    >>> draws = torch.Generator().manual_seed(0)
    >>> old, new = (torch.randn(2, 9, 4, generator=draws).unbind() for _ in range(2))
    >>> biases = bias(population(old, new, growth_ratio=0.5, objective=Objective()))
    >>> round(biases.fine_tuning.mean().old, 2), abs(biases.icl.mean().old) < 1e-12
    (1.01, True)
    """
    old, new = _parts(population)
    k, growth_ratio = population.objective.negatives, population.growth_ratio
    update = partial(incremental_info_nce, k=k, growth_ratio=growth_ratio)  # L^II
    everything = partial(retraining_info_nce, k=k, growth_ratio=growth_ratio)  # L^{I,X′}
    before = info_nce(*old[:2], k=k)  # L^{I,X}, of the first training
    fine_tuned = info_nce(new[0], new[2], k=k)  # L^{I,ΔX}
    pooled = [info_nce(part[0], _pooled(part, growth_ratio), k=k) for part in (old, new)]
    of_old, of_new = everything(*old), everything(*new)
    return Biases(
        no_update=Bias(of_old - before, of_new),  # no loss of new items was minimised
        fine_tuning=Bias(of_old - before, of_new - fine_tuned),
        retraining=Bias(of_old - pooled[0], of_new - pooled[1]),
        icl=Bias(of_old - (before + update(*old)), of_new - everything(*new)),
    )


@dataclass(frozen=True, kw_only=True)
class RiskBound:
    """The empirical risks that Theorem 2 compares; all are means over the items they name."""

    growth_ratio: float  # α
    old_risk: float  # R_old, L^{I,X} over X, which the first training has minimised
    objective: float  # the paper's over X′ (Eq. 9): L^II of old and L^{I,X′} of new items
    retraining: float  # L^{I,X′} over X′

    @property
    def bound(self) -> float:
        """α·R_old."""
        return self.growth_ratio * self.old_risk

    @property
    def process_difference(self) -> float:
        """The risk of the whole process, R_old + objective, less that of retraining.

        At one encoder it equals the bound.
        """
        return self.old_risk + self.objective - self.retraining

    @property
    def objective_difference(self) -> float:
        """The risk of retraining, less that of the update's objective alone.

        At one encoder it is (1−α)·R_old, which is more than the bound if α < 1/2.
        """
        return self.retraining - self.objective

    @property
    def holds(self) -> bool:
        """Whether the difference of the whole process is within the bound."""
        return abs(self.process_difference) <= self.bound * (1.0 + ROUNDING)


def risk_bound(population: Population, *, before: Population | None = None) -> RiskBound:
    """The bound of Theorem 2 and the difference that it bounds.

    Args:
        population: Under the encoder after the update.
        before: The same under the encoder before, whose risk on X the first training has minimised;
            None takes one encoder for both, as the proof does.
    """
    old, new = _parts(population)
    first = old if before is None else _parts(before)[0]
    if before is not None and before.objective != population.objective:
        objectives = f"{before.objective} before and {population.objective} after"
        raise ValueError(f"risks compare under one objective only, got {objectives}")
    k, growth_ratio = population.objective.negatives, population.growth_ratio

    def risk(of_old: Tensor, of_new: Tensor) -> float:
        # Weighted by α, not by counts: a population may be a sample of the items that were seen.
        return ((1.0 - growth_ratio) * of_old.mean() + growth_ratio * of_new.mean()).item()

    of_new = retraining_info_nce(*new, k=k, growth_ratio=growth_ratio)
    return RiskBound(
        growth_ratio=growth_ratio,
        old_risk=info_nce(*first[:2], k=k).mean().item(),
        objective=risk(incremental_info_nce(*old, k=k, growth_ratio=growth_ratio), of_new),
        retraining=risk(retraining_info_nce(*old, k=k, growth_ratio=growth_ratio), of_new),
    )


Part = tuple[Tensor, Tensor, Tensor]  # in float64: (n,) positives, (n, 1) negatives from X, from ΔX


def _parts(population: Population) -> list[Part]:
    """The old and the new items."""
    if population.old is None or population.new is None:
        missing = "old" if population.old is None else "new"
        raise ValueError(f"bias needs an increment with old and new items, got no {missing} ones")
    parts: list[Part] = []
    for name, anchors in (("old", population.old), ("new", population.new)):
        if anchors.old_negatives is None or anchors.new_negatives is None:
            raise ValueError(f"bias needs at least 2 old and 2 new items, got 1 {name} item")
        negatives = anchors.old_negatives.double(), anchors.new_negatives.double()
        parts.append((anchors.positive.double(), *negatives))
    advice = "it is the share of new items, new / (old + new)"
    check_number("(0, 1)", advice, growth_ratio=population.growth_ratio)
    return parts


def _pooled(part: Part, growth_ratio: float) -> Tensor:
    """(n, 2) logits whose mean is E_X′ = (1−α)·E_X + α·E_ΔX: X′ as one distribution."""
    weights = math.log(2.0 * (1.0 - growth_ratio)), math.log(2.0 * growth_ratio)
    return torch.cat([part[1] + weights[0], part[2] + weights[1]], dim=1)
