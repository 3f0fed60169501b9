"""Strategies by their names on the command line."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incontrast.strategies import Strategy

__all__ = ["StrategyName", "strategy_of"]


class StrategyName(StrEnum):
    """How an update is done."""

    ICL = "icl"
    WARM_START = "warm-start"
    FINE_TUNE = "fine-tune"
    REPLAY = "replay"
    DISTILL = "distill"
    RETRAIN = "retrain"
    INFERENCE = "inference"


def strategy_of(name: StrategyName, epochs: int | None = None) -> Strategy:
    """The strategy with its defaults, or with so many epochs at most."""
    from dataclasses import replace

    from incontrast.strategies import (
        ICL,
        Distill,
        FineTune,
        NoUpdate,
        Replay,
        Retrain,
        WarmStart,
    )

    strategies: dict[StrategyName, Strategy] = {
        StrategyName.ICL: ICL(),
        StrategyName.WARM_START: WarmStart(),
        StrategyName.FINE_TUNE: FineTune(),
        StrategyName.REPLAY: Replay(),
        StrategyName.DISTILL: Distill(),
        StrategyName.RETRAIN: Retrain(),
        StrategyName.INFERENCE: NoUpdate(),
    }
    strategy = strategies[name]
    return strategy if epochs is None else replace(strategy, max_epochs=epochs)
