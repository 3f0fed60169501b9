"""Items to embeddings, without gradients, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.training.engine import Engine
from incontrast.training.reading import read_ahead
from incontrast.training.share import take, two_views

__all__ = ["embed", "embed_views"]

BATCH = 256  # items per forward pass; larger ones gain nothing on a CPU


def embed(
    encoder: nn.Module,
    domain: Domain,
    items: Collection,
    *,
    engine: Engine,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """(n, d) embeddings of the items themselves, on the CPU; in every process, those of all.

    Args:
        encoder: In evaluation mode.
        domain: The kind of data.
        items: What to embed.
        engine: Where to compute.
        progress: Called with the number of items done, after each batch; with several processes,
            as if all were as far as this one.
    """
    orders = torch.split(torch.arange(len(items)), BATCH)
    share = engine.share(len(orders))
    own = orders[share.start : share.stop]
    total = sum(map(len, own))
    parts: list[Tensor] = []
    done = 0
    for batch in _ahead(items, own, lambda order: engine.place(items.take(order))):
        parts.append(_forward(encoder, domain.prepare(batch), engine))
        done += len(batch)
        if progress is not None:
            progress(done * len(items) // total)
    if not parts:  # more processes than batches: only the width is needed
        batch = engine.place(items.take(orders[0]))
        parts.append(_forward(encoder, domain.prepare(batch), engine)[:0])
    return _gathered(torch.cat(parts), engine)


def embed_views(
    encoder: nn.Module, domain: Domain, items: Collection, generator: Generator, *, engine: Engine
) -> tuple[Tensor, Tensor]:
    """(n, d) embeddings of a first and (n, d) of a second random view of every item."""
    parts: list[tuple[Tensor, Tensor]] = []
    orders = torch.split(torch.arange(len(items)), BATCH)
    batches = _ahead(items, orders, lambda order: take(domain, [(items, order)], engine))
    for order, batch in zip(orders, batches, strict=True):
        views = two_views(domain, batch, [(items, order)], generator, engine)
        first, second = (_forward(encoder, view, engine) for view in views)
        parts.append((_gathered(first, engine), _gathered(second, engine)))
    firsts, seconds = zip(*parts, strict=True)
    return torch.cat(firsts), torch.cat(seconds)


def _ahead(
    items: Collection, orders: Sequence[Tensor], fetch: Callable[[Tensor], Any]
) -> Iterator[Any]:
    return read_ahead(fetch, orders) if items.background else map(fetch, orders)


@torch.no_grad()
def _forward(encoder: nn.Module, batch: Any, engine: Engine) -> Tensor:
    with engine.encoding():
        embeddings: Tensor = encoder(batch)
    return embeddings.float()


def _gathered(embeddings: Tensor, engine: Engine) -> Tensor:
    return engine.gather(embeddings).cpu()
