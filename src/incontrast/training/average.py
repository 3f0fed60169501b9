"""Averaged weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Average"]


class Average:
    """An exponential moving average of parameters.

    It begins as the plain mean of the first iterates and becomes exponential once enough have gone
    by, so that it is not held back by where the weights began.

    Args:
        parameters: The parameters whose iterates are averaged.
        decay: Weight of the past, in [0, 1); 0 keeps the last iterate.
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self._parameters = list(parameters)
        self.mean = [p.detach().clone() for p in parameters]
        self._decay = decay
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the current iterate into the mean."""
        self.steps += 1
        weight = max(1.0 - self._decay, 1.0 / (self.steps + 1))
        torch._foreach_lerp_(self.mean, self._parameters, weight)

    @torch.no_grad()
    def apply(self, parameters: Sequence[Tensor]) -> None:
        """Set these parameters to the mean."""
        torch._foreach_copy_(list(parameters), self.mean)
