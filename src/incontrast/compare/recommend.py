"""Which strategy to use, by rule, from what each of them did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from incontrast.parity import TOLERANCE, EvaluationLoss, at_parity, keeps_parity

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
        falling: Whether its loss was still falling when its time was over.
    """

    strategy: str
    seconds: float
    loss: EvaluationLoss
    level_seconds: float | None
    failed: str = ""
    falling: bool = False


@dataclass(frozen=True)
class Recommendation:
    """A strategy, and why."""

    strategy: str
    reasons: tuple[str, ...]


def recommend(
    before: EvaluationLoss, ceiling: Attempt, attempts: Sequence[Attempt]
) -> Recommendation:
    """What to use, by rule; and a word of caution where retraining was not trained out."""
    found = _recommend(before, ceiling, attempts)
    if not ceiling.falling:
        return found
    caution = (
        "This may change: retraining's loss was still falling when its time was over. Give it more "
        "minutes."
    )
    return Recommendation(found.strategy, (caution, *found.reasons))


def _recommend(
    before: EvaluationLoss, ceiling: Attempt, attempts: Sequence[Attempt]
) -> Recommendation:
    """The cheapest strategy that is as good as retraining; else the best that forgets nothing.

    Args:
        before: The true loss of the encoder that has not seen the new items.
        ceiling: What retraining did.
        attempts: What the others did, inference not among them.
    """
    target = ceiling.loss
    sound = [attempt for attempt in attempts if not attempt.failed]
    state = (_state(before, target),)
    # Level at some time and lost again is no use: a user's own update does not end at that moment.
    once = [(a.level_seconds, a) for a in sound if a.level_seconds is not None]
    level = [pair for pair in once if keeps_parity(pair[1].loss, target)]
    lost = [a.strategy for _, a in once if not keeps_parity(a.loss, target)]
    passing = (
        (f"Level for a while, and worse again in the end: {', '.join(lost)}.",) if lost else ()
    )
    if at_parity(before, target):
        better = [a for _, a in level if a.loss.all < before.all * (1 - 5 * TOLERANCE)]
        if not better:
            return Recommendation("inference", (_nothing_to_gain(before, ceiling, sound),))
        best = min(better, key=lambda a: a.loss.all)
        gain = (
            f"Retraining has nothing to add to that in {ceiling.seconds:.1f} s; {best.strategy} "
            f"comes to {_told(best.loss)} in {best.seconds:.1f} s."
        )
        return Recommendation(best.strategy, (*state, gain, *passing))
    if level:
        seconds, best = min(level, key=lambda pair: pair[0])
        against = ceiling.level_seconds or ceiling.seconds
        if seconds >= against:
            late = (
                f"{best.strategy} is level with retraining after {seconds:.1f} s, retraining "
                f"itself after {against:.1f} s: no update saves time here."
            )
            return Recommendation("retraining", (*state, late, *passing))
        return Recommendation(
            best.strategy, (*state, *_level_reasons(seconds, best, against, level), *passing)
        )
    keeping = [a for a in sound if a.loss.old <= before.old * (1 + TOLERANCE)]
    better = [a for a in keeping if a.loss.all < before.all]
    forgetting = [a.strategy for a in sound if a not in keeping]
    rose = (f"The loss of old items rose under {', '.join(forgetting)}.",) if forgetting else ()
    best_kept = min(better, key=lambda a: a.loss.all, default=None)
    if best_kept is not None and best_kept.loss.all <= target.all * (1 + 5 * TOLERANCE):
        return Recommendation(
            best_kept.strategy,
            (
                *state,
                f"No update came to retraining's level and stayed there; {best_kept.strategy} came "
                f"closest without forgetting: {_told(best_kept.loss)} in "
                f"{best_kept.seconds:.1f} s, retraining {_told(target)} in "
                f"{ceiling.seconds:.1f} s.",
                *_about_as_good(best_kept, better),
                *passing,
                *rose,
            ),
        )
    if best_kept is not None:
        found = (
            "No update came to retraining's level in the time it had; the best that does not "
            f"forget, {best_kept.strategy}, ended at {best_kept.loss.all:.3f}."
        )
    elif sound:
        found = "No update was better than none without forgetting, in the time it had."
    else:
        found = "No update ended." if attempts else "No update was tried."
    advice = "Retraining is the safe choice; with more time an update may do."
    return Recommendation("retraining", (*state, found, *passing, *rose, advice))


def _nothing_to_gain(before: EvaluationLoss, ceiling: Attempt, sound: Sequence[Attempt]) -> str:
    best = min(sound, key=lambda a: a.loss.all, default=None)
    update = "" if best is None else f", the best update ({best.strategy}) to {best.loss.all:.3f}"
    return (
        f"Without any update the loss over all items is {before.all:.3f}. Retraining came to "
        f"{ceiling.loss.all:.3f} in {ceiling.seconds:.1f} s{update}: there is little to gain."
    )


def _about_as_good(best: Attempt, others: Sequence[Attempt]) -> tuple[str, ...]:
    near = [
        a.strategy
        for a in others
        if a is not best and a.loss.all <= best.loss.all * (1 + TOLERANCE / 2)
    ]
    if not near:
        return ()
    return (f"Within 1 % of that, which one run cannot tell apart: {', '.join(near)}.",)


def _told(loss: EvaluationLoss) -> str:
    return f"{loss.all:.3f} (old {loss.old:.3f}, new {loss.new:.3f})"


def _state(before: EvaluationLoss, target: EvaluationLoss) -> str:
    gap = before.all / target.all - 1.0
    where = f"{abs(gap):.0%} {'above' if gap >= 0 else 'below'}"
    return (
        f"Without an update the loss over all items is {before.all:.3f}, {where} retraining's "
        f"{target.all:.3f} (new items: {before.new:.3f} and {target.new:.3f})."
    )


def _level_reasons(
    seconds: float,
    best: Attempt,
    against: float,
    level: Sequence[tuple[float, Attempt]],
) -> list[str]:
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
