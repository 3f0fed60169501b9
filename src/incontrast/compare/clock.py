"""A time that several runs share, and end in."""

from __future__ import annotations

import time
from typing import Any, Self

from incontrast.training.progress import Budget, Progress, ProgressCallback

LEAST = 0.1  # of a run's share of the time, to train in even where evaluation takes all of it


class Clock:
    """Gives every run the same time to train; less only if the end would be missed otherwise.

    Args:
        end: When the last run must have ended, by ``time.perf_counter``.
        runs: That are to come.
        ending: Seconds that a run takes besides its steps; corrected by what is seen.
        measuring: Times the training, that evaluation along the way may take.

    A run is within ``with clock:``.
    """

    def __init__(self, end: float, runs: int, *, ending: float, measuring: float) -> None:
        self.end, self.left = end, runs
        self.ending, self.measuring = ending, measuring
        self.training = float("inf")  # seconds that the runs so far had to train in
        self.begun = self.last_step = 0.0

    def __enter__(self) -> Self:
        self.begun = self.last_step = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.left -= 1
        self.ending = max(self.ending, time.perf_counter() - self.last_step)

    def limits(self) -> dict[str, Any]:
        """Arguments of ``trace`` for the run that has begun."""
        share = max(self.end - self.begun, 0.01) / self.left
        least = LEAST * share
        self.training = min(self.training, max((share - self.ending) / (1 + self.measuring), least))
        until = self.begun + max(share - self.ending, least)
        return {"budget": Budget(seconds=self.training), "until": until}

    def watching(self, callback: ProgressCallback) -> ProgressCallback:
        """The callback, by which the clock knows when the last step was."""

        def after(step: Progress) -> bool | None:
            self.last_step = time.perf_counter()
            return callback(step)

        return after
