"""Which strategy to use, by rule, from the results of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from incontrast.parity import TOLERANCE, EvaluationLoss, at_parity, keeps_parity
from incontrast.text import duration

if TYPE_CHECKING:
    from incontrast.compare.trace import Trace

WORTHWHILE = 5 * TOLERANCE  # an update this close to retraining's loss is good enough


@dataclass(frozen=True)
class Attempt:
    """The result of one strategy."""

    strategy: str
    seconds: float
    loss: EvaluationLoss  # at the end
    parity_seconds: float | None = None  # when it first was at parity with retraining
    failed: str = ""  # why training diverged, if it did
    falling: bool = False  # whether the loss was still falling at the end

    @classmethod
    def of(cls, name: str, trace: Trace, target: EvaluationLoss) -> Attempt:
        """The result of an update; ``target`` is retraining's final loss."""
        parity = trace.reaches(target)
        return cls(
            strategy=name,
            seconds=trace.outcome.seconds,
            loss=trace.points[-1].loss,
            parity_seconds=None if parity is None else parity.seconds,
            falling=still_falling([(p.seconds, p.loss.all) for p in trace.points[1:]]),
        )

    def __str__(self) -> str:
        old, new, total = self.loss
        return f"{self.strategy} {total:.3f} (old {old:.3f}, new {new:.3f}) in {self.seconds:.1f} s"


def still_falling(losses: Sequence[tuple[float, float]]) -> bool:
    """Whether (seconds, loss) pairs fell by more than the tolerance in the last third of the time.

    >>> still_falling([(1, 3.0), (2, 2.0), (3, 1.99)]), still_falling([(1, 3.0), (2, 2.5), (3, 2)])
    (False, True)
    """
    earlier = [loss for seconds, loss in losses if seconds <= losses[-1][0] * 2 / 3]
    return not earlier or losses[-1][1] < earlier[-1] * (1 - TOLERANCE)


@dataclass(frozen=True)
class Recommendation:
    """A strategy and the reasons for it; None if retraining, the reference, had not converged."""

    strategy: str | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"Recommended: {self.strategy or 'nothing yet, give it more minutes'}"


def recommend(
    before: EvaluationLoss, retraining: Attempt, attempts: Sequence[Attempt]
) -> Recommendation:
    """The fastest strategy at parity with retraining; else the best that does not forget.

    ``before`` is the loss without an update. ``docs/how-to/choose-a-strategy.md`` has the rules.
    """
    finished = [attempt for attempt in attempts if not attempt.failed]
    if retraining.falling:  # no reference, but a candidate
        finished.append(retraining)
    forgetting = [a for a in finished if a.loss.old > before.old * (1 + TOLERANCE)]
    lower = [a for a in finished if a.loss.all < before.all * (1 - TOLERANCE)]
    better = sorted((a for a in lower if a not in forgetting), key=lambda a: a.loss.all)
    best = better[0] if better else None
    close = [a for a in better[1:] if a.loss.all <= better[0].loss.all * (1 + TOLERANCE / 2)]
    notes = [
        *_note("Within 1 % of the best, which one run cannot tell apart", close),
        *_note("Forgets: the loss of old items rose by more than 2 %", forgetting),
    ]
    if retraining.falling:
        reason = (
            f"Retraining's loss was still falling after {duration(retraining.seconds)} "
            f"({retraining.loss.all:.3f}), so there is no parity to compare with. Without "
            f"forgetting, {best or 'nothing'} is better than no update ({before.all:.3f})."
        )
        return Recommendation(None, (reason, *notes))

    reached = [a for a in finished if a.parity_seconds is not None]
    # Also at the end: a user's update does not stop at the moment of parity.
    lasting = [a for a in reached if keeps_parity(a.loss, retraining.loss)]
    if at_parity(before, retraining.loss):
        choice = "no update" if best is None else best.strategy
        reason = f"{retraining} gains little over no update ({before.all:.3f})."
        reason += "" if best is None else f" {best} gains more."
    elif lasting:
        choice, reason = _fastest(retraining, lasting)
    elif best is not None and best.loss.all <= retraining.loss.all * (1 + WORTHWHILE):
        choice = best.strategy
        reason = f"Closest to {retraining} without forgetting: {best}."
    else:
        choice = "retraining"
        reason = "No update came close to it without forgetting, in the time it had."
    lost = [a for a in reached if a not in lasting]
    notes += _note("At parity for a while, but not at the end", lost)
    notes += _note("Still falling at the end", [a for a in finished if a.falling])
    return Recommendation(choice, (reason, *notes))


def _fastest(retraining: Attempt, lasting: Sequence[Attempt]) -> tuple[str, str]:
    """The update that was first at parity, or retraining if that was faster."""
    first = min(lasting, key=lambda a: a.parity_seconds or 0.0)
    seconds = first.parity_seconds or 0.0
    reference = retraining.parity_seconds or retraining.seconds
    if seconds >= reference:
        return "retraining", (
            f"No update saves time: {first.strategy} was at parity after {seconds:.1f} s, "
            f"retraining after {reference:.1f} s."
        )
    speed_up = reference / max(seconds, 1e-9)
    return first.strategy, (
        f"At parity with retraining after {seconds:.1f} s, {speed_up:.1f} times as fast as "
        f"retraining itself ({reference:.1f} s)."
    )


def _note(text: str, attempts: Sequence[Attempt]) -> list[str]:
    names = ", ".join(attempt.strategy for attempt in attempts)
    return [f"{text}: {names}."] if names else []
