"""What takes the steps, once the rates have said how far."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

__all__ = ["Adam", "OptimizerPlan", "Prodigy", "hold_back", "set_rate"]


class OptimizerPlan(ABC):
    """Makes the optimiser of a run; its learning rate is set before every step."""

    rate_is_step: ClassVar[bool] = False
    """Whether a first step moves every weight by the rate, so that the rate has ceilings."""

    @abstractmethod
    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Adam(OptimizerPlan):
    """Kingma & Ba 2015, with torch's settings."""

    rate_is_step: ClassVar[bool] = True

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


def hold_back(optimizer: torch.optim.Optimizer, ceiling: Callable[[nn.Parameter], float]) -> None:
    """Give parameters whose rate has a ceiling groups of their own, for ``set_rate``."""
    bounded: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        ceilings = [ceiling(parameter) for parameter in group["params"]]
        pairs = list(zip(group["params"], ceilings, strict=True))
        options = {name: value for name, value in group.items() if name != "params"}
        bounded += [
            {**options, "params": [parameter], "ceiling": bound}
            for parameter, bound in pairs
            if bound < math.inf
        ]
        group["params"] = [parameter for parameter, bound in pairs if bound == math.inf]
    for group in bounded:
        optimizer.add_param_group(group)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, for every parameter as far as its ceiling lets it."""
    for group in optimizer.param_groups:
        group["lr"] = min(rate, group.get("ceiling", math.inf))
