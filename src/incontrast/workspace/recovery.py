"""Ending what was begun: promoted, dropped or forgotten for good, also after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from incontrast.memory import Store
from incontrast.workspace.errors import Damaged
from incontrast.workspace.files import sweep
from incontrast.workspace.housekeeping import tidy

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["Notify", "Recovery"]

Notify = Callable[[str], None]


class Recovery:
    """What everything that writes to a workspace does first, and ends with; the lock is held.

    Args:
        workspace: The workspace.
        store: Its store, open for writing.
        notify: Called with a sentence about what was done.
    """

    def __init__(self, workspace: Workspace, store: Store, notify: Notify | None = None) -> None:
        self.workspace = workspace
        self.versions = workspace.versions
        self.journal = workspace.journal
        self.store = store
        self.notify = notify or (lambda sentence: None)

    def recover(self) -> dict[str, Any] | None:
        """Clear away what an interruption has left.

        Returns:
            What was promoted and is finished now.
        """
        self.versions.sweep()
        sweep(self.workspace.folder)
        if self.store.note("forgetting") is not None:
            self.forget()
        rolled_back = self.store.note("rollback")
        pending: dict[str, Any] | None = self.store.note("pending")
        try:
            current = self.versions.current()
        except Damaged:
            return None  # a rollback can set the pointer again; all else will say what is wrong
        if rolled_back is not None:
            if current == rolled_back["to"]:
                self.journal.add("rollback", version=current, before=rolled_back["before"])
            self.store.set_note("rollback", None)
        finished = None
        if pending is not None and (pending.get("dropped") or not pending["complete"]):
            self.discard(pending)
        elif pending is not None and current == pending["number"]:
            told = self._tell_missing(pending)
            self.finish(pending, told="promote" in told)
            finished = pending
        elif pending is not None:
            self._tell_missing(pending)
        tidy(self.workspace, self.store)
        return finished

    def discard(self, pending: dict[str, Any]) -> None:
        """Drop what is under way."""
        number, first = pending["number"], pending["first"]
        self.store.set_note("pending", {**pending, "dropped": True})  # `recover` goes on with it
        made = self.versions.folder(number).is_dir()
        if made:
            self.store.set_note("last", number)  # a number is used once
            self.versions.remove(number)
        self.workspace.report_file(number).unlink(missing_ok=True)
        if pending["complete"] and pending["base"] is not None:
            # The journal has told their ids, which nothing else may bear from now on.
            ids = torch.arange(first, first + pending["data"]["items"])
            self.store.remove(ids, forgotten=True)
        else:
            self.store.drop_from(first)
        self.journal.add("discard", version=number, made=made, data=pending["data"])
        self.store.set_note("pending", None)

    def _tell_missing(self, pending: dict[str, Any]) -> set[str]:
        """Write the lines of the journal that were cut off from their steps.

        Returns:
            The steps that were told before.
        """
        number = pending["number"]
        told: set[str] = set()
        for event in self.journal.events():
            if event.get("version") == number:
                # A number that was dropped before there was a version is given again.
                told = set() if event["step"] == "discard" else told | {event["step"]}
        if "ingest" not in told:
            self.tell_ingest(pending)
        with suppress(Damaged):  # which the next step will name
            if "train" not in told and self.versions.folder(number).is_dir():
                self.tell_train(number)
            evaluation = self.versions.evaluation(number)
            if "evaluate" not in told and evaluation is not None:
                self.tell_evaluate(number, evaluation)
        return told

    def tell_ingest(self, pending: dict[str, Any], **about: float) -> None:
        version, data, first = pending["number"], pending["data"], pending["first"]
        self.journal.add("ingest", version=version, data=data, first=first, **about)

    def tell_train(self, number: int, **about: float) -> None:
        outcome = self.versions.record(number)["outcome"]
        shown = ("strategy", "from_scratch", "epochs", "steps", "passes", "stopped")
        told = {key: outcome[key] for key in shown} | {"training_seconds": outcome["seconds"]}
        self.journal.add("train", version=number, **told, **about)

    def tell_evaluate(self, number: int, evaluation: dict[str, Any], **about: float) -> None:
        objections = evaluation["objections"]
        self.journal.add("evaluate", version=number, objections=objections, **about)

    def finish(self, pending: dict[str, Any], *, told: bool = False) -> None:
        """After the pointer was moved: say so, and make room."""
        number = pending["number"]
        if not told:
            evaluation = self.versions.evaluation(number) or {"objections": []}
            self.journal.add("promote", version=number, despite=evaluation["objections"])
        self.store.set_note("last", number)
        self.store.set_note("pending", None)
        tidy(self.workspace, self.store)
        self.notify(f"version {number} is the current one")

    def forget(self) -> int:
        """Delete the items that are noted to be forgotten; returns how many there were."""
        noted = self.store.note("forgetting")
        ids: list[int] = noted["ids"]
        # Reports show pictures of items; `incontrast report` makes them again.
        for page in self.workspace.reports.glob("*.html"):
            page.unlink()
        self.store.remove(torch.tensor(ids), forgotten=True)
        self.journal.add("forget", items=noted["items"], ids=ids)
        self.store.set_note("forgetting", None)
        return int(noted["items"])
