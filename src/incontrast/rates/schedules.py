"""Rates that look at nothing but the number of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from incontrast.rates.base import RatePlan, Rates, RatesState

__all__ = ["Cosine", "Fixed"]


LEAST = 1 / 32  # of a rate: a layer that begins next to nothing must be able to grow


def check_rate(rate: float) -> None:
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"a learning rate must be positive and finite, got {rate}")


@dataclass(frozen=True)
class Fixed(RatePlan):
    """The same rate at every step.

    Args:
        rate: The rate.
        largest_change: A layer's rate is at most the one at which moving every weight by it
            changes the layer, as it is when a run begins, by this share in spectral norm; None
            sets no bound. Adam's first steps are like that: what is little for a narrow layer
            tears a wide one apart, whose weights are small and many.
    """

    rate: float
    largest_change: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if self.largest_change is not None and not 0.0 < self.largest_change <= 1.0:
            raise ValueError(
                f"largest_change must be in (0, 1], got {self.largest_change}: "
                "it is a share of a layer; None sets no bound"
            )

    @torch.no_grad()
    def ceiling(self, weights: Tensor) -> float:
        if self.largest_change is None or weights.ndim < 2 or not weights.numel():
            return math.inf
        # A step that moves every weight by the rate has at most rate·√(number of weights).
        size = _spectral_norm(weights.flatten(1))
        bound = self.largest_change * size / math.sqrt(weights.numel())
        if not 0.0 < bound < self.rate:  # nor is there one for weights that are zero, or no numbers
            return math.inf
        return max(bound, self.rate * LEAST)

    def begin(self, generator: Generator, state: RatesState | None = None) -> Rates:
        return _FixedRates(self.rate)


def _spectral_norm(matrix: Tensor) -> float:
    matrix = matrix.float().cpu()  # not every device has eigenvalues
    if not torch.isfinite(matrix).all():
        return math.nan
    narrow = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return float(torch.linalg.eigvalsh(narrow @ narrow.T)[-1].clamp_min(0.0).sqrt())


class _FixedRates(Rates):
    def __init__(self, rate: float) -> None:
        self._rate = rate

    def observe(self, loss: float) -> None:
        pass

    def propose(self) -> float:
        return self._rate


@dataclass(frozen=True)
class Cosine(RatePlan):
    """From ``rate`` down to 0 along half a cosine.

    Args:
        rate: The first rate.
        steps: The horizon: the step at which the rate is 0, and stays there.
    """

    rate: float
    steps: int

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if self.steps < 1:
            raise ValueError(f"a cosine needs a horizon of at least one step, got {self.steps}")

    def begin(self, generator: Generator, state: RatesState | None = None) -> Rates:
        return _CosineRates(self)


class _CosineRates(Rates):
    def __init__(self, plan: Cosine) -> None:
        self._plan = plan
        self._step = 0

    def observe(self, loss: float) -> None:
        pass

    def propose(self) -> float:
        done = min(self._step / self._plan.steps, 1.0)
        self._step += 1
        return self._plan.rate * (1.0 + math.cos(math.pi * done)) / 2.0
