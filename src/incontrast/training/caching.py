"""Gradient caching: batches beyond memory go through an encoder in parts (Gao et al. 2021)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

Part = Callable[[], Tensor]  # makes and embeds some of the views


def in_parts(parts: Sequence[Part], copies: int, items: int, device: torch.device) -> Tensor:
    """(copies, items, d) embeddings from parts that give (copies · some, d) each, in order.

    For their gradients, parts are computed again one at a time, with the random numbers that they
    had on the CPU and on the device, so that nothing of them is kept meanwhile.
    """
    where = torch.empty(0, device=device)  # tells checkpoint whose random numbers to keep
    embeddings, done = torch.empty(0), 0
    for part in parts:
        if torch.is_grad_enabled():
            found = checkpoint(lambda _, part=part: part(), where, use_reentrant=False)
        else:
            found = part()
        found = found.view(copies, -1, *found.shape[1:])
        if not done:
            embeddings = found.new_empty(copies, items, *found.shape[2:])
        # Not joined at the end: many small results would lie between freed memory.
        embeddings = _Filled.apply(embeddings, found, done)  # type: ignore[no-untyped-call]
        done += found.shape[1]
    return embeddings


class _Filled(Function):
    """Rows in their place; their gradient is not, as autograd has it, a copy of all rows' first."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, found: Tensor, start: int) -> Tensor:
        ctx.place = slice(start, start + found.shape[1])
        embeddings[:, ctx.place] = found
        ctx.mark_dirty(embeddings)
        return embeddings

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, gradient[:, ctx.place], None
