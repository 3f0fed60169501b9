"""Rates that look at nothing but the number of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Generator

from incontrast.rates.base import RatePlan, Rates, RatesState

__all__ = ["Cosine", "Fixed"]


def check_rate(rate: float) -> None:
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"a learning rate must be positive and finite, got {rate}")


@dataclass(frozen=True)
class Fixed(RatePlan):
    """The same rate at every step."""

    rate: float

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def begin(self, generator: Generator, state: RatesState | None = None) -> Rates:
        return _FixedRates(self.rate)


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
