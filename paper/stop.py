"""The paper's stop rule, applied to a run that continues after it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from incontrast import Progress


class StopRule:
    """Waits for the loss to stop falling, and keeps the encoder of that moment.

    One run serves both protocols that way: where the paper's ends is written down, and training
    continues until it has had all the forward passes that it may have.

    Args:
        patience: Epochs without a new lowest loss.
        max_epochs: Epochs at most.
    """

    def __init__(self, patience: int, max_epochs: int) -> None:
        self.patience, self.max_epochs = patience, max_epochs
        self.encoder: nn.Module | None = None
        """As it was when the rule said stop; None if it never did."""
        self._losses: list[float] = []

    def __call__(self, step: Progress) -> None:
        if step.finished is None or self.encoder is not None:
            return
        self._losses.append(step.finished.loss)
        if stop_epoch(self._losses, self.patience, self.max_epochs) is not None:
            self.encoder = step.snapshot()


def stop_epoch(losses: Sequence[float], patience: int, max_epochs: int) -> int | None:
    """The epoch, from 1, after which the rule says stop; None if it does not.

    >>> stop_epoch([3.0, 2.0, 2.5, 2.0, 1.0], patience=2, max_epochs=10)
    4
    """
    lowest, waited = math.inf, 0
    for number, loss in enumerate(losses, start=1):
        lowest, waited = (loss, 0) if loss < lowest else (lowest, waited + 1)
        if waited >= patience or number >= max_epochs:
            return number
    return None


def best_epoch(losses: Sequence[float]) -> int:
    """The epoch, from 1, of the lowest loss: the first of them, if there are several."""
    return min(range(len(losses)), key=lambda number: losses[number]) + 1
