"""Taking back: an update that is under way, versions, and items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from incontrast.memory.store import PRESENT
from incontrast.workspace.errors import Unfinished, WorkspaceError
from incontrast.workspace.recovery import Recovery
from incontrast.workspace.words import NAMES

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["discard_pending", "forget_items", "go_back"]


def discard_pending(workspace: Workspace, kind: str | None) -> bool:
    """Drop what is under way, if it is of this kind; returns whether something was."""
    with workspace.writing("discard") as store:
        recovery = Recovery(workspace, store)
        found = store.note("pending")
        if found is not None and kind is not None and found["kind"] != kind:
            raise Unfinished(
                f"what is unfinished is {NAMES[found['kind']]}, which incontrast "
                f"{found['kind']} --discard drops"
            )
        finished = recovery.recover()
        pending = store.note("pending")
        if pending is not None:
            recovery.discard(pending)
    return found is not None and finished is None


def go_back(workspace: Workspace, to: int | None) -> int:
    """Point to another version; returns its number."""
    versions = workspace.versions
    with workspace.writing("rollback") as store:
        recovery = Recovery(workspace, store)
        cut_short = store.note("rollback")
        recovery.recover()
        pending = store.note("pending")
        before: int | None = None
        if to is None and cut_short is not None:
            to = cut_short["to"]  # not one further
            if to == versions.current():
                return int(to)
        if to is None:
            before = versions.current()
            to = None if before is None else versions.record(before)["parent"]
            if to is None:
                raise WorkspaceError("there is no earlier version to go back to")
            if not versions.folder(to).is_dir():
                others = ", ".join(str(number) for number in versions.numbers() if number != before)
                raise WorkspaceError(
                    f"version {to}, from which {before} was made, is no longer kept: "
                    f"incontrast rollback --to N goes to another (there are {others})"
                )
        if pending is not None and to == pending["number"]:
            raise Unfinished(
                f"version {to} was never promoted: incontrast update --force does that"
            )
        versions.verify(to)
        if pending is not None:
            recovery.discard(pending)
        store.set_note("rollback", {"to": to, "before": before})
        versions.promote(to)
        workspace.journal.add("rollback", version=to, before=before)
        store.set_note("rollback", None)
    return to


def forget_items(workspace: Workspace, ids: Iterable[int], hashes: Iterable[bytes]) -> int:
    """Delete items and their bytes; returns how many there were."""
    wanted = torch.tensor(sorted(set(ids)), dtype=torch.int64)
    with workspace.writing("forget") as store:
        recovery = Recovery(workspace, store)
        recovery.recover()
        if store.note("pending") is not None:
            raise Unfinished(
                "an update is unfinished: run incontrast update to finish it, or "
                "incontrast update --discard to drop it, then forget"
            )
        arrivals = store.arrivals()
        unknown = wanted[(wanted < 0) | (wanted >= arrivals)].tolist()
        if unknown:
            there = f"ids go from 0 to {arrivals - 1}" if arrivals else "there are no items"
            raise WorkspaceError(f"no items have the ids {unknown[:5]}: {there}")
        found = torch.unique(torch.cat([wanted, store.find(hashes)]))
        if len(found) == 0:
            store.erase()  # of what was forgotten while somebody was reading
            return 0
        workspace.journal.add("forgetting", ids=found.tolist())
        states = store.columns(arrivals).states[found]
        count = int((states == PRESENT).sum())
        store.set_note("forgetting", {"ids": found.tolist(), "items": count})  # see `recover`
        removed = recovery.forget()
        store.erase()
    return removed
