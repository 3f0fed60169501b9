"""Weights as a mean over the steps of a run."""

from collections.abc import Sequence

import torch
from torch import Tensor


class ExponentialMovingAverage:
    """An exponential moving average of parameters.

    It begins as a mean of all iterates and becomes exponential once enough have gone by, so that it
    is not biased by where the weights began. ``decay`` is the weight of the past; 0 keeps the last
    iterate. The mean of a short run leans to its last iterates: with ``leaning`` 1 it is the plain
    mean, with 4 half of the weight is on the last sixth (polynomial-decay averaging, Shamir & Zhang
    2013).
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float, leaning: float = 1.0) -> None:
        self._parameters, self._decay, self._leaning = list(parameters), decay, leaning
        self.mean = [p.detach().clone() for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        weight = max(1.0 - self._decay, self._leaning / (self.steps + self._leaning))
        torch._foreach_lerp_(self.mean, self._parameters, weight)

    @torch.no_grad()
    def apply(self, parameters: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(parameters), self.mean)
