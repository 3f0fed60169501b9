"""Which strategy to use, by rule, from what each of them did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from incontrast.bench.trace import TOLERANCE, as_good
from incontrast.evaluate.population import TrueLoss

__all__ = ["Attempt", "Recommendation", "recommend"]

NEEDS_NO_OLD_ITEMS = ("inference", "fine-tuning", "distillation")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a strategy did with the time it had.

    Args:
        strategy: Its name.
        seconds: What it took.
        loss: The true loss it ended with.
        level_seconds: When it was first level with retraining; None for never.
        failed: Why its training broke off, if it did.
    """

    strategy: str
    seconds: float
    loss: TrueLoss
    level_seconds: float | None
    failed: str = ""


@dataclass(frozen=True)
class Recommendation:
    """A strategy, and why."""

    strategy: str
    reasons: tuple[str, ...]


def recommend(before: TrueLoss, ceiling: Attempt, attempts: Sequence[Attempt]) -> Recommendation:
    """The cheapest strategy that is as good as retraining; else the best that forgets nothing.

    Args:
        before: The true loss of the encoder that has not seen the new items.
        ceiling: What retraining did.
        attempts: What the others did, inference not among them.
    """
    target = ceiling.loss
    gap = before.all / target.all - 1.0
    if as_good(before, target):
        return Recommendation(
            "inference",
            (
                f"Without any update the loss over all items is {before.all:.3f}, retraining's "
                f"{target.all:.3f}: there is nothing to gain.",
            ),
        )
    state = (
        f"Without an update the loss over all items is {before.all:.3f}, {gap:.0%} above "
        f"retraining's {target.all:.3f} (new items: {before.new:.3f} and {target.new:.3f}).",
    )
    sound = [attempt for attempt in attempts if not attempt.failed]
    level = [(a.level_seconds, a) for a in sound if a.level_seconds is not None]
    if level:
        seconds, best = min(level, key=lambda pair: pair[0])
        return Recommendation(
            best.strategy, (*state, *_level_reasons(seconds, best, ceiling, level))
        )
    keeping = [a for a in sound if a.loss.old <= before.old * (1 + TOLERANCE)]
    best = min(keeping or sound, key=lambda a: a.loss.all, default=ceiling)
    if best is ceiling or best.loss.all > target.all * (1 + 5 * TOLERANCE):
        return Recommendation(
            "retraining",
            (
                *state,
                "No update came to retraining's level in the time it had; the best of them, "
                f"{best.strategy}, ended at {best.loss.all:.3f}.",
                "Retraining is the safe choice; with more time an update may do.",
            ),
        )
    forgetting = [a.strategy for a in sound if a not in keeping]
    reasons = [
        f"No update came to retraining's level in the time it had; {best.strategy} came closest "
        f"without forgetting: {best.loss.all:.3f} in {best.seconds:.1f} s, retraining "
        f"{target.all:.3f} in {ceiling.seconds:.1f} s.",
    ]
    if forgetting:
        reasons.append(f"The loss of old items rose under {', '.join(forgetting)}.")
    return Recommendation(best.strategy, (*state, *reasons))


def _level_reasons(
    seconds: float,
    best: Attempt,
    ceiling: Attempt,
    level: Sequence[tuple[float, Attempt]],
) -> list[str]:
    against = ceiling.level_seconds or ceiling.seconds
    reasons = [
        f"{best.strategy} is level with retraining after {seconds:.1f} s, retraining itself after "
        f"{against:.1f} s: {against / max(seconds, 1e-9):.1f} times as fast.",
    ]
    others = [
        f"{a.strategy} ({s:.1f} s)" for s, a in sorted(level, key=lambda p: p[0]) if a is not best
    ]
    if others:
        reasons.append(f"Also level, but later: {', '.join(others)}.")
    if best.strategy in NEEDS_NO_OLD_ITEMS:
        reasons.append("It needs no old items, so a small memory will do.")
    return reasons
