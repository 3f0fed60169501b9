"""Tells when a learning rate did harm."""

from collections import deque

from incontrast.schedules.schedule import Verdict

RECENT = 4  # windows whose mean is compared with the best so far
TOLERANCE = 0.25  # a rise above the best mean so far, relative to it, that is never harm
RELIEF = 1.1  # by what factor the ceiling rises per window
SHAKY = 0.08  # of the first mean loss: the change between windows as long as it is not known


class Guard:
    """Watches the mean loss of windows of steps; harm is a rise beyond what chance explains.

    After a rollback the learning rate that did it becomes a ceiling, which rises again slowly.
    """

    def __init__(self) -> None:
        self.ceiling = float("inf")
        self.rollbacks = 0  # windows rolled back so far
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._best = float("inf")
        self._spread = 0.0
        self._spared = False

    def judge(self, mean: float, lr: float) -> Verdict | None:
        """What to do after a window of this mean loss, made with this learning rate."""
        self.ceiling *= RELIEF
        if not self._recent:
            self._best, self._spread = mean, SHAKY * abs(mean)
        hopeless = mean > self._best + 4.0 * self._slack()
        harmful = mean > self._best + self._slack()
        if hopeless or (harmful and not self._spared):
            # The window after a rollback is spared, or noise could hold a run at its checkpoint.
            self._spared = True
            self.rollbacks += 1
            self.ceiling = lr / 2.0
            return "rollback"
        self._spared = False
        if self._recent:
            self._spread += 0.2 * (abs(mean - self._recent[-1]) - self._spread)
        self._recent.append(mean)
        now = sum(self._recent) / len(self._recent)
        # The lowest of many means is low by luck: it is given up, slowly.
        self._best = now if now < self._best else self._best + 0.02 * (now - self._best)
        return "checkpoint" if mean <= self._best + self._slack() / 2.0 else None

    def _slack(self) -> float:
        return max(TOLERANCE * abs(self._best), 5.0 * self._spread)
