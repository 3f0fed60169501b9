"""A point of training to come back to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.training.average import Average

__all__ = ["Mark"]


class Mark:
    """Remembers weights, buffers, the optimiser's state and the averaged weights.

    Args:
        encoder: What is trained.
        optimizer: What trains it.
        average: Its averaged weights.
    """

    def __init__(
        self, encoder: nn.Module, optimizer: torch.optim.Optimizer, average: Average
    ) -> None:
        self._encoder, self._optimizer, self._average = encoder, optimizer, average
        self._live: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._steps = 0

    @torch.no_grad()
    def take(self) -> None:
        """Remember the present."""
        live = self._tensors()
        same = len(live) == len(self._live)
        if same and all(a is b for a, b in zip(live, self._live, strict=True)):
            for kept, value in zip(self._kept, live, strict=True):
                kept.copy_(value)
        else:  # the first time, and once the optimiser has made its state
            self._live, self._kept = live, [value.clone() for value in live]
        self._steps = self._average.steps

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the remembered past back."""
        if len(self._tensors()) != len(self._live):  # state that was made since then
            self._optimizer.state.clear()
        for value, kept in zip(self._live, self._kept, strict=True):
            value.copy_(kept)
        self._average.steps = self._steps

    def _tensors(self) -> list[Tensor]:
        weights = [*self._encoder.parameters(), *self._encoder.buffers()]
        return [*weights, *_nested(self._optimizer.state), *self._average.mean]


def _nested(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _nested(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _nested(value)
