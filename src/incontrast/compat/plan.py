"""Which stored vectors gain most from being re-embedded, and what to expect of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.compat import link
from incontrast.compat.adapter import HIDDEN, ridge
from incontrast.compat.link import Link, NoAdapter, fit_link
from incontrast.compat.quality import RELEVANT, measured, nearest
from incontrast.randomness import generator

SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 1.0)
FOLDS = 3
FEWEST = 2 * link.FEWEST  # vectors of a sample at least
PENALTY = 0.1


class Expected(NamedTuple):
    """What a search finds after a share was re-embedded, against everything re-embedded."""

    share: float
    recall: float
    precision: float


@dataclass(frozen=True, eq=False)
class Priority:
    """How far a stored vector is from where its map takes it, as predicted from the vector itself.

    A regression on the same features as the residual map's: movement that no adapter explains is
    larger in some parts of a space than in others, above all where new items have come in.
    """

    hidden: Tensor  # (d, h)
    weight: Tensor  # (d + h, 1)
    bias: Tensor  # (1,)

    def __call__(self, vectors: Tensor) -> Tensor:
        """(n,) predicted errors 1 − cos."""
        return (_features(normalize(vectors.float()), self.hidden) @ self.weight + self.bias)[:, 0]

    @classmethod
    def fit(cls, vectors: Tensor, errors: Tensor, seed: int) -> Priority:
        unit = normalize(vectors.float())
        width = unit.shape[1]
        draws = generator(seed, "priority")
        hidden = torch.randn(width, min(HIDDEN // 2, 4 * width), generator=draws)
        weight, bias = next(ridge(_features(unit, hidden), errors[:, None], (PENALTY,)))
        return cls(hidden, weight, bias)


def _features(unit: Tensor, hidden: Tensor) -> Tensor:
    return torch.cat([unit, (unit @ hidden).relu()], dim=1)


class Plan(NamedTuple):
    """What was learned from a sample of stored vectors that were re-embedded."""

    link: Link
    priority: Priority
    expected: tuple[Expected, ...]


def make_plan(before: Tensor, after: Tensor, *, old: int, new: int, seed: int) -> Plan:
    """Fit maps and priorities on a sample, and try the plan on it, each part by the others.

    Args:
        before: (n, d) stored vectors.
        after: (n, e) the same items, re-embedded.
        old: The number of the space of before.
        new: The number of the new space.
        seed: Determines every draw.

    Raises:
        NoAdapter: There are too few.
    """
    if len(before) < FEWEST:
        raise NoAdapter(f"a plan is made from at least {FEWEST} vectors, got {len(before)}")
    spaces = {"old": old, "new": new, "seed": seed}
    whole = fit_link(before, after, **spaces)
    after = normalize(after.float())
    mapped = torch.empty_like(after)
    order = torch.randperm(len(after), generator=generator(seed, "plan", old, new))
    for number in range(FOLDS):
        fold = order[number::FOLDS]
        rest = _without(order, fold)
        mapped[fold] = fit_link(before[rest], after[rest], **spaces).to_new(before[fold])
    errors = 1.0 - (mapped * after).sum(1)
    return Plan(
        whole, Priority.fit(before, errors, seed), expected_shares(before, mapped, after, seed)
    )


def expected_shares(
    before: Tensor, mapped: Tensor, after: Tensor, seed: int
) -> tuple[Expected, ...]:
    """What a search finds once shares of some vectors are re-embedded, the most valuable first.

    Args:
        before: (n, d) stored vectors.
        mapped: (n, e) the same, mapped.
        after: (n, e) the same, re-embedded.
        seed: Determines the parts, whose priorities are predicted by the others.
    """
    after = normalize(after.float())
    errors = 1.0 - (mapped * after).sum(1)
    predicted = torch.empty_like(errors)
    order = torch.randperm(len(after), generator=generator(seed, "shares"))
    for number in range(FOLDS):
        fold = order[number::FOLDS]
        rest = _without(order, fold)
        predicted[fold] = Priority.fit(before[rest], errors[rest], seed)(before[fold])
    ranked = nearest(after, after, RELEVANT)
    first = predicted.argsort(descending=True)
    expected = []
    for share in SHARES:
        mixed = mapped.clone()
        again = first[: round(share * len(first))]
        mixed[again] = after[again]
        found = measured(after, mixed, ranked)
        expected.append(Expected(share, found.recall, found.precision))
    return tuple(expected)


def _without(order: Tensor, fold: Tensor) -> Tensor:
    return order[~torch.isin(order, fold)]
