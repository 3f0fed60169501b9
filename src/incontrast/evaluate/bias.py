"""How far a strategy's losses are from retraining's at the same weights: Table 2 and Theorem 2.

A strategy has minimised some loss of every item, over its whole training process. Its bias is
retraining's loss L^{I,X′} of that item less this one. docs/explanation/theory.md says what follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from incontrast.evaluate.population import Anchors, Population
from incontrast.loss import incremental_info_nce, info_nce, retraining_info_nce

ROUNDING = 1e-9  # relative; at one encoder Theorem 2 is an equality, which rounding may break


class OldNew(NamedTuple):
    """A figure of the old items and the same figure of the new ones."""

    old: float
    new: float


@dataclass(frozen=True, eq=False)
class Bias:
    """The bias of one strategy, per item, in float64.

    Args:
        old: (N,) bias on the old items.
        new: (ΔN,) bias on the new items.
    """

    old: Tensor
    new: Tensor

    def mean(self) -> OldNew:
        """The mean, in which biases of either sign cancel."""
        return OldNew(self.old.mean().item(), self.new.mean().item())

    def mean_absolute(self) -> OldNew:
        """The mean size."""
        return OldNew(self.old.abs().mean().item(), self.new.abs().mean().item())


class Biases(NamedTuple):
    """The rows of Table 2."""

    no_update: Bias
    fine_tuning: Bias
    retraining: Bias
    icl: Bias


def bias(population: Population) -> Biases:
    """Each strategy's bias on old and on new data (Table 2), at the weights of this population.

    Every entry is the difference of two losses, each computed from its own definition; none is
    taken from the table.

    Args:
        population: Old and new items, at least two of each, under any encoder.

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

    def compare(items: _Negatives, *minimised: Tensor) -> list[Tensor]:
        target = retraining_info_nce(*items, k=k, growth_ratio=growth_ratio)  # L^{I,X′}
        return [target - loss for loss in minimised]

    def retraining(items: _Negatives) -> Tensor:
        return info_nce(items.positive, _pooled(items, growth_ratio), k=k)

    before = info_nce(old.positive, old.old_negatives, k=k)  # L^{I,X}, of the first training
    on_old = compare(
        old,
        before,
        before,
        retraining(old),
        before + incremental_info_nce(*old, k=k, growth_ratio=growth_ratio),
    )
    on_new = compare(
        new,
        torch.zeros_like(new.positive),  # no update has minimised nothing here
        info_nce(new.positive, new.new_negatives, k=k),
        retraining(new),
        retraining_info_nce(*new, k=k, growth_ratio=growth_ratio),
    )
    return Biases(*(Bias(*pair) for pair in zip(on_old, on_new, strict=True)))


@dataclass(frozen=True, kw_only=True)
class RiskBound:
    """The empirical risks that Theorem 2 compares; all are means over the items they name.

    Args:
        growth_ratio: α.
        old_risk: R_old, L^{I,X} over X: what the first training has minimised.
        objective: The paper's objective over X′ (Eq. 9): L^II of old and L^{I,X′} of new items.
        retraining: L^{I,X′} over X′.
    """

    growth_ratio: float
    old_risk: float
    objective: float
    retraining: float

    @property
    def bound(self) -> float:
        """α·R_old."""
        return self.growth_ratio * self.old_risk

    @property
    def process_difference(self) -> float:
        """The risk of the whole process, R_old + objective, less retraining's.

        At one encoder it is α·R_old to the last digit.
        """
        return self.old_risk + self.objective - self.retraining

    @property
    def objective_difference(self) -> float:
        """Retraining's risk less that of the update's objective on its own.

        It is (1−α)·L^{I,X} over X, more than the bound whenever α < 1/2.
        """
        return self.retraining - self.objective

    @property
    def holds(self) -> bool:
        """Whether the whole process's difference is within the bound."""
        return abs(self.process_difference) <= self.bound * (1.0 + ROUNDING)


def risk_bound(population: Population, *, before: Population | None = None) -> RiskBound:
    """The bound of Theorem 2 and the difference it is about.

    Args:
        population: Old and new items, at least two of each, under the encoder after the update.
        before: The same under the encoder before it, whose risk on X the first training has
            minimised; None takes one encoder for both, as the proof has to.
    """
    old, new = _parts(population)
    first = old if before is None else _parts(before)[0]
    if before is not None and before.objective != population.objective:
        raise ValueError(
            "risks compare under one objective only, "
            f"got {before.objective} before and {population.objective} after"
        )
    k, growth_ratio = population.objective.negatives, population.growth_ratio

    def risk(of_old: Tensor, of_new: Tensor) -> float:
        # Weights α, not counts: a population may be a sample of the items that were seen.
        return ((1.0 - growth_ratio) * of_old.mean() + growth_ratio * of_new.mean()).item()

    of_new = retraining_info_nce(*new, k=k, growth_ratio=growth_ratio)
    return RiskBound(
        growth_ratio=growth_ratio,
        old_risk=info_nce(first.positive, first.old_negatives, k=k).mean().item(),
        objective=risk(incremental_info_nce(*old, k=k, growth_ratio=growth_ratio), of_new),
        retraining=risk(retraining_info_nce(*old, k=k, growth_ratio=growth_ratio), of_new),
    )


class _Negatives(NamedTuple):
    """Anchors in float64 that have negatives from both X and ΔX."""

    positive: Tensor  # (n,)
    old_negatives: Tensor  # (n, 1)
    new_negatives: Tensor  # (n, 1)


def _parts(population: Population) -> tuple[_Negatives, _Negatives]:
    if population.old is None or population.new is None:
        missing = "old" if population.old is None else "new"
        raise ValueError(
            f"bias is about old and new items, got no {missing} ones: "
            "measure the encoder on an increment that has both"
        )
    if not 0.0 < population.growth_ratio < 1.0:
        raise ValueError(
            f"growth ratio must be in (0, 1), got {population.growth_ratio}: "
            "it is the share of new items, new / (old + new)"
        )
    return _with_negatives(population.old, "old"), _with_negatives(population.new, "new")


def _with_negatives(anchors: Anchors, name: str) -> _Negatives:
    if anchors.old_negatives is None or anchors.new_negatives is None:
        raise ValueError(
            f"bias needs at least 2 {name} items, got 1: {name} items are each other's negatives"
        )
    return _Negatives(
        anchors.positive.double(), anchors.old_negatives.double(), anchors.new_negatives.double()
    )


def _pooled(items: _Negatives, growth_ratio: float) -> Tensor:
    """(n, 2) logits whose mean is E_X′ = (1−α)·E_X + α·E_ΔX: X′ as one distribution."""
    weights = [math.log(2.0 * (1.0 - growth_ratio)), math.log(2.0 * growth_ratio)]
    return torch.cat([items.old_negatives + weights[0], items.new_negatives + weights[1]], dim=1)
