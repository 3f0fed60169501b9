"""A point of training to roll back to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.training.optimizers import ExponentialMovingAverage


class Checkpoint:
    """Remembers weights, buffers, the optimiser's state and the averaged weights.

    Args:
        encoder: What is trained.
        optimizer: What trains it.
        ema: Its averaged weights.
    """

    def __init__(
        self, encoder: nn.Module, optimizer: torch.optim.Optimizer, ema: ExponentialMovingAverage
    ) -> None:
        self._encoder, self._optimizer, self._ema = encoder, optimizer, ema
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._steps = 0
        self._groups: list[dict[str, Any]] = []

    @torch.no_grad()
    def take(self) -> None:
        """Remember the present."""
        live = self._tensors()
        same = len(live) == len(self._live)
        if same and all(a is b for a, b in zip(live, self._live, strict=True)):
            for copy, value in zip(self._copies, live, strict=True):
                copy.copy_(value)
        else:  # the first time, and once the optimiser has created its state
            self._live, self._copies = live, [value.clone() for value in live]
        self._steps = self._ema.steps
        self._groups = [_scalars(group) for group in self._optimizer.param_groups]

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the remembered past back."""
        if not self._live:
            raise RuntimeError("the schedule asked for a rollback before any checkpoint")
        for group, scalars in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(scalars)
        if len(self._tensors()) != len(self._live):  # state that was created since then
            self._optimizer.state.clear()
        for value, copy in zip(self._live, self._copies, strict=True):
            value.copy_(copy)
        self._ema.steps = self._steps

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, for a file."""
        return {"copies": self._copies, "steps": self._steps, "groups": self._groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what a file holds; encoder, optimiser and averages are restored already."""
        live = self._tensors()
        if len(live) != len(state["copies"]):  # taken before the optimiser had any state
            weights = [*self._encoder.parameters(), *self._encoder.buffers()]
            live = [*weights, *self._ema.mean] if state["copies"] else []
        pairs = zip(live, state["copies"], strict=True)
        self._live, self._copies = live, [copy.to(value.device) for value, copy in pairs]
        self._steps, self._groups = state["steps"], state["groups"]

    def _tensors(self) -> list[Tensor]:
        weights = [*self._encoder.parameters(), *self._encoder.buffers()]
        return [*weights, *_nested(self._optimizer.state), *self._ema.mean]


def _scalars(group: dict[str, Any]) -> dict[str, Any]:
    """What an optimiser keeps beside its tensors: Prodigy's estimate, for one."""
    return {name: value for name, value in group.items() if name != "params"}


def _nested(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _nested(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _nested(value)
