"""Words that several places say."""

from __future__ import annotations

__all__ = ["NAMES", "counted"]

NAMES = {"fit": "a fit", "update": "an update"}


def counted(count: int) -> str:
    """So many items, in words."""
    return f"{count:,} item{'' if count == 1 else 's'}"
