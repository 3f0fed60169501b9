"""What chooses learning rates: a plan (configuration) and, for one run, its rates (state)."""

from __future__ import annotations

from typing import Protocol

from torch import Generator

__all__ = ["RatePlan", "Rates"]


class Rates(Protocol):
    """The learning rates of one training run: told a loss, asked for a rate, step after step."""

    def observe(self, loss: float) -> None:
        """The loss of the step at hand, under the weights as they are."""
        ...

    def propose(self) -> float:
        """The rate for this step."""
        ...


class RatePlan(Protocol):
    """How rates are chosen; makes the rates of a run."""

    def begin(self, generator: Generator) -> Rates: ...
