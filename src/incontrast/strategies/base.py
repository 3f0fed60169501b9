"""What every strategy is: settings of the training loop, and a generator of losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incontrast.rates import Fixed, RatePlan
from incontrast.training.contrast import batch_losses
from incontrast.training.increment import Increment
from incontrast.training.optimizers import Adam, OptimizerPlan
from incontrast.training.sampling import Picks
from incontrast.training.task import Task

__all__ = ["Strategy", "contrast"]


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """How to train on an increment.

    A strategy of your own is a frozen dataclass with ``run``; ``check_strategy`` tells what is
    wrong with it.

    Args:
        rates: Learning rates.
        batch: Items per step (of each kind, where a step has two).
        max_epochs: Epochs at most.
        patience: Epochs without a new lowest loss after which training ends; None waits for ever.
        average: Weight of the past in the averaged weights that training ends with; 0 keeps the
            last ones.
        optimizer: What takes the steps.
    """

    rates: RatePlan = Fixed(1e-3)
    batch: int = 32
    max_epochs: int = 200
    patience: int | None = 50
    average: float = 0.99
    optimizer: OptimizerPlan = Adam()

    from_scratch: ClassVar[bool] = False
    """Whether training begins with fresh weights instead of the current ones."""

    def __post_init__(self) -> None:
        if self.batch < 4:
            raise ValueError(
                f"batch must be at least 4, got {self.batch}: "
                "the items of a batch are each other's negatives"
            )
        if self.max_epochs < 1:
            raise ValueError(f"max_epochs must be at least 1, got {self.max_epochs}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(
                f"patience must be at least 1, got {self.patience}: None waits for ever"
            )
        if not 0.0 <= self.average < 1.0:
            raise ValueError(
                f"average must be in [0, 1), got {self.average}: 0 keeps the last weights"
            )

    def epoch_items(self, increment: Increment) -> int:
        """Items that an epoch embeds, for forecasts: everything at hand, unless told otherwise."""
        return increment.kept + len(increment.new)

    @abstractmethod
    def run(self, task: Task) -> Iterator[Iterable[Tensor]]:
        """Yield epochs, each of which yields differentiable scalar losses.

        The loop takes one step of the optimiser on each loss before it asks for the next, so that
        this is computed with the weights that came of it. It asks for epochs until it has enough.
        """


def contrast(task: Task, picks: Iterable[Picks]) -> Iterator[Tensor]:
    """NCE-I within each of these batches (Eq. 1): the loss of everything but ICL."""
    for loaded in task.load(picks):
        first, second = task.embed(loaded.views)
        yield batch_losses(first, second, task.objective).mean()
