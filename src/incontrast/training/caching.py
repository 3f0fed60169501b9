"""Gradient caching: batches beyond memory go through an encoder in parts (Gao et al. 2021)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Part = Callable[[], Tensor]  # makes and embeds some of the views


def in_parts(parts: Sequence[Part], copies: int, items: int) -> Tensor:
    """(copies, items, d) embeddings from parts that give (copies · some, d) each, in order.

    For their gradients, parts are computed again one at a time, with the random numbers that they
    had, so that nothing of them is kept meanwhile.
    """
    embeddings, done = torch.empty(0), 0
    for part in parts:
        found = checkpoint(part, use_reentrant=False) if torch.is_grad_enabled() else part()
        found = found.view(copies, -1, *found.shape[1:])
        if not done:
            embeddings = found.new_empty(copies, items, *found.shape[2:])
        # Not joined at the end: many small results would lie between freed memory.
        embeddings[:, done : done + found.shape[1]] = found
        done += found.shape[1]
    return embeddings
