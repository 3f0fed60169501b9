"""An outcome as JSON."""

from __future__ import annotations

import math
from typing import Any

from incontrast import settings
from incontrast.outcome import Outcome

__all__ = ["figures_of"]


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON."""

    def pair(change: Any) -> dict[str, Any]:
        names = ("before", "after")
        return {name: _plain(figure._asdict()) for name, figure in zip(names, change, strict=True)}

    return {
        "strategy": type(outcome.strategy).__name__,
        "settings": settings.encode(outcome.strategy),
        "from_scratch": outcome.strategy.from_scratch,
        "growth_ratio": outcome.growth_ratio,
        "loss": pair(outcome.loss),
        "change_ratio": None if outcome.change_ratio is None else pair(outcome.change_ratio),
        "seconds": outcome.seconds,
        "evaluation_seconds": outcome.evaluation_seconds,
        "epochs": outcome.epochs,
        "steps": outcome.steps,
        "passes": outcome.forward_passes,
        "stopped": outcome.stopped,
        "rollbacks": outcome.rollbacks,
        "reverted": outcome.reverted,
        "history": [_plain(vars(epoch)) for epoch in outcome.history],
    }


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no nan."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
