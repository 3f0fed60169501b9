"""Words for people."""

from __future__ import annotations


def counted(count: int, thing: str = "item") -> str:
    """So many of something.

    >>> counted(1, "epoch"), counted(2000)
    ('1 epoch', '2,000 items')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
