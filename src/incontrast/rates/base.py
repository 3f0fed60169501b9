"""What chooses learning rates: a plan (configuration) and, for one run, its rates (state)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

from torch import Generator, Tensor

__all__ = ["RatePlan", "Rates", "RatesState", "Verdict"]

RatesState = dict[str, Tensor]
"""What rates have learned, to go on from in a later run."""

Verdict = Literal["mark", "undo"]


class Rates(ABC):
    """The learning rates of one training run: told a loss, asked for a rate, step after step."""

    @abstractmethod
    def observe(self, loss: float) -> None:
        """The loss of the step at hand, under the weights as they are."""

    @abstractmethod
    def propose(self) -> float:
        """The rate for this step."""

    def verdict(self) -> Verdict | None:
        """Asked after each ``observe``: what to do about the weights as they are.

        ``"mark"`` remembers them (with the optimiser's state and the averaged weights), ``"undo"``
        goes back to the last mark and drops the step at hand.
        """
        return None

    def state(self) -> RatesState:
        """What to keep for the next run."""
        return {}


class RatePlan(ABC):
    """How rates are chosen; makes the rates of a run."""

    @property
    def guarded(self) -> bool:
        """Whether an update that ends above the loss it began with is taken back as a whole."""
        return False

    def ceiling(self, weights: Tensor) -> float:
        """The highest rate for these weights, as they are when a run begins: none, usually."""
        return math.inf

    @abstractmethod
    def begin(self, generator: Generator, state: RatesState | None = None) -> Rates:
        """Rates for a run, which go on from what an earlier one has learned, if they can learn."""
