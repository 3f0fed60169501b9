"""When an encoder is at parity with retraining: one rule for runs, recommendations and reports."""

from typing import NamedTuple

TOLERANCE = 0.02
"""By which old or new items, but not both, may be above retraining's loss."""

LOST = 2 * TOLERANCE
"""By which old or new items must be above it for parity to be lost again."""


class EvaluationLoss(NamedTuple):
    """Mean NCE-I with negatives from all of X′ (Eq. 2); nan where there are no such items."""

    old: float
    new: float
    all: float  # the mean over X′: (1−α)·old + α·new


def at_parity(loss: EvaluationLoss, target: EvaluationLoss, tolerance: float = TOLERANCE) -> bool:
    """At or below the target over X′, and on old and on new items apart within ``tolerance``.

    >>> at_parity(EvaluationLoss(0.51, 0.48, 0.50), target=EvaluationLoss(0.50, 0.50, 0.50))
    True
    >>> at_parity(EvaluationLoss(0.52, 0.48, 0.50), target=EvaluationLoss(0.50, 0.50, 0.50))
    False
    """
    return loss.all <= target.all and _apart(loss, target, tolerance)


def keeps_parity(loss: EvaluationLoss, target: EvaluationLoss) -> bool:
    """Whether what was at parity at some time still is in the end, on old and on new items."""
    return _apart(loss, target, LOST)


def _apart(loss: EvaluationLoss, target: EvaluationLoss, tolerance: float) -> bool:
    bound = 1 + tolerance
    return loss.old <= target.old * bound and loss.new <= target.new * bound
