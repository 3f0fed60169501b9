"""The strategies that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from incontrast.schedules import Fixed, Learned
from incontrast.strategies import (
    ICL,
    Distill,
    FineTune,
    NoUpdate,
    Replay,
    Retrain,
    Strategy,
    WarmStart,
)
from paper.sets import DataSet

__all__ = ["LINE_UP", "RETRAINING", "Entry", "retraining"]

RETRAINING = "retraining"
MANY = 1_000_000  # epochs: more than any limit allows


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A strategy of the comparison.

    Args:
        strategy: What it is. It is not stopped by epochs or patience, but when it has had as many
            encoder passes as retraining, or what a data set's limit says.
        searched: Whether its learning rate is searched; the others bring their own.
        usual: Whether it runs unless others are asked for.
    """

    strategy: Strategy
    searched: bool = False
    usual: bool = True

    def make(self, rate: float, *, max_epochs: int = MANY) -> Strategy:
        """The strategy, at this rate if its rate is searched."""
        made = replace(self.strategy, max_epochs=max_epochs, patience=None)
        if not self.searched:
            return made
        if isinstance(made, ICL) and made.meta is not None:
            made = replace(made, meta=replace(made.meta, lr=Fixed(rate)))
        return replace(made, lr=Fixed(rate))


def retraining(data: DataSet, rate: float, *, max_epochs: int | None = None) -> Retrain:
    """How the first fit and retraining are done."""
    return Retrain(lr=Fixed(rate), max_epochs=max_epochs or data.max_epochs, patience=data.patience)


LINE_UP: dict[str, Entry] = {
    RETRAINING: Entry(strategy=Retrain(), searched=True),
    "inference": Entry(strategy=NoUpdate()),
    "fine-tuning": Entry(strategy=FineTune(), searched=True),
    "warm-start": Entry(strategy=WarmStart(), searched=True),
    "replay": Entry(strategy=Replay(), searched=True),
    "distillation": Entry(strategy=Distill(), searched=True),
    "icl": Entry(strategy=ICL()),
    "icl-learned": Entry(strategy=ICL(lr=Learned())),
    "paper": Entry(strategy=ICL.paper()),
    "paper-no-lrl": Entry(strategy=ICL.paper(learned_lr=False), searched=True),
    "paper-no-m": Entry(strategy=ICL.paper(meta=False)),
    "paper-no-m-lrl": Entry(
        strategy=ICL.paper(meta=False, learned_lr=False),
        searched=True,
    ),
    # With as many items a step as ICL() has: what the objective alone is worth.
    "warm-start-96": Entry(
        strategy=WarmStart(batch_size=96, lr=ICL().lr),
        usual=False,
    ),
    "icl-large": Entry(
        strategy=ICL(batch_size=64, old_batch_size=128, lr=Fixed(8e-3)),
        usual=False,
    ),
}
"""By the names that the command line knows, in the order of the tables."""
