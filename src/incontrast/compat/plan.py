"""Which stored vectors gain most from being re-embedded, and what to expect of it."""

from collections.abc import Callable, Iterator
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
FEWEST = 2 * link.FEWEST  # vectors of a sample
CROSSED = link.FEWEST * FOLDS // (FOLDS - 1)  # smallest number of vectors for ``cross_mapped``
QUERIES = 250  # of each kind that decide about the order of vectors
PENALTY = 0.1
MOST_HIDDEN = 256  # random features

Chunks = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Gives stored vectors and the same vectors mapped, chunk by chunk, each time it is called."""


class Expected(NamedTuple):
    """What a search finds after a share was re-embedded, against everything re-embedded."""

    share: float
    recall: float
    precision: float


Spread = Callable[[Tensor], Tensor]
"""Predicts how far the cosines of mapped vectors with queries are off: (n,) root mean squares."""


def fit_spread(vectors: Tensor, mapped: Tensor, after: Tensor, queries: Tensor) -> Spread:
    """Fit to (n, d) stored vectors, (n, e) mapped ones, and (n, e) re-embedded ones.

    A regression on the stored vector and on random features of it. What no map explains is larger
    in some parts of a space than in others, above all where new items came in.
    """
    width = vectors.shape[1]
    hidden = torch.randn(width, min(MOST_HIDDEN, 4 * width), generator=generator(0, "spread"))

    def features(rows: Tensor) -> Tensor:
        unit = normalize(rows.float())
        return torch.cat([unit, (unit @ hidden).relu()], dim=1)

    logs = (queries @ (after - mapped).T).square().mean(0).clamp_(min=1e-12).log_() / 2
    weight, bias = ridge(features(vectors), logs[:, None], PENALTY)
    low, high = logs.min().item(), logs.max().item()
    return lambda rows: (features(rows) @ weight + bias)[:, 0].clamp_(low, high).exp_()


class Plan(NamedTuple):
    """What was learned from a sample of stored vectors that were re-embedded."""

    link: Link
    spread: Spread
    queries: tuple[Tensor, ...]
    """(m, e) of each kind; all kinds have the same weight."""
    expected: tuple[Expected, ...]

    def values(self, chunks: Chunks) -> Tensor:
        """(n,) the value of re-embedding each vector, see ``changes``."""
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
    """Fit a map and priorities to a sample, and test the plan on it by cross-validation.

    ``before`` and ``after`` are (n, d) and (n, e) embeddings of the sample of the ``stored``
    vectors; ``queries`` (m, e) are like those of searches, as is the sample.
    """
    if len(before) < FEWEST:
        raise NoAdapter(f"a plan is made from at least {FEWEST} vectors, got {len(before)}")
    whole = fit_link(before, after, old=old, new=new, seed=seed)
    after = normalize(after.float())
    mapped = cross_mapped(before, after, old=old, new=new, seed=seed)
    order = torch.randperm(len(after), generator=generator(seed, "plan", old, new))
    kinds: tuple[Tensor, ...] = (after[order[:QUERIES]],)
    if queries is not None and len(queries):
        kinds += (normalize(queries.float()[:QUERIES]),)
    spread = fit_spread(before, mapped, after, torch.cat(kinds))
    return Plan(whole, spread, kinds, expected_shares(before, mapped, after, seed, stored))


def cross_mapped(before: Tensor, after: Tensor, *, old: int, new: int, seed: int) -> Tensor:
    """(n, e) stored vectors, each mapped by a map that was fitted to others."""
    mapped = torch.empty_like(after)
    order = torch.randperm(len(after), generator=generator(seed, "plan", old, new))
    for fold, rest in _folds(order):
        link = fit_link(before[rest], after[rest], old=old, new=new, seed=seed)
        mapped[fold] = link.to_new(before[fold])
    return mapped


def changes(queries: tuple[Tensor, ...], spread: Spread, chunks: Chunks) -> Tensor:
    """(n,) the expected share of queries whose ten nearest change if a vector is re-embedded.

    Whether a mapped vector belongs to the ten nearest of a query is in doubt if its cosine is as
    close to that of the tenth as the cosine's expected error.
    """
    joined = torch.cat(queries)
    weights = torch.cat([torch.full((len(part),), 1 / len(part)) for part in queries])
    best = torch.full((len(joined), NEIGHBOURS), -2.0)
    for _, mapped in chunks():
        similar = joined @ mapped.T
        highest = similar.topk(min(NEIGHBOURS, len(mapped)), dim=1).values
        best = torch.cat([best, highest], dim=1).topk(NEIGHBOURS, dim=1).values
    values = []
    for stored, mapped in chunks():
        gap = torch.addmm(-best[:, -1:], joined, mapped.T)
        values.append(weights @ gap.div_(spread(stored)).square_().mul_(-0.5).exp_())
    return torch.cat(values)


def expected_shares(
    before: Tensor, mapped: Tensor, after: Tensor, seed: int, stored: int | None = None
) -> tuple[Expected, ...]:
    """What a search finds once shares of the vectors are re-embedded, the most valuable first.

    Half of the items are the queries that the plan knows, the others those that are counted. The
    values of each fold of the (n, d) stored vectors are predicted from the other folds.

    The more vectors are stored, the closer together the ten nearest are, and the more of them are
    exchanged by the errors of a map. A sample has fewer that close: of each item as many count as
    the ten nearest of all ``stored`` vectors have in the sample.
    """
    after = normalize(after.float())
    values = torch.empty(len(after))
    order = torch.randperm(len(after), generator=generator(seed, "shares"))
    known, counted = order[: len(order) // 2], order[len(order) // 2 :]
    queries = (after[known[:QUERIES]],)
    for fold, rest in _folds(order):
        spread = fit_spread(before[rest], mapped[rest], after[rest], queries[0])
        # The ten nearest are those among all vectors.
        values[fold] = changes(queries, spread, lambda: iter([(before, mapped)]))[fold]
    part = len(after) / max(stored or 0, len(after))
    count = max(round(NEIGHBOURS * part), 1)
    relevant_each = relevant(round(len(after) / part)) / NEIGHBOURS  # relevant items for each found
    ranked = nearest(after, after, round(relevant_each * count))
    first = values.argsort(descending=True)
    expected = []
    for share in SHARES:
        partly = mapped.clone()
        chosen = first[: round(share * len(first))]
        partly[chosen] = after[chosen]
        figures = hits(nearest(after, partly, count), ranked)
        expected.append(Expected(share, *(figure[counted].mean().item() for figure in figures)))
    return tuple(expected)


def _folds(order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each fold, with all other items."""
    for number in range(FOLDS):
        fold = order[number::FOLDS]
        yield fold, order[~torch.isin(order, fold)]
