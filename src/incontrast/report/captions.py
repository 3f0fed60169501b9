"""What captions say of the rows a table rests on."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.summary import Place, Summary
from incontrast.rows import Row

__all__ = ["last_third", "provenance", "resolution", "sizes", "where_retraining_ends"]


def sizes(summary: Summary, sets: Sequence[str]) -> str:
    """The sizes and seeds of data sets."""
    found = [size for size in map(summary.sizes, sets) if size]
    return "; ".join(found) + "." if found else "No rows yet."


def where_retraining_ends(summary: Summary, places: Sequence[Place]) -> str:
    """How often its number of epochs ended retraining, and how far it was from its end then."""
    found = [row for place in places for row in summary.finished(place, "retraining")]
    ended = [row for row in found if row["paper"]["stopped"] == "epochs"]
    if not ended:
        return ""
    fall = statistics.median(map(last_third, ended))
    return (
        f" Retraining itself was ended by its number of epochs in {len(ended)} of {len(found)} "
        f"runs; in the last third of their passes its true loss still fell by {100 * fall:.0f} % "
        "(median). Trained on, it would end lower, and take longer."
    )


def resolution(summary: Summary, places: Sequence[Place]) -> str:
    """How finely the time until level is known."""
    found: dict[str, float] = {}
    for place in places:
        for row in summary.finished(place, "retraining"):
            found[row["data"]] = row["settings"].get("spacing", 1.0)
    coarse = [f"{name} {spacing:g}" for name, spacing in found.items() if spacing > 1.0]
    if not coarse:
        return ""
    return (
        " The true loss is looked at whenever so many times more steps have been taken, and "
        f"smaller differences mean nothing: {'; '.join(coarse)}."
    )


def provenance(summary: Summary) -> str:
    """What a reader should know of how the rows came about."""
    why = [row["relabelled"] for row in summary.rows if "relabelled" in row]
    notes = [f"{why.count(reason)} rows of `ICL()` {reason}." for reason in dict.fromkeys(why)]
    if summary.set_aside:
        notes.append(
            f"Set aside: {summary.set_aside} rows whose settings are not those with which most "
            "seeds were run at their place."
        )
    return " ".join(notes)


def last_third(row: Row) -> float:
    """The share by which the true loss fell in the last third of a run's passes."""
    passes, losses = row["curve"]["passes"], row["curve"]["all"]
    before: list[float] = [
        loss for spent, loss in zip(passes, losses, strict=True) if 3 * spent <= 2 * passes[-1]
    ]
    fall: float = 1.0 - losses[-1] / before[-1]
    return fall
