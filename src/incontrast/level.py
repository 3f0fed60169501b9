"""When an encoder is level with retraining: one rule for runs, recommendations and reports."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LOST", "TOLERANCE", "TrueLoss", "as_good", "stays"]

TOLERANCE = 0.02
"""By which old or new items, but not both, may be above the level."""

LOST = 2 * TOLERANCE
"""By which old or new items must be above it for what was level to be so no longer."""


class TrueLoss(NamedTuple):
    """Mean NCE-I with noise from all of X′ (Eq. 2); nan where there are no such items."""

    old: float
    new: float
    all: float  # the mean over X′: (1−α)·old + α·new


def as_good(loss: TrueLoss, target: TrueLoss, tolerance: float = TOLERANCE) -> bool:
    """At or below the target over X′, and on old and on new items apart within ``tolerance``.

    >>> as_good(TrueLoss(0.51, 0.48, 0.50), target=TrueLoss(0.50, 0.50, 0.50))
    True
    >>> as_good(TrueLoss(0.52, 0.48, 0.50), target=TrueLoss(0.50, 0.50, 0.50))
    False
    """
    return loss.all <= target.all and _apart(loss, target, tolerance)


def stays(loss: TrueLoss, target: TrueLoss) -> bool:
    """Whether what was level at some time still is in the end, on old and on new items."""
    return _apart(loss, target, LOST)


def _apart(loss: TrueLoss, target: TrueLoss, tolerance: float) -> bool:
    bound = 1 + tolerance
    return loss.old <= target.old * bound and loss.new <= target.new * bound
