"""What training may cost, and what it tells about itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import nn

from incontrast.rates.base import RatesState

__all__ = ["Budget", "Epoch", "Progress", "ProgressCallback", "Run", "Stop", "Stopwatch"]

Stop = Literal["patience", "epochs", "budget", "nothing to do"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What training may cost at most; it ends at the first limit it reaches.

    Args:
        seconds: Training time.
        passes: Views that go through the encoder (a step on n items takes 2n).
    """

    seconds: float | None = None
    passes: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "passes"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"a budget's {name} must be positive, got {limit}")

    def spent(self, seconds: float, passes: int) -> bool:
        return (self.seconds is not None and seconds >= self.seconds) or (
            self.passes is not None and passes >= self.passes
        )


@dataclass(frozen=True)
class Epoch:
    """One line of a run's history; steps, passes and seconds count from the start of the run."""

    number: int
    loss: float  # mean over the epoch's steps, each under the weights it found
    rate: float  # of the last step
    steps: int
    passes: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """Where training is, after each step."""

    epoch: int  # from 1
    epochs: int  # at most
    loss: float
    rate: float
    steps: int
    passes: int
    seconds: float
    finished: Epoch | None  # the epoch that this step ended, if it did
    snapshot: Callable[[], nn.Module]  # the encoder that training would give if it ended here


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class Run:
    """What a training run did."""

    history: tuple[Epoch, ...]
    steps: int
    passes: int
    seconds: float
    stopped: Stop
    undone: int  # times that steps were taken back
    rates_state: RatesState  # what the rates have learned


class Stopwatch:
    """Time since it was made, less what was spent inside ``paused``."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.perf_counter()
        try:
            yield
        finally:
            self._start += time.perf_counter() - before
