"""Means over seeds, with confidence intervals; "never" among them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t for 95 %, by degrees of freedom, from 2 to 20.
_T = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201),
    *(2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds.

    Args:
        value: The mean or median; None if there is none, as where most seeds never get there.
        low: Lower end of the 95 % confidence interval; None with fewer than three seeds, from
            which it would say nothing.
        high: Its upper end.
        seeds: Seeds that have a figure.
        never: Seeds that have none.
        before: Seeds left out, because they were at parity before any update.
    """

    value: float | None
    low: float | None
    high: float | None
    seeds: int
    never: int = 0
    before: int = 0

    @property
    def total(self) -> int:
        """All seeds."""
        return self.seeds + self.never + self.before

    @property
    def interval(self) -> str:
        """For a note."""
        if self.low is None or self.high is None:
            return ""
        return "–".join(
            f"{end:.0f}" if end >= 99.5 else f"{end:.1f}" for end in (self.low, self.high)
        )


def mean(values: Sequence[float]) -> Estimate:
    """The arithmetic mean.

    >>> mean([1.0, 3.0]).value
    2.0
    """
    if not values:
        return Estimate(None, None, None, 0)
    centre = statistics.fmean(values)
    if len(values) < 3:
        return Estimate(centre, None, None, len(values))
    half = _t(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(centre, centre - half, centre + half, len(values))


def ratio(values: Sequence[float | None], *, before: int = 0) -> Estimate:
    """The geometric mean of speed-ups; None stands for a seed that never got there.

    Where there are such seeds it is the median instead, in which never is infinitely slow, or that
    mean over the others if it is lower: a figure must not gain by leaving the slowest out.

    >>> ratio([2.0, 8.0]).value
    4.0
    >>> ratio([2.0, None, 8.0]).value
    2.0
    >>> ratio([2.0, None]).value is None
    True

    Args:
        values: One for each seed.
        before: Seeds that were at parity before.
    """
    found = [value for value in values if value is not None]
    never = len(values) - len(found)
    if len(found) <= never:
        return Estimate(None, None, None, len(found), never, before)
    if never:
        middle = min(statistics.median_low([0.0] * never + found), statistics.geometric_mean(found))
        return Estimate(middle, None, None, len(found), never, before)
    logs = mean([math.log(value) for value in found])
    assert logs.value is not None
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.value), low, high, len(found), never, before)


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, of values with their order; 0 where they are all the same.

    >>> rank_correlation([5.0, 3.0, 1.0])
    -1.0
    """
    ranks = [
        sum(other < value for other in values) + sum(other == value for other in values) / 2
        for value in values
    ]
    if len(set(ranks)) == 1:
        return 0.0
    return statistics.correlation(range(len(ranks)), ranks)


def _t(count: int) -> float:
    return _T[count - 3] if count - 3 < len(_T) else _T[-1]
