"""Whether a candidate may take over."""

from __future__ import annotations

from incontrast.workspace.movement import Health

__all__ = ["objections"]

SHARE = 0.5  # of the effective rank of before that a candidate keeps at least
RANK = 1.5  # below it, embeddings lie on a line
UNIFORMITY = -0.02  # above it, all embeddings are one point


def objections(
    *,
    loss_before: float | None,
    loss_after: float | None,
    tolerance: float,
    before: Health | None,
    after: Health,
) -> list[str]:
    """Reasons not to promote a candidate; none if it is fine.

    Args:
        loss_before: The true loss of old items under the current version; None after a first fit.
        loss_after: The same under the candidate.
        tolerance: How much larger the loss of old items may be, as a share.
        before: The health of the current version; None after a first fit.
        after: The health of the candidate, on the same items.
    """
    reasons = []
    if loss_before is not None and loss_after is None:
        reasons.append("the loss of old items is no longer a finite number")
    if (
        loss_before is not None
        and loss_after is not None
        and loss_after > loss_before * (1.0 + tolerance)
    ):
        reasons.append(
            f"the loss of old items rose from {loss_before:.3f} to {loss_after:.3f}, by more "
            f"than the {tolerance:.0%} that is tolerated"
        )
    if not (after.effective_rank >= RANK and after.uniformity <= UNIFORMITY):
        reasons.append(
            f"embeddings have collapsed: their effective rank is {after.effective_rank:.1f}, "
            f"their uniformity {after.uniformity:.3f}"
        )
    elif before is not None and after.effective_rank < SHARE * before.effective_rank:
        reasons.append(
            f"embeddings are collapsing: their effective rank fell from "
            f"{before.effective_rank:.1f} to {after.effective_rank:.1f}"
        )
    return reasons
