"""The strategies that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from incontrast.bench.sets import DataSet
from incontrast.rates import Fixed
from incontrast.strategies import (
    ICL,
    Distill,
    FineTune,
    Inference,
    Replay,
    Retrain,
    Strategy,
    WarmStart,
)

__all__ = ["LINE_UP", "RETRAINING", "Entry", "retraining"]

RETRAINING = "retraining"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A strategy of the comparison.

    Args:
        title: Its name in tables.
        make: Makes it, for a data set and at a learning rate.
        searched: Whether its learning rate is searched; the others bring their own.
        usual: Whether it runs unless others are asked for.
    """

    title: str
    make: Callable[[DataSet, float], Strategy]
    searched: bool = False
    usual: bool = True


def retraining(data: DataSet, rate: float, *, max_epochs: int | None = None) -> Retrain:
    """How the first fit and retraining are done."""
    return Retrain(
        rates=Fixed(rate), max_epochs=max_epochs or data.max_epochs, patience=data.patience
    )


def _searched(title: str, kind: type[Strategy]) -> Entry:
    def make(data: DataSet, rate: float) -> Strategy:
        return kind(rates=Fixed(rate), max_epochs=data.max_epochs, patience=data.patience)

    return Entry(title=title, make=make, searched=True)


def _paper(title: str, *, meta: bool, learned_rates: bool) -> Entry:
    def make(data: DataSet, rate: float) -> Strategy:
        return ICL.paper(
            meta=meta,
            learned_rates=learned_rates,
            rate=rate,
            max_epochs=data.max_epochs,
            patience=data.patience,
        )

    return Entry(title=title, make=make, searched=not learned_rates)


LINE_UP: dict[str, Entry] = {
    RETRAINING: Entry(title="retraining", make=retraining),
    "inference": Entry(title="inference", make=lambda data, rate: Inference()),
    "fine-tuning": _searched("fine-tuning", FineTune),
    "warm-start": _searched("warm start", WarmStart),
    "replay": _searched("replay", Replay),
    "distillation": _searched("distillation", Distill),
    "icl": Entry(
        title="ICL()",
        make=lambda data, rate: ICL(max_epochs=data.max_epochs, patience=data.patience),
    ),
    "paper": _paper("paper's ICL", meta=True, learned_rates=True),
    "paper-no-lrl": _paper("paper's ICL w/o LRL", meta=True, learned_rates=False),
    "paper-no-m": _paper("paper's ICL w/o M", meta=False, learned_rates=True),
    "paper-no-m-lrl": _paper("paper's ICL w/o M+LRL", meta=False, learned_rates=False),
    # Warm start with as many items a step as ICL() has: what the objective alone is worth.
    "warm-start-96": Entry(
        title="warm start, 96 items at 2e-3",
        make=lambda data, rate: WarmStart(
            batch=96, rates=Fixed(2e-3), max_epochs=data.max_epochs, patience=data.patience
        ),
        usual=False,
    ),
    "icl-large": Entry(
        title="ICL, 128 + 64 items at 8e-3",
        make=lambda data, rate: ICL(
            batch=64,
            old_batch=128,
            rates=Fixed(8e-3),
            max_epochs=data.max_epochs,
            patience=data.patience,
        ),
        usual=False,
    ),
}
"""By the names that the command line knows, in the order of the tables."""
