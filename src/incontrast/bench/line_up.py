"""The strategies that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
        strategy: What it is; a data set's epochs and patience take the place of its own.
        searched: Whether its learning rate is searched; the others bring their own.
        usual: Whether it runs unless others are asked for.
    """

    title: str
    strategy: Strategy
    searched: bool = False
    usual: bool = True

    def make(self, data: DataSet, rate: float) -> Strategy:
        """The strategy for a data set, at this rate if its rate is searched."""
        made = replace(self.strategy, max_epochs=data.max_epochs, patience=data.patience)
        if not self.searched:
            return made
        if isinstance(made, ICL) and made.meta is not None:
            made = replace(made, meta=replace(made.meta, rates=Fixed(rate)))
        return replace(made, rates=Fixed(rate))


def retraining(data: DataSet, rate: float, *, max_epochs: int | None = None) -> Retrain:
    """How the first fit and retraining are done."""
    return Retrain(
        rates=Fixed(rate), max_epochs=max_epochs or data.max_epochs, patience=data.patience
    )


LINE_UP: dict[str, Entry] = {
    RETRAINING: Entry(title="retraining", strategy=Retrain(), searched=True),
    "inference": Entry(title="inference", strategy=Inference()),
    "fine-tuning": Entry(title="fine-tuning", strategy=FineTune(), searched=True),
    "warm-start": Entry(title="warm start", strategy=WarmStart(), searched=True),
    "replay": Entry(title="replay", strategy=Replay(), searched=True),
    "distillation": Entry(title="distillation", strategy=Distill(), searched=True),
    "icl": Entry(title="ICL()", strategy=ICL()),
    "paper": Entry(title="paper's ICL", strategy=ICL.paper()),
    "paper-no-lrl": Entry(
        title="paper's ICL w/o LRL", strategy=ICL.paper(learned_rates=False), searched=True
    ),
    "paper-no-m": Entry(title="paper's ICL w/o M", strategy=ICL.paper(meta=False)),
    "paper-no-m-lrl": Entry(
        title="paper's ICL w/o M+LRL",
        strategy=ICL.paper(meta=False, learned_rates=False),
        searched=True,
    ),
    # With as many items a step as ICL() has: what the objective alone is worth.
    "warm-start-96": Entry(
        title="warm start, 96 items at 2e-3",
        strategy=WarmStart(batch=96, rates=Fixed(2e-3)),
        usual=False,
    ),
    "icl-large": Entry(
        title="ICL, 128 + 64 items at 8e-3",
        strategy=ICL(batch=64, old_batch=128, rates=Fixed(8e-3)),
        usual=False,
    ),
}
"""By the names that the command line knows, in the order of the tables."""
