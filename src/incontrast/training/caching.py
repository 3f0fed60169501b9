"""Gradient caching: batches beyond memory go through an encoder in parts (Gao et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

Part = Callable[[], Tensor]  # makes and embeds some of the views


def in_parts(
    parts: Sequence[Part], copies: int, items: int, parameters: Sequence[Tensor] | None
) -> Tensor:
    """(copies, items, d) embeddings from parts that give (copies · some, d) each, in order.

    Parts are computed without a graph, and again one at a time for their gradient, so that nothing
    of them is kept meanwhile. ``parameters`` are those of the encoder that are trained. None, where
    an encoder has other weights that are functions themselves: then any derivative can be taken.
    """
    if parameters is not None:
        embeddings: Tensor = _InParts.apply(parts, copies, items, *parameters)  # type: ignore[no-untyped-call]
        return embeddings
    if not torch.is_grad_enabled():
        return _filled(parts, copies, items)
    return _filled([_kept_as_function(part) for part in parts], copies, items)


def _kept_as_function(part: Part) -> Part:
    return lambda: checkpoint(part, use_reentrant=False)


def _filled(parts: Sequence[Part], copies: int, items: int) -> Tensor:
    all_of_them, done = torch.empty(0), 0
    for part in parts:
        found = part()
        found = found.view(copies, -1, *found.shape[1:])
        if not done:
            all_of_them = found.new_empty(copies, items, *found.shape[2:])
        # Not joined at the end: many small results would lie between freed memory.
        all_of_them[:, done : done + found.shape[1]] = found
        done += found.shape[1]
    return all_of_them


class _InParts(Function):
    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[Part], copies: int, items: int, *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*parameters)
        ctx.parts, ctx.copies, ctx.before = parts, copies, _random_state()
        return _filled(parts, copies, items)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the gradient of a batch in parts has no derivative: leave out micro_batch_size"
            )
        parameters, done = ctx.saved_tensors, 0
        sums = [torch.zeros_like(p) if p.requires_grad else None for p in parameters]
        trained = [(p, s) for p, s in zip(parameters, sums, strict=True) if s is not None]
        with _random_numbers_of(ctx.before), torch.enable_grad():
            for part in ctx.parts:
                found = part()
                found = found.view(ctx.copies, -1, *found.shape[1:])
                own = gradient[:, done : done + found.shape[1]]
                done += found.shape[1]
                of_part = torch.autograd.grad(
                    found, [p for p, _ in trained], own, allow_unused=True
                )
                for (_, total), one in zip(trained, of_part, strict=True):
                    if one is not None:
                        total.add_(one)
        return None, None, None, *sums


State = tuple[Tensor, list[Tensor]]


def _random_state() -> State:
    """Of the generators that dropout draws from."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if used else []


@contextmanager
def _random_numbers_of(state: State) -> Iterator[None]:
    """A block that draws what was drawn from a state on, and leaves no trace."""
    now = _random_state()
    _set(state)
    try:
        yield
    finally:
        _set(now)


def _set(state: State) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
