"""One fit, adoption or update: what it begins with, and what the seconds of its budget are for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from incontrast.compat.link import FEWEST
from incontrast.domains.base import Domain
from incontrast.evaluate.probes import Probe
from incontrast.heads import backbone_of
from incontrast.interpolation import PARTS
from incontrast.memory.memory import Memory
from incontrast.strategies import Strategy
from incontrast.training.calibration import CALIBRATED
from incontrast.training.engine import Engine
from incontrast.training.progress import Budget, ProgressCallback
from incontrast.training.task import Increment

FITTING = 5e-4  # seconds that fitting a map takes for each of its pairs, about
PAIRS = 4000  # items at most, old and new, on which a map between two versions is fitted


class BudgetTooSmall(ValueError):
    """There would be no time left for training; nothing was changed.

    ``spent`` are the seconds that all but training takes, about; ``pending`` is what waits.
    """

    def __init__(self, seconds: float, spent: float, pending: str = "") -> None:
        self.seconds, self.spent = seconds, spent
        super().__init__(
            f"a budget of {seconds:g} seconds is too small: reading and evaluating alone take "
            f"about {spent:.1f} s here; give at least {2 * spent:.1f}{pending and f'. {pending}'}"
        )


@dataclass(frozen=True)
class Measuring:
    """How outcomes are measured, as far as it takes time."""

    engine: Engine
    sample: int  # old and new items, each
    evaluations_after: int  # training
    apart: bool  # whether the seconds of a budget are for training alone


@dataclass(frozen=True)
class Call:
    current: nn.Module | None  # the encoder of before
    domain: Domain
    increment: Increment
    memory: Memory
    version: int  # that it leads to
    strategy: Strategy
    measuring: Measuring
    start: float  # of the call, by ``time.perf_counter``
    budget: Budget
    callbacks: Sequence[ProgressCallback] = ()
    checkpoint: str | Path | None = None
    probe: Probe | None = None
    tolerance: float | None = None

    @property
    def items(self) -> int:
        """Stored ones and new ones."""
        return self.increment.stored + self.increment.new_count

    @property
    def measured(self) -> int:
        """Items on which an outcome's figures are measured."""
        counts = (self.increment.stored, self.increment.new_count)
        return sum(min(count, self.measuring.sample) for count in counts)

    def pairs(self, seconds: float) -> int:
        """Items on which a map is fitted: as many as a tenth of the budget allows for.

        Args:
            seconds: That a measurement takes.
        """
        pairs = min(self.items, PAIRS)
        if self.budget.seconds is None:
            return pairs
        # Both encoders embed an item once, where both of its views were measured.
        allowed = self.budget.seconds / 10 / (seconds / self.measured + FITTING)
        return min(pairs, max(FEWEST, int(self.measuring.engine.broadcast_float(allowed))))

    def for_training(self, seconds: float, pairs: int) -> Budget:
        """What is left of the budget for training: its seconds are for the whole call.

        After training come, for every part of the change that may be tried, BatchNorm's statistics
        and the same measurement as before; then the map.
        """
        budget, how = self.budget, self.measuring
        if budget.seconds is None or how.apart:
            return budget
        parts = 1 if self.tolerance is None else 1 + PARTS
        items = pairs + parts * min(self.items, CALIBRATED)
        after = seconds * (how.evaluations_after - 1 + parts + items / self.measured)
        after += FITTING * pairs
        spent = how.engine.broadcast_float(time.perf_counter() - self.start + after)
        if spent >= budget.seconds:
            raise BudgetTooSmall(budget.seconds, spent)
        return replace(budget, seconds=budget.seconds - spent)

    @contextmanager
    def deadline(self, encoder: nn.Module) -> Iterator[None]:
        """End what precedes training once it has taken the whole budget.

        Not among several processes, of which none may end by itself.
        """
        limit, begin, done = self.budget.seconds, time.perf_counter(), 0
        if limit is None or self.measuring.apart or self.measuring.engine.processes > 1:
            yield
            return
        own = threading.get_ident()  # others may embed by this encoder meanwhile
        needed = 2 * (self.measured + min(self.items, CALIBRATED))  # two views of each

        def look(module: nn.Module, given: Any, embeddings: Tensor) -> None:
            nonlocal done
            if threading.get_ident() != own:
                return
            done += len(embeddings)
            now = time.perf_counter()
            if now - self.start >= limit:
                left = (now - begin) * max(0.0, needed / done - 1.0)
                raise BudgetTooSmall(limit, now - self.start + left)

        hook = backbone_of(encoder).register_forward_hook(look)
        try:
            yield
        finally:
            hook.remove()
