"""Items to embeddings, without gradients, in batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.training.engine import Engine
from incontrast.training.task import read_ahead

BATCH_SIZE = 256  # items per forward pass; larger ones gain nothing on a CPU


@torch.no_grad()
def embed(
    encoder: nn.Module,
    domain: Domain,
    items: Collection,
    *,
    engine: Engine,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """(n, d) embeddings of the items themselves, on the CPU; in every process, those of all.

    The encoder is in evaluation mode. ``progress`` is called with the number of items done, after
    each batch; with several processes, as if all were as far as this one.
    """
    orders = torch.split(torch.arange(len(items)), BATCH_SIZE)
    share = engine.share(len(orders))
    own = orders[share.start : share.stop]
    total = sum(map(len, own))

    def fetch(order: Tensor) -> Any:
        return engine.place(items.take(order))

    parts: list[Tensor] = []
    for batch in read_ahead(fetch, own, background=items.background):
        parts.append(engine.forward(encoder, domain.prepare(batch)))
        if progress is not None:
            progress(sum(map(len, parts)) * len(items) // total)
    if not parts:  # more processes than batches: only the width is needed
        parts.append(engine.forward(encoder, domain.prepare(fetch(orders[0])))[:0])
    return engine.gather(torch.cat(parts)).float().cpu()
