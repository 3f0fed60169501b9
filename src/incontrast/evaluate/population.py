"""The evaluation loss over X′: fixed views, all items as negatives, old and new items apart.

Three numbers per anchor determine everything: the logit of its positive pair, and the log means
over its negatives from X and from ΔX. They are computed once, from all items or from a sample.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.loss import Objective, change_ratio, info_nce, retraining_info_nce, similarities
from incontrast.parity import EvaluationLoss
from incontrast.randomness import generator
from incontrast.training.engine import Engine, embed_views
from incontrast.training.task import Increment

ROWS = 1024  # anchors whose similarities are in memory at once


@dataclass(frozen=True, eq=False)
class Anchors:
    """Items as anchors, with all others as negatives."""

    positive: Tensor  # (n,) logits of the positive pairs
    old_negatives: Tensor | None  # (n, 1) log mean f with the other items of X, if there are any
    new_negatives: Tensor | None  # (n, 1) log mean f with the other items of ΔX, if there are any


class Quartiles(NamedTuple):
    lower: float
    median: float
    upper: float


@dataclass(frozen=True, eq=False)
class Population:
    """Old and new items, if there are any, as anchors under one encoder."""

    old: Anchors | None
    new: Anchors | None
    growth_ratio: float  # α
    objective: Objective

    @cached_property
    def old_losses(self) -> Tensor:
        """(n,) losses of old items with negatives from X′ (Eq. 2)."""
        return self._losses(self.old)

    @cached_property
    def new_losses(self) -> Tensor:
        """(m,) losses of new items with negatives from X′ (Eq. 2)."""
        return self._losses(self.new)

    def _losses(self, anchors: Anchors | None) -> Tensor:
        if anchors is None:
            return torch.empty(0)
        k, old, new = self.objective.negatives, anchors.old_negatives, anchors.new_negatives
        if old is not None and new is not None:
            growth_ratio = self.growth_ratio
            return retraining_info_nce(anchors.positive, old, new, k=k, growth_ratio=growth_ratio)
        negatives = new if old is None else old
        assert negatives is not None
        return info_nce(anchors.positive, negatives, k=k)

    def evaluation_loss(self) -> EvaluationLoss:
        """The mean loss of old items, of new items, and over X′."""
        old, new = self.old_losses.mean().item(), self.new_losses.mean().item()
        if self.old is None or self.new is None:
            return EvaluationLoss(old, new, new if self.old is None else old)
        return EvaluationLoss(old, new, (1.0 - self.growth_ratio) * old + self.growth_ratio * new)

    def change_ratios(self) -> Tensor:
        """(n,) change ratios r of the old items (Def. 4)."""
        old = self.old
        if old is None or old.old_negatives is None or old.new_negatives is None:
            raise ValueError("the change ratio needs old and new items, got only one of them")
        k = self.objective.negatives
        return change_ratio(old.positive, old.old_negatives, old.new_negatives, k=k)

    def change_ratio(self) -> Quartiles:
        ratios = self.change_ratios()
        return Quartiles(*(ratios.quantile(part).item() for part in (0.25, 0.5, 0.75)))


def measure(
    encoder: nn.Module,
    domain: Domain,
    increment: Increment,
    *,
    objective: Objective | None = None,
    engine: Engine | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Population:
    """Embed two views of each item, the same ones for every encoder, and measure their negatives.

    Args:
        encoder: In evaluation mode.
        domain: The kind of data.
        increment: Old and new items; either may be missing.
        objective: Temperature and K.
        engine: Where to compute; the encoder's device if None.
        sample: Old items and new items at most, drawn at random; all of them if None.
        seed: Determines the sample and the views.
    """
    engine, objective = engine or Engine.of(encoder), objective or Objective()

    def views(items: Collection | None, count: int, name: str) -> tuple[Tensor, Tensor] | None:
        if items is None:
            return None
        places = torch.arange(count)
        if sample is not None and count > sample:
            places = torch.randperm(count, generator=generator(seed, "population", name))[:sample]
        draws = generator(seed, "views", name)
        return embed_views(encoder, domain, items, places, draws, engine=engine)

    old = views(increment.old, increment.stored, "old")
    new = views(increment.new, increment.new_count, "new")
    return population(old, new, growth_ratio=increment.growth_ratio, objective=objective)


def population(
    old: tuple[Tensor, Tensor] | None,
    new: tuple[Tensor, Tensor] | None,
    *,
    growth_ratio: float,
    objective: Objective,
) -> Population:
    """The population of items whose two views have these (n, d) embeddings; not both are None."""
    present = [items for items in (old, new) if items is not None]
    first, second = (torch.cat(side) for side in zip(*present, strict=True))
    stored = 0 if old is None else len(old[0])
    added = len(first) - stored
    rows: list[list[Tensor]] = []
    for start in range(0, len(first), ROWS):
        logits = similarities(first[start : start + ROWS], second, objective)
        diagonal = logits.diagonal(start)
        positive = diagonal.clone()
        diagonal.fill_(-math.inf)  # an anchor is not its own negative
        parts = logits.tensor_split([stored], dim=1)
        rows.append([positive, *(part.logsumexp(dim=1) for part in parts)])
    positive, from_old, from_new = (torch.cat(column) for column in zip(*rows, strict=True))

    def anchors(part: slice, old_count: int, new_count: int) -> Anchors:
        means = (
            (sums[part] - math.log(count))[:, None] if count else None
            for sums, count in ((from_old, old_count), (from_new, new_count))
        )
        return Anchors(positive[part], *means)

    return Population(
        None if old is None else anchors(slice(stored), stored - 1, added),
        None if new is None else anchors(slice(stored, None), stored, added - 1),
        growth_ratio,
        objective,
    )
