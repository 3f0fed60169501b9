"""Words for people."""

from collections.abc import Iterator, Mapping
from typing import Any


def counted(count: int, thing: str = "item") -> str:
    """So many of something.

    >>> counted(1, "epoch"), counted(2000)
    ('1 epoch', '2,000 items')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time as one says it.

    >>> duration(1.26), duration(45), duration(600), duration(9000)
    ('1.3 s', '45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def part_of_the_way(kept: float) -> str:
    """Why the encoder is not the one that training ended with."""
    return f"{kept:.0%} of the change is kept: all of it would do more harm than good"


def probe_changes(probe: Any) -> Iterator[tuple[str, float, float]]:
    """What a probe says of an encoder before and after, by name.

    Args:
        probe: ``ProbeScores`` before and after, or the same out of JSON; None if there is none.
    """
    if probe is None:
        return
    change = _plain(probe)
    earlier, later = _plain(change["before"]), _plain(change["after"])
    for part in ("old", "new", "all"):
        if earlier[part] is not None and later[part] is not None:
            first, last = _plain(earlier[part]), _plain(later[part])
            for figure, name in PROBE_FIGURES.items():
                yield f"{name} of {part} classes", first[figure], last[figure]


PROBE_FIGURES = {"knn_accuracy": "kNN accuracy", "precision": "retrieval precision"}


def _plain(part: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = part._asdict() if hasattr(part, "_asdict") else part
    return found
