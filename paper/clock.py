"""The clock that a run is judged by."""

from __future__ import annotations

import time
from typing import Literal

import torch

__all__ = ["Clock"]


class Clock:
    """The time that a traced update had taken at its points and at the ends of its epochs.

    On one thread it is the time of the processor, which other work on the machine does not
    disturb; else that of the wall. Processor time is taken between the callbacks of training. What
    comes before the first one and after the last cannot be told from other work, and counts by the
    wall.

    Args:
        device: Where training runs.
    """

    def __init__(self, device: torch.device) -> None:
        alone = device.type == "cpu" and torch.get_num_threads() == 1
        self.name: Literal["processor", "wall"] = "processor" if alone else "wall"
        self.points = [0.0]
        self.epochs: list[float] = []
        self._seconds = 0.0
        self._wall = 0.0  # the run's own clock when this one was last stopped
        self._began: float | None = None

    def stop(self, wall: float, *, epoch_ended: bool) -> None:
        """A callback begins, at this time of the run's own clock."""
        if self.name == "wall" or self._began is None:
            self._seconds += wall - self._wall
        else:
            self._seconds += time.process_time() - self._began
        self._wall = wall
        if epoch_ended:
            self.epochs.append(self._seconds)

    def point(self, wall: float) -> None:
        """A point was measured, inside of a callback or after the last one."""
        self._seconds += wall - self._wall
        self._wall = wall
        self.points.append(self._seconds)
        self.go()

    def go(self) -> None:
        """A callback ends."""
        self._began = time.process_time()
