"""Which stored vectors gain most from being re-embedded, and what to expect of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.compat import link
from incontrast.compat.fitting import ridge
from incontrast.compat.link import Link, NoAdapter, fit_link
from incontrast.compat.quality import NEIGHBOURS, hits, nearest, relevant
from incontrast.randomness import generator

SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 1.0)
FOLDS = 3
FEWEST = 2 * link.FEWEST  # vectors of a sample at least
CROSSED = link.FEWEST * FOLDS // (FOLDS - 1)  # vectors at least for ``cross_mapped``
QUERIES = 250  # of each kind by which vectors are ordered
PENALTY = 0.1
HIDDEN = 256  # random features at most

Chunks = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Gives stored vectors and what their map makes of them, chunk by chunk, as often as called."""


class Expected(NamedTuple):
    """What a search finds after a share was re-embedded, against everything re-embedded."""

    share: float
    recall: float
    precision: float


@dataclass(frozen=True, eq=False)
class Spread:
    """How far the cosines of a mapped vector are off, as predicted from the stored vector.

    A regression on the vector and on random features of it: movement that no adapter explains is
    larger in some parts of a space than in others, above all where new items have come in.
    """

    hidden: Tensor  # (d, h)
    weight: Tensor  # (d + h, 1)
    bias: Tensor  # (1,)
    range: tuple[float, float]

    def __call__(self, vectors: Tensor) -> Tensor:
        """(n,) root mean squares of the error of a cosine with a query."""
        features = _features(normalize(vectors.float()), self.hidden)
        return (features @ self.weight + self.bias)[:, 0].clamp_(*self.range).exp_()

    @classmethod
    def fit(cls, vectors: Tensor, mapped: Tensor, after: Tensor, queries: Tensor) -> Spread:
        """Of (n, d) stored vectors, (n, e) mapped by others, and (n, e) re-embedded."""
        logs = (queries @ (after - mapped).T).square().mean(0).clamp_(min=1e-12).log_() / 2
        unit = normalize(vectors.float())
        width = unit.shape[1]
        hidden = torch.randn(width, min(HIDDEN, 4 * width), generator=generator(0, "spread"))
        weight, bias = ridge(_features(unit, hidden), logs[:, None], PENALTY)
        return cls(hidden, weight, bias, (logs.min().item(), logs.max().item()))


def _features(unit: Tensor, hidden: Tensor) -> Tensor:
    return torch.cat([unit, (unit @ hidden).relu()], dim=1)


class Plan(NamedTuple):
    """What was learned from a sample of stored vectors that were re-embedded."""

    link: Link
    spread: Spread
    queries: tuple[Tensor, ...]
    """Of each kind (m, e), each kind as important as another."""
    expected: tuple[Expected, ...]

    def values(self, chunks: Chunks) -> Tensor:
        """(n,) what each vector is worth: of how many queries it would change the ten nearest."""
        return changes(self.queries, self.spread, chunks)


def make_plan(
    before: Tensor,
    after: Tensor,
    *,
    old: int,
    new: int,
    seed: int,
    stored: int | None = None,
    queries: Tensor | None = None,
) -> Plan:
    """Fit maps and priorities on a sample, and try the plan on it, each part by the others.

    ``before`` are (n, d) of ``stored`` vectors, ``after`` (n, e) the same items re-embedded,
    ``queries`` (m, e) items like those that will be searched for, for which the sample stands as
    well.
    """
    if len(before) < FEWEST:
        raise NoAdapter(f"a plan is made from at least {FEWEST} vectors, got {len(before)}")
    spaces = {"old": old, "new": new, "seed": seed}
    whole = fit_link(before, after, **spaces)
    after = normalize(after.float())
    mapped = cross_mapped(before, after, **spaces)
    order = torch.randperm(len(after), generator=generator(seed, "plan", old, new))
    asked: tuple[Tensor, ...] = (after[order[:QUERIES]],)
    if queries is not None and len(queries):
        asked += (normalize(queries.float()[:QUERIES]),)
    spread = Spread.fit(before, mapped, after, torch.cat(asked))
    return Plan(whole, spread, asked, expected_shares(before, mapped, after, seed, stored))


def cross_mapped(before: Tensor, after: Tensor, *, old: int, new: int, seed: int) -> Tensor:
    """(n, e) stored vectors, each mapped by what was fitted on other ones.

    A map is at its best on what it was fitted on, so those say nothing about others.
    """
    mapped = torch.empty_like(after)
    order = torch.randperm(len(after), generator=generator(seed, "plan", old, new))
    for fold, rest in _folds(order):
        link = fit_link(before[rest], after[rest], old=old, new=new, seed=seed)
        mapped[fold] = link.to_new(before[fold])
    return mapped


def changes(queries: tuple[Tensor, ...], spread: Spread, chunks: Chunks) -> Tensor:
    """(n,) the expected share of queries whose ten nearest change with a vector.

    A mapped vector's cosine with a query is off by an error of which the spread is known. Whether
    it belongs to the ten nearest is in doubt where the tenth is no further away than that.
    """
    together = torch.cat(queries)
    weights = torch.cat([torch.full((len(part),), 1 / len(part)) for part in queries])
    best = torch.full((len(together), NEIGHBOURS), -2.0)
    for _, mapped in chunks():
        similar = together @ mapped.T
        most = similar.topk(min(NEIGHBOURS, len(mapped)), dim=1).values
        best = torch.cat([best, most], dim=1).topk(NEIGHBOURS, dim=1).values
    found = []
    for stored, mapped in chunks():
        gap = torch.addmm(-best[:, -1:], together, mapped.T)
        found.append(weights @ gap.div_(spread(stored)).square_().mul_(-0.5).exp_())
    return torch.cat(found)


def expected_shares(
    before: Tensor, mapped: Tensor, after: Tensor, seed: int, stored: int | None = None
) -> tuple[Expected, ...]:
    """What a search finds once shares of some vectors are re-embedded, the most valuable first.

    Half of the items are the queries that the plan knows, the others those that are counted. The
    priorities of a part of the (n, d) stored vectors, which are mapped and re-embedded to (n, e),
    are predicted by the others.

    The more vectors are stored, the closer the ten nearest are, and the more of them a map's errors
    exchange. A sample has few that close: of each item, as many as ten are of all those stored.
    """
    after = normalize(after.float())
    values = torch.empty(len(after))
    order = torch.randperm(len(after), generator=generator(seed, "shares"))
    known, asked = order[: len(order) // 2], order[len(order) // 2 :]
    queries = (after[known[:QUERIES]],)
    for fold, rest in _folds(order):
        spread = Spread.fit(before[rest], mapped[rest], after[rest], queries[0])
        # The tenth nearest is looked for among all, the spread is known of this part.
        values[fold] = changes(queries, spread, lambda: iter([(before, mapped)]))[fold]
    part = len(after) / max(stored or 0, len(after))
    count = max(round(NEIGHBOURS * part), 1)
    near = relevant(round(len(after) / part)) / NEIGHBOURS  # times as many as are found
    ranked = nearest(after, after, round(near * count))
    first = values.argsort(descending=True)
    expected = []
    for share in SHARES:
        mixed = mapped.clone()
        again = first[: round(share * len(first))]
        mixed[again] = after[again]
        recall, precision = hits(nearest(after, mixed, count), ranked)
        expected.append(
            Expected(share, recall[asked].mean().item(), precision[asked].mean().item())
        )
    return tuple(expected)


def _folds(order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of the items, each with all others."""
    for number in range(FOLDS):
        fold = order[number::FOLDS]
        yield fold, order[~torch.isin(order, fold)]
