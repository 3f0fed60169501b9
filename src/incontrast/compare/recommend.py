"""Which strategy to use, by rule, from what each of them did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from incontrast.parity import TOLERANCE, EvaluationLoss, at_parity, keeps_parity
from incontrast.text import duration

if TYPE_CHECKING:
    from incontrast.compare.trace import Trace

NEEDS_NO_OLD_ITEMS = ("fine-tuning", "distillation")
WORTHWHILE = 5 * TOLERANCE  # what is nearer than this to retraining's loss will do


@dataclass(frozen=True)
class Attempt:
    """What a strategy did with the time it had."""

    strategy: str
    seconds: float
    loss: EvaluationLoss  # that it ended with
    parity_seconds: float | None = None  # when it was first at parity with retraining
    failed: str = ""  # why its training diverged, if it did
    falling: bool = False  # whether its loss was still falling when its time was over

    @classmethod
    def of(cls, name: str, trace: Trace, target: EvaluationLoss) -> Attempt:
        """What a watched update did, by the loss that retraining ended with."""
        reached, last = trace.reaches(target), trace.points[-1]
        return cls(
            strategy=name,
            seconds=trace.outcome.seconds,
            loss=last.loss,
            parity_seconds=None if reached is None else reached.seconds,
            falling=still_falling([(p.seconds, p.loss.all) for p in trace.points[1:]]),
        )


def still_falling(losses: Sequence[tuple[float, float]]) -> bool:
    """Whether losses, each with its time, fell by more than the tolerance in the last third.

    >>> still_falling([(1, 3.0), (2, 2.0), (3, 1.99)]), still_falling([(1, 3.0), (2, 2.5), (3, 2)])
    (False, True)
    """
    earlier = [loss for seconds, loss in losses if seconds <= losses[-1][0] * 2 / 3]
    return not earlier or losses[-1][1] < earlier[-1] * (1 - TOLERANCE)


@dataclass(frozen=True)
class Recommendation:
    """A strategy, and why; None where nothing has converged that could be compared with."""

    strategy: str | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"Recommended: {self.strategy or 'nothing yet, give it more minutes'}"


def recommend(
    before: EvaluationLoss, ceiling: Attempt, attempts: Sequence[Attempt]
) -> Recommendation:
    """The cheapest strategy that is as good as retraining; else the best that forgets nothing.

    ``before`` is the loss without an update, ``ceiling`` what retraining did.
    """
    sound = [attempt for attempt in attempts if not attempt.failed]
    if ceiling.falling:
        return Recommendation(None, tuple(_so_far(before, ceiling, sound)))
    # At parity once, and still in the end: a user's own update does not end at that moment.
    once = [attempt for attempt in sound if attempt.parity_seconds is not None]
    kept = [attempt for attempt in once if keeps_parity(attempt.loss, ceiling.loss)]
    if at_parity(before, ceiling.loss):
        name, reasons = _where_retraining_gains_nothing(before, ceiling, sound)
    elif kept:
        name, reasons = _fastest(ceiling, kept)
    else:
        name, reasons = _best(before, ceiling, sound, len(attempts))
    reasons = reasons if name == "no update" else [_state(before, ceiling.loss), *reasons]
    lost = _names(attempt for attempt in once if attempt not in kept)
    if lost and name != "no update":
        reasons.append(f"At parity for a while, and worse again in the end: {lost}.")
    return Recommendation(name, tuple(reasons))


def _so_far(before: EvaluationLoss, ceiling: Attempt, sound: Sequence[Attempt]) -> Iterator[str]:
    """Where each one is, while retraining has not converged."""
    yield (
        f"Retraining's loss was still falling when its {duration(ceiling.seconds)} were over "
        f"({ceiling.loss.all:.3f}): it is no yardstick, and nothing is said about parity or "
        "speed-ups. With more minutes there is. What can be said is where each one is after the "
        "same time."
    )
    if better := _better(before, [*sound, ceiling]):
        gain = 1.0 - better[0].loss.all / before.all
        yield (
            f"{better[0].strategy} has the lowest loss of those that keep old items: "
            f"{_losses(better[0])}, {gain:.0%} below no update ({before.all:.3f})."
        )
        yield from _near(better)
    else:
        yield (
            f"None of the updates beats leaving the encoder alone ({before.all:.3f}) by more than "
            f"{TOLERANCE * 100:.0f} % without raising the loss of old items."
        )
        yield from _forgetting(before, [*sound, ceiling])


def _keeping(before: EvaluationLoss, sound: Sequence[Attempt]) -> list[Attempt]:
    """What keeps old items, the lowest loss over all items first."""
    keeping = (a for a in sound if a.loss.old <= before.old * (1 + TOLERANCE))
    return sorted(keeping, key=lambda a: a.loss.all)


def _better(before: EvaluationLoss, sound: Sequence[Attempt]) -> list[Attempt]:
    """What of it is better than no update."""
    return [a for a in _keeping(before, sound) if a.loss.all < before.all * (1 - TOLERANCE)]


def _forgetting(before: EvaluationLoss, sound: Sequence[Attempt]) -> Iterator[str]:
    """What the table shows as better over all items, and is not recommended."""
    forgetting = [a for a in sound if a.loss.old > before.old * (1 + TOLERANCE)]
    lower = [a for a in forgetting if a.loss.all < before.all * (1 - TOLERANCE)]
    told = ", ".join(
        f"{a.strategy} ({a.loss.all:.3f}, old items {a.loss.old / before.old - 1:+.0%})"
        for a in sorted(lower, key=lambda a: a.loss.all)
    )
    if told:
        yield (
            f"Lower over all items, at the cost of old ones: {told}. "
            "Take one if new items count for more."
        )


def _near(better: Sequence[Attempt]) -> Iterator[str]:
    limit = better[0].loss.all * (1 + TOLERANCE / 2)
    if near := _names(a for a in better[1:] if a.loss.all <= limit):
        yield f"Within 1 % of that, which one run cannot tell apart: {near}."


def _names(attempts: Iterable[Attempt]) -> str:
    return ", ".join(attempt.strategy for attempt in attempts)


def _where_retraining_gains_nothing(
    before: EvaluationLoss, ceiling: Attempt, sound: Sequence[Attempt]
) -> tuple[str, list[str]]:
    if better := _better(before, sound):
        return better[0].strategy, [
            f"Retraining has nothing to add to that in {ceiling.seconds:.1f} s; "
            f"{better[0].strategy} comes to {_losses(better[0])}.",
            *_near(better),
        ]
    best = [
        f", the best update ({a.strategy}) to {a.loss.all:.3f}" for a in _keeping(before, sound)
    ]
    return "no update", [
        f"Without any update the loss over all items is {before.all:.3f}. Retraining came to "
        f"{ceiling.loss.all:.3f} in {ceiling.seconds:.1f} s{''.join(best[:1])}: there is little to "
        "gain.",
        *_forgetting(before, sound),
    ]


def _fastest(ceiling: Attempt, kept: Sequence[Attempt]) -> tuple[str, list[str]]:
    """The update that comes to parity first, or retraining if it is there before."""
    best, *others = sorted(kept, key=lambda a: a.parity_seconds or 0.0)
    seconds, against = best.parity_seconds or 0.0, ceiling.parity_seconds or ceiling.seconds
    reason = (
        f"{best.strategy} is at parity with retraining after {seconds:.1f} s, retraining itself "
        f"after {against:.1f} s: "
    )
    if seconds >= against:
        return "retraining", [f"{reason}no update saves time here."]
    reasons = [f"{reason}{against / max(seconds, 1e-9):.1f} times as fast."]
    if later := ", ".join(f"{a.strategy} ({a.parity_seconds:.1f} s)" for a in others):
        reasons.append(f"Also at parity, but later: {later}.")
    if best.strategy in NEEDS_NO_OLD_ITEMS:
        reasons.append("It needs no old items, so a small memory will do.")
    return best.strategy, reasons


def _best(
    before: EvaluationLoss, ceiling: Attempt, sound: Sequence[Attempt], tried: int
) -> tuple[str, list[str]]:
    """The update that comes closest to retraining and keeps old items, or retraining."""
    keeping = _keeping(before, sound)
    better = [a for a in keeping if a.loss.all < before.all]
    name, reasons = "retraining", []
    if better and better[0].loss.all <= ceiling.loss.all * (1 + WORTHWHILE):
        name = better[0].strategy
        reasons.append(
            f"No update came to parity with retraining and stayed there; {name} came closest "
            f"without forgetting: {_losses(better[0])}, retraining {_losses(ceiling)}."
        )
        reasons += _near(better)
    elif better:
        reasons.append(
            "No update came to parity with retraining in the time it had; the best that does not "
            f"forget, {better[0].strategy}, ended at {better[0].loss.all:.3f}."
        )
    elif sound:
        reasons.append("No update was better than none without forgetting, in the time it had.")
    else:
        reasons.append("No update ended." if tried else "No update was tried.")
    if forgetting := _names(a for a in sound if a not in keeping):
        reasons.append(f"The loss of old items rose under {forgetting}.")
    if falling := _names(a for a in sound if a.falling):
        reasons.append(f"Still falling when its time was over, and not converged: {falling}.")
    if name == "retraining":
        reasons.append("Retraining is the safe choice; with more time an update may do.")
    return name, reasons


def _losses(attempt: Attempt) -> str:
    old, new, both = attempt.loss
    return f"{both:.3f} (old {old:.3f}, new {new:.3f}) in {attempt.seconds:.1f} s"


def _state(before: EvaluationLoss, target: EvaluationLoss) -> str:
    gap = before.all / target.all - 1.0
    where = f"{abs(gap):.0%} {'above' if gap >= 0 else 'below'}"
    return (
        f"Without an update the loss over all items is {before.all:.3f}, {where} retraining's "
        f"{target.all:.3f} (new items: {before.new:.3f} and {target.new:.3f})."
    )
