"""What captions say of the rows a table rests on."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paper.row_file import Row
from paper.summary import Place, Summary

__all__ = ["last_third", "provenance", "resolution", "size", "sizes", "where_retraining_ends"]


def sizes(summary: Summary, sets: Sequence[str]) -> str:
    """The sizes and seeds of data sets."""
    found = [told for name in sets if (told := size(summary, name))]
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


def size(summary: Summary, name: str) -> str:
    """The sizes of a data set and the seeds it was run with, for a caption."""
    places = [place for place in summary.places if place.set == name]
    rows = [row for place in places for row in summary.finished(place, "retraining")]
    if not rows:
        return ""
    row, settings = rows[-1], rows[-1]["settings"]
    domain = settings["domain"]
    kind = domain.get("encoder", {"Graphs": "GCN", "Vectors": "MLP"}.get(domain["type"], ""))
    pixels = f", {domain['size']}×{domain['size']} px" if "size" in domain else ""
    count = row["counts"]["old"] + row["counts"]["new"]
    return (
        f"{row['data']}: {count:,} items{pixels}, {_ENCODERS.get(kind, kind)}, "
        f"patience {settings['patience']}, at most {settings['max_epochs']} epochs, "
        f"{_limit(settings['limit'])}"
        f"{_seeds_of(summary, name)}, {row['counts']['held_out']} held out"
    )


def _seeds_of(summary: Summary, name: str) -> str:
    """The seeds of a data set at the growth ratios of tables, apart where they differ."""
    places = [place for place in summary.places if place.set == name]
    places = [place for place in places if place.usual] or places
    seeds = {
        place: tuple(sorted({row["seed"] for row in summary.finished(place, "retraining")}))
        for place in places
    }
    most = max(seeds.values(), key=len)
    others = [
        f"at {place.growth_ratio:g} {', '.join(map(str, found))}"
        for place, found in seeds.items()
        if found != most
    ]
    apart = f"; {'; '.join(others)}" if others else ""
    count = f"{len(most)} seed{'s' if len(most) != 1 else ''}"
    return f"{count} ({', '.join(map(str, most))}{apart})"


_ENCODERS = {
    "resnet18": "ResNet-18",
    "resnet18-standard": "ResNet-18",
    "small": "small encoder",
}


def _limit(share: float) -> str:
    return "" if share == 1.0 else f"{100 * share:g} % of retraining's passes for an update, "
