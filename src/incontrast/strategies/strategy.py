"""What every strategy is, and those that differ only in which items they take."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number, check_whole, given
from incontrast.loss import batch_losses
from incontrast.names import NamedArguments
from incontrast.schedules import Schedule, as_schedule
from incontrast.training.optimizers import Adam, OptimizerFactory
from incontrast.training.task import (
    BatchIndices,
    Increment,
    Task,
    ViewBatch,
    joint_epoch,
    joint_items,
    new_epoch,
    shuffled,
)


@dataclass(frozen=True, kw_only=True)
class Strategy(NamedArguments, ABC):
    """How to train on an increment.

    A strategy of your own is a frozen dataclass with ``sample`` and, unless it is NCE-I within
    each batch, ``loss``; ``check_strategy`` tells what is wrong with it.

    Args:
        lr: The learning rate, or a schedule of it.
        batch_size: Items per step (of each kind, where a step has two).
        max_epochs: Epochs at most; None is what ``epochs`` finds enough.
        patience: Epochs without a new lowest loss after which training ends; None waits for ever.
        ema_decay: Weight of the past in the averaged weights that training ends with; 0 keeps the
            weights of the best epoch.
        ema_leaning: By how much that average leans to the last steps of a short run; 1 is the plain
            mean of all steps.
        interpolation: The part of an update's change that is kept: the weights end between those of
            before and the averaged ones (WiSE-FT, Wortsman et al. 2022).
        optimizer: What takes the steps: given parameters, a ``torch.optim.Optimizer``.
    """

    lr: Schedule | float = 1e-3
    batch_size: int = 32
    max_epochs: int | None = 200
    patience: int | None = 50
    ema_decay: float = 0.99
    ema_leaning: float = 1.0
    interpolation: float = 1.0
    optimizer: OptimizerFactory = Adam()

    from_scratch: ClassVar[bool] = False
    """Whether training begins with fresh weights instead of the current ones."""

    def __post_init__(self) -> None:
        as_schedule(self.lr)  # says what is wrong with a number
        check_whole(4, "a batch's items are each other's negatives", batch_size=self.batch_size)
        check_whole(1, "None leaves it to the strategy", **given(max_epochs=self.max_epochs))
        check_whole(1, "None waits for ever", **given(patience=self.patience))
        check_number("[0, 1)", "0 averages nothing", ema_decay=self.ema_decay)
        check_number("[1, inf)", "1 is the plain mean", ema_leaning=self.ema_leaning)
        check_number("(0, 1]", "1 keeps all of the change", interpolation=self.interpolation)
        if not callable(self.optimizer):
            raise TypeError(
                "optimizer must take parameters and give a torch.optim.Optimizer, "
                f"got {self.optimizer!r}"
            )

    def epochs(self, increment: Increment) -> int:
        """Epochs of a run that nothing ends sooner."""
        return self.max_epochs or 200

    def kept(self, growth_ratio: float) -> float:
        """The part of an update's change that is kept at a growth ratio α."""
        return self.interpolation

    def epoch_items(self, increment: Increment) -> int:
        """Items that an epoch embeds: all that are stored and all new ones, unless overridden.

        The run's length follows from it, for schedules and forecasts; 0 means nothing to do.
        """
        return increment.stored + increment.new_count

    @abstractmethod
    def sample(self, task: Task) -> Iterator[BatchIndices]:
        """The items of one epoch, batch by batch; draws come from ``task.draws``."""

    def loss(self, task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
        """The scalar to minimise in a step: the mean NCE-I within the batch (Eq. 1) by default.

        Args:
            task: Encoder, data, objective.
            batch: The views, for who embeds them once more; how many of the items are old.
            first: (n, d) embeddings of the first views, old items first.
            second: (n, d) embeddings of the second views.
        """
        return batch_losses(first, second, task.objective).mean()

    def prepare(self, task: Task) -> dict[nn.Parameter, Tensor]:
        """Find out before the first step what the run needs to know of its data.

        Returns what to multiply the steps of weights by, as ``Protection.factors`` gives it.
        """
        return {}

    def adapt(self, task: Task, batches: Iterator[ViewBatch]) -> dict[str, Tensor] | None:
        """Weights to embed a batch with instead of the encoder's own, as functions of them.

        For meta-optimisation: its inner steps take their batches from ``batches``.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class NoUpdate(Strategy):
    """Keep the encoder as it is and use it on the new items: the floor of every comparison.

    The paper calls it inference.
    """

    def epoch_items(self, increment: Increment) -> int:
        return 0

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        return iter(())


@dataclass(frozen=True, kw_only=True)
class FineTune(Strategy):
    """NCE-I on ΔX from the current weights: fast, forgets, and biased on old and new data."""

    def epoch_items(self, increment: Increment) -> int:
        return increment.new_count

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        return new_epoch(task.increment, self.batch_size, task.draws)


@dataclass(frozen=True, kw_only=True)
class WarmStart(Strategy):
    """Retraining's loss over X′ from the current weights: the strong rival."""

    def epoch_items(self, increment: Increment) -> int:
        return joint_items(increment, self.batch_size)

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        return joint_epoch(task.increment, self.batch_size, task.draws)


@dataclass(frozen=True, kw_only=True)
class Retrain(WarmStart):
    """NCE-I over X′ from scratch: the ceiling of every comparison, and how a learner is fitted."""

    from_scratch: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Replay(Strategy):
    """NCE-I on ΔX mixed with a fixed part of the old items, from the current weights.

    Args:
        share: Part of the stored old items that is mixed in, drawn once per update.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("(0, 1]", "it is a part of X", share=self.share)

    def replayed(self, increment: Increment) -> int:
        return math.ceil(increment.stored * self.share)

    def epoch_items(self, increment: Increment) -> int:
        return increment.new_count + self.replayed(increment)

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        new, count = task.increment.new_count, self.replayed(task.increment)
        order = torch.randperm(task.increment.stored, generator=task.generator("replay"))
        for mixed in shuffled(new + count, self.batch_size, task.draws):
            yield BatchIndices(order[mixed[mixed >= new] - new], mixed[mixed < new])
