"""Items to embeddings, without gradients, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.training.engine import Engine
from incontrast.training.reading import read_ahead

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
    """(n, d) embeddings of the items themselves, on the CPU.

    Args:
        encoder: In evaluation mode.
        domain: The kind of data.
        items: What to embed.
        engine: Where to compute.
        progress: Called with the number of items done, after each batch.
    """
    parts: list[Tensor] = []
    done = 0
    for batch in _batches(items, engine):
        parts.append(_forward(encoder, domain.prepare(batch), engine))
        done += len(batch)
        if progress is not None:
            progress(done)
    return torch.cat(parts)


def embed_views(
    encoder: nn.Module, domain: Domain, items: Collection, generator: Generator, *, engine: Engine
) -> tuple[Tensor, Tensor]:
    """(n, d) embeddings of a first and (n, d) of a second random view of every item."""
    parts: list[tuple[Tensor, Tensor]] = []
    for batch in _batches(items, engine):
        first, second = domain.views(batch, generator)
        parts.append((_forward(encoder, first, engine), _forward(encoder, second, engine)))
    firsts, seconds = zip(*parts, strict=True)
    return torch.cat(firsts), torch.cat(seconds)


def _batches(items: Collection, engine: Engine) -> Iterator[Any]:
    orders = torch.split(torch.arange(len(items)), BATCH)
    batches = read_ahead(items.take, orders) if items.background else map(items.take, orders)
    return map(engine.place, batches)


@torch.no_grad()
def _forward(encoder: nn.Module, batch: Any, engine: Engine) -> Tensor:
    with engine.autocast():
        embeddings: Tensor = encoder(batch)
    return embeddings.float().cpu()
