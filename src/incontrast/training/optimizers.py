"""What takes the steps, once the rates have said how far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Adam", "OptimizerPlan", "Prodigy"]


class OptimizerPlan(ABC):
    """Makes the optimiser of a run; its learning rate is set before every step."""

    @abstractmethod
    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Adam(OptimizerPlan):
    """Kingma & Ba 2015, with torch's settings."""

    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, fused=True)


@dataclass(frozen=True)
class Prodigy(OptimizerPlan):
    """Mishchenko & Defazio 2024: Adam that estimates its own step size (extra ``prodigy``).

    Use it with ``rates=Fixed(1.0)``: the rate then only scales the estimate.
    """

    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            from prodigyopt import Prodigy as Optimizer
        except ImportError as error:
            raise ImportError(
                'Prodigy() needs prodigyopt: pip install "incontrast[prodigy]"'
            ) from error
        made: torch.optim.Optimizer = Optimizer(parameters, use_bias_correction=True)
        return made
