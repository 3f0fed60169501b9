"""The strategies that are compared, with the settings that they were measured with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from incontrast import (
    ICL,
    Adam,
    Distill,
    FineTune,
    Learned,
    NoUpdate,
    Replay,
    Retrain,
    Strategy,
    WarmStart,
)
from paper.names import RETRAINING
from paper.sets import DataSet

UNLIMITED = 1_000_000  # epochs: more than any budget allows


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A strategy of the comparison.

    Args:
        strategy: What it is. It is not stopped by epochs or patience, but when it has had as many
            forward passes as retraining, or what a data set's limit says.
        searched: Whether its learning rate is searched; the others bring their own.
    """

    strategy: Strategy
    searched: bool = False

    def make(self, lr: float, *, max_epochs: int = UNLIMITED) -> Strategy:
        """The strategy, at this learning rate if its learning rate is searched."""
        strategy = replace(self.strategy, max_epochs=max_epochs, patience=None)
        if not self.searched:
            return strategy
        if isinstance(strategy, ICL) and strategy.meta is not None:
            strategy = replace(strategy, meta=replace(strategy.meta, lr=lr))
        return replace(strategy, lr=lr)


def retraining(data: DataSet, lr: float, *, max_epochs: int | None = None) -> Retrain:
    """How the initial training and retraining are done."""
    return Retrain(lr=lr, max_epochs=max_epochs or data.max_epochs, patience=data.patience)


PLAIN = ICL(
    lr=2e-3,
    batch_size=32,
    old_batch_size=64,
    emphasis=None,
    hard_negatives=None,
    protection=None,
    optimizer=Adam(max_relative_update=1 / 8),
    epoch_steps=1,
    ema_leaning=1.0,
    interpolation=1.0,
    max_epochs=20,
)
"""The update rule of the published rows: ICL() of 0.1, without emphasis and protection."""

STRATEGIES: dict[str, Entry] = {
    RETRAINING: Entry(strategy=Retrain(), searched=True),
    "no-update": Entry(strategy=NoUpdate()),
    "fine-tuning": Entry(strategy=FineTune(), searched=True),
    "replay": Entry(strategy=Replay(), searched=True),
    "distillation": Entry(strategy=Distill(), searched=True),
    "paper": Entry(strategy=ICL.paper()),
    "paper-no-lrl": Entry(strategy=ICL.paper(learned_lr=False), searched=True),
    "paper-no-m": Entry(strategy=ICL.paper(meta=False)),
    "paper-no-m-lrl": Entry(strategy=ICL.paper(meta=False, learned_lr=False), searched=True),
    "warm-start": Entry(strategy=WarmStart(), searched=True),
    "icl": Entry(strategy=PLAIN),
    # Without ICL's cap on the learning rates of wide layers: the schedule finds its own.
    "icl-learned": Entry(strategy=replace(PLAIN, lr=Learned(), optimizer=Adam())),
    # With as many items a step: what the objective alone is worth.
    "warm-start-96": Entry(
        strategy=WarmStart(batch_size=96, lr=PLAIN.lr, optimizer=PLAIN.optimizer)
    ),
    "icl-large": Entry(
        strategy=replace(PLAIN, batch_size=64, old_batch_size=128, lr=8e-3, optimizer=Adam())
    ),
}
"""By the names that the command line knows."""
