"""Making room: versions that are too old, and items that no version needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from incontrast.memory import Store
from incontrast.memory.store import PRESENT

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["drop_later", "tidy"]


def drop_later(workspace: Workspace, store: Store, current: int | None) -> None:
    """Delete the versions that a rollback has left behind: a new one takes their place."""
    for number in workspace.versions.numbers():
        if current is None or number > current:
            store.set_note("last", max(number, store.note("last") or 0))
            workspace.versions.remove(number)
            workspace.journal.add("drop", version=number, reason="rolled back")


def tidy(workspace: Workspace, store: Store) -> None:
    """Delete versions beyond those to keep, then the items that none of the others needs."""
    versions = workspace.versions
    keep: int = workspace.settings["keep"]
    for number in versions.numbers()[:-keep]:
        versions.remove(number)
        workspace.journal.add("drop", version=number, reason=f"{keep} are kept")
    states = [versions.memory_state(number) for number in versions.numbers()]
    if all(threshold == float("inf") for _, threshold in states):
        return
    keys, _, there = store.columns(max(arrivals for arrivals, _ in states))
    needed = torch.zeros(len(keys), dtype=torch.bool)
    for arrivals, threshold in states:
        needed[:arrivals] |= keys[:arrivals] < threshold
    surplus = ((there == PRESENT) & ~needed).nonzero()[:, 0]
    if len(surplus):
        store.remove(surplus)
