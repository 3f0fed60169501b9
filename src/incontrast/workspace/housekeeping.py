"""Making room: versions that are too old, and items that no version needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from incontrast.memory import Store
from incontrast.memory.store import PRESENT
from incontrast.workspace.errors import Damaged

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["tidy"]


def tidy(workspace: Workspace, store: Store) -> None:
    """Delete versions beyond those to keep, then the items that none of the others needs.

    The oldest go first, but never the current one nor the one it was made from. While something is
    under way, or a version cannot be read, nobody knows what is needed, and everything stays.
    """
    if store.note("pending") is not None:
        return
    versions = workspace.versions
    keep: int = workspace.settings["keep"]
    try:
        current = versions.current()
        way_back = set() if current is None else {current, versions.record(current)["parent"]}
        numbers = versions.numbers()
        old = [number for number in numbers if number not in way_back]
        for number in old[: max(0, len(numbers) - keep)]:
            versions.remove(number)
            workspace.journal.add("drop", version=number, reason=f"{keep} are kept")
        extents = [versions.extent(number) for number in versions.numbers()]
    except Damaged:
        return
    if all(math.isinf(extent.threshold) and not extent.skipped for extent in extents):
        return
    keys, _, there = store.columns(max(extent.arrivals for extent in extents))
    needed = torch.zeros(len(keys), dtype=torch.bool)
    for extent in extents:
        needed[: extent.arrivals] |= extent.holds(keys)
    surplus = ((there == PRESENT) & ~needed).nonzero()[:, 0]
    if len(surplus):
        store.remove(surplus)
