"""The state of a workspace: one file that says what is in progress, and what a restart does.

::

    idle ─▶ ingesting ─▶ ingested ─▶ trained ─▶ evaluated ─▶ switched ─▶ idle
                └────────────┴──────────┴───────────┴─▶ discarding ─▶ idle
    idle ─▶ switched ─▶ idle        (rollback)
    idle ─▶ forgetting ─▶ idle      (or back to what was refused)

The results of a step reach the disk first; one write of ``state.json`` then makes it count. That
write also contains the step's line of the journal, so that a restart can add a missing line. Until
``switched``, readers see the previous version. ``docs/explanation/architecture.md`` lists what is
durable in each phase; ``recover`` is what a restart does.

A refused candidate (a check failed, or training diverged) stays until somebody promotes or discards
it. New data join it: ``ingesting`` again, and a new candidate is trained on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from incontrast.memory.store import Store
from incontrast.text import counted
from incontrast.workspace.files import Damaged, Unfinished, WorkspaceError, check_no_link

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

NAMES = {"fit": "a fit", "update": "an update", "adopt": "an adoption"}

Notify = Callable[[str], None]
Phase = Literal[
    "idle", "ingesting", "ingested", "trained", "evaluated", "switched", "discarding", "forgetting"
]


@dataclass(frozen=True, kw_only=True)
class State:
    """The content of ``state.json``.

    The ``operation`` of a fit, an update or an adoption has its ``kind``, the version it started
    from (``base``), the ``number`` of the candidate, the id of the ``first`` new item, ``data``,
    ``strategy``, ``budget``, the ``settings`` of training, the refused state that it has ``joined``
    and, once refused or evaluated, ``failed_checks``.
    """

    current: int | None = None  # the version that serves; None before the first fit
    last: int = 0  # the largest number that a version has had: a number is used once
    phase: Phase = "idle"
    operation: dict[str, Any] = field(default_factory=dict)
    # Of the current version: how many items are stored, and how many it has seen.
    memory: dict[str, int] = field(default_factory=lambda: {"kept": 0, "seen": 0})
    event: dict[str, Any] | None = None  # the last line of the journal
    # The version that a rollback to no given version has left, until other data come in: such a
    # rollback run again, maybe because it was killed, changes nothing.
    reverted: int | None = None

    @property
    def resumable(self) -> bool:
        """Whether a fit, an update or an adoption can be resumed."""
        return self.phase in ("ingested", "trained", "evaluated")

    @property
    def refused(self) -> bool:
        """Whether a check failed or training diverged, and somebody has to decide."""
        return self.resumable and bool(self.operation.get("failed_checks"))

    @property
    def candidate(self) -> int | None:
        """The version that was trained and is not promoted, if there is one."""
        number: int = self.operation.get("number", 0)
        return number if self.phase in ("trained", "evaluated") else None

    @property
    def advice(self) -> str | None:
        """What to do with an operation that can be resumed."""
        if not self.resumable:
            return None
        kind, items = self.operation["kind"], counted(self.operation["data"]["items"])
        drop = f"incontrast {kind} --discard drops it"
        if not self.refused:
            # Only a version that is written holds what was adopted.
            again = kind == "adopt" and self.phase == "ingested"
            command = f"{kind} DATA with its options" if again else kind
            return f"incontrast {command} resumes it, {drop}"
        force = f"incontrast {kind} --force promotes it, " if self.candidate is not None else ""
        return f"the next {kind} with data takes its {items} along; {force}{drop}"

    def unfinished(self) -> Unfinished:
        """The error of a command that has to wait for this operation."""
        kind, name = self.operation["kind"], self.operation["data"]["name"]
        return Unfinished(f"{NAMES[kind]} with {name} is unfinished: {self.advice}")


class StateMachine:
    """Moves a workspace from state to state, while its lock is held.

    ``store`` is open for writing; ``notify`` is called with a sentence about each step.
    """

    def __init__(self, workspace: Workspace, store: Store, notify: Notify | None = None) -> None:
        self.workspace, self.versions = workspace, workspace.versions
        self.store = store
        self.notify = notify or (lambda sentence: None)
        self.state = State()

    def move(self, phase: Phase, event: dict[str, Any] | None = None, **changes: Any) -> None:
        """Enter a phase with a single write; then add its line to the journal."""
        state = asdict(replace(self.state, phase=phase, **changes))
        workspace = self.workspace
        self.state = State(**workspace.journal.commit(workspace.state_file, state, event))
        self._clean()

    def _clean(self) -> None:
        """Delete what the state has no use for, also if that was interrupted before."""
        if self.state.phase != "ingested":  # training is over
            self.workspace.training_file.unlink(missing_ok=True)
        operation = self.state.operation
        superseded = operation.get("joined", {}).get("operation", {}).get("number")
        # One that diverged had no version, and left its number to this one.
        used = superseded in (None, operation.get("number"))
        if not used and self.state.phase not in ("ingesting", "forgetting"):
            self._remove_version(superseded)

    def log(self, step: str, **fields: Any) -> dict[str, Any]:
        """An event of the candidate, for the journal."""
        return {"step": step, "version": self.state.operation["number"], **fields}

    def recover(self) -> dict[str, Any] | None:
        """Read the state, and do what a restart does first.

        Returns the operation that had switched to another version, and is finished now.
        """
        self.workspace.sweep()
        self.state = self.workspace.state()
        self._clean()
        event, operation = self.state.event, self.state.operation
        if event is not None and [event] != self.workspace.journal.events(1):
            self.workspace.journal.add(event)
        match self.state.phase:
            case "ingesting":
                self.cancel_ingest()
            case "discarding":
                self.discard()
            case "forgetting":
                self._forget()
            case "switched":
                self._finish()
                return operation
            case "ingested" if self.versions.exists(operation["number"]):
                try:
                    self.trained(self.versions.record(operation["number"])["outcome"])
                except Damaged:
                    self.versions.remove(operation["number"])  # it is trained again
        return None

    # A fit, an update or an adoption -------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the next version."""
        return max([self.state.last, *self.versions.numbers()]) + 1

    def ingesting(self, operation: dict[str, Any]) -> None:
        """New items begin to arrive; they join refused ones."""
        operation = {**operation, "joined": self._refused()}
        self.move("ingesting", operation=operation, reverted=None)

    def _refused(self) -> dict[str, Any]:
        """The phase and operation to return to: the refused ones, or none."""
        nothing: dict[str, Any] = {"phase": "idle", "operation": {}}
        if not self.state.refused:
            return nothing
        # Nothing is left of what had been refused even earlier.
        operation = {**self.state.operation, "joined": nothing}
        return {"phase": self.state.phase, "operation": operation}

    def cancel_ingest(self) -> None:
        """Delete the items that have begun to arrive; refused ones stay."""
        operation, joined = self.state.operation, self.state.operation["joined"]
        self.store.drop_from(operation["first"] + operation["data"]["items"])
        self.move(joined["phase"], operation=joined["operation"])

    def ingested(self, part: dict[str, Any], seconds: float) -> None:
        """All new items are in the store; ``part`` describes them, see ``ingest``."""
        operation = self.state.operation
        before = operation["data"]
        parts = [*before["parts"], part]
        data = {
            "name": ", ".join(part["name"] for part in parts),
            "items": before["items"] + part["items"],
            "skipped": [*before["skipped"], *part["skipped"]],
            "parts": parts,
        }
        first = operation["first"] + before["items"]
        event = self.log("ingest", data=part, first=first, seconds=seconds)
        self.move("ingested", event, operation={**operation, "data": data})

    def _remove_version(self, number: int) -> None:
        if self.versions.exists(number):
            self.versions.remove(number)
        self.workspace.report_file(number).unlink(missing_ok=True)

    def retry(self, plan: dict[str, Any]) -> None:
        """Train on the refused items once more, by another plan, towards another version."""
        number = self.next_number()
        changes = {"number": number, "failed_checks": [], "joined": self._refused()}
        operation = {**self.state.operation, **plan, **changes}
        self.move("ingested", operation=operation, last=number - 1)

    def tolerate(self, tolerance: float) -> None:
        """Evaluate the candidate by another tolerance, once more if necessary."""
        phase = self.state.phase
        operation = {**self.state.operation, "tolerance": tolerance}
        if phase == "evaluated":
            phase, operation["failed_checks"] = "trained", []
        self.move(phase, operation=operation)

    def failed(self, error: Exception) -> None:
        """Training failed; the new items stay."""
        failed = [f"training diverged: {error}"]
        self.workspace.training_file.unlink(missing_ok=True)
        self.move("ingested", operation={**self.state.operation, "failed_checks": failed})

    def trained(self, outcome: dict[str, Any]) -> None:
        """The candidate has its folder; ``outcome`` is JSON."""
        operation = {**self.state.operation, "failed_checks": []}
        names = ("strategy", "from_scratch", "epochs", "steps", "forward_passes", "stopped")
        figures = {name: outcome[name] for name in (*names, "seconds")}
        event = self.log("train", kind=operation["kind"], **figures)
        self.move("trained", event, operation=operation)

    def evaluated(
        self, evaluation: dict[str, Any], outcome: dict[str, Any], seconds: float
    ) -> None:
        """The candidate was checked."""
        operation = self.state.operation
        failed = evaluation["failed_checks"]
        self.versions.set_evaluation(operation["number"], evaluation)
        figures = {name: outcome[name] for name in ("loss", "change_ratio", "probe")}
        figures["worse"] = outcome.get("worse", [])
        figures["overlap"] = evaluation.get("movement", {}).get("overlap")
        event = self.log("evaluate", failed_checks=failed, **figures, seconds=seconds)
        self.move("evaluated", event, operation={**operation, "failed_checks": failed})

    def promote(self) -> None:
        """Make the candidate the current version, and delete what nobody needs any more."""
        number = self.state.operation["number"]
        event = self.log("promote", despite=self.state.operation["failed_checks"])
        counts = self._counts(number)
        self.move("switched", event, current=number, last=number, memory=counts)
        self._finish()
        self.notify(f"version {number} is the current one")

    def discard(self) -> None:
        """Delete what is in progress."""
        operation, last = self.state.operation, self.state.last
        number = operation["number"]
        if self.versions.exists(number):
            last = number
        self.move("discarding", last=last)
        self._remove_version(number)
        if operation["base"] is None:
            self.store.drop_from(operation["first"])
        else:  # the journal has their ids, which are never used for other items
            self._remove_items()
        event = self.log("discard", trained=last == number, data=operation["data"])
        self.move("idle", event, operation={})

    # Rollback and forget -------------------------------------------------------------------------

    def rollback(self, to: int | None) -> int:
        """Make another version the current one; returns its number."""
        before: int | None = None
        try:
            self.recover()
            before = self.state.current
        except Damaged:
            if to is None:
                raise
            # The items of what was in progress go when those are deleted that nobody needs.
            events = self.workspace.journal.events()
            last = max(self.versions.numbers(), default=0)
            self.state = State(last=last, event=events[-1] if events else None)
        reverted = None
        if to is None:
            if self.state.reverted is not None and before is not None:
                return before
            to, reverted = self._parent(before), before
        if to == self.state.candidate:
            raise Unfinished(
                f"version {to} was never promoted: incontrast update --force does that"
            )
        self.versions.verify(to)
        if self.state.resumable:
            self.discard()
        event = {"step": "rollback", "version": to, "before": before}
        operation = {"kind": "rollback", "number": to}
        changes = {"operation": operation, "memory": self._counts(to), "reverted": reverted}
        self.move("switched", event, current=to, **changes)
        self._finish()
        return to

    def _parent(self, current: int | None) -> int:
        parent = None if current is None else self.versions.record(current)["parent"]
        if parent is None:
            raise WorkspaceError("there is no earlier version to go back to")
        if not self.versions.exists(parent):
            others = ", ".join(str(each) for each in self.versions.numbers() if each != current)
            raise WorkspaceError(
                f"version {parent}, from which {current} was created, is no longer kept: "
                f"incontrast rollback --to N goes to another (there are {others})"
            )
        return int(parent)

    def forget(self, ids: list[int], items: int) -> None:
        """Delete items for good; ``items`` of them are stored."""
        check_no_link(self.workspace.reports, "a folder of reports")  # before anything is begun
        operation = {"ids": ids, "items": items, "joined": self._refused()}
        self.move("forgetting", {"step": "forgetting", "ids": ids}, operation=operation)
        self._forget()

    def _forget(self) -> None:
        ids, items, joined = (self.state.operation[name] for name in ("ids", "items", "joined"))
        with self.workspace.writing_reports():
            self.store.remove(ids, forgotten=True)
            # Reports show pictures of items; `incontrast report` writes them again.
            for pattern in ("version-*.html", "history.html"):
                for page in self.workspace.reports.glob(pattern):
                    page.unlink()
        current, memory = self.state.current, self.state.memory
        memory = memory if current is None else self._counts(current)
        event = {"step": "forget", "ids": ids, "items": items}
        self.move(joined["phase"], event, operation=joined["operation"], memory=memory)

    def _counts(self, number: int) -> dict[str, int]:
        """How many items the memory of a version has stored, and has seen."""
        extent = self.versions.extent(number)
        columns = self.store.columns(extent.arrivals)
        largest = self.workspace.settings["learner"]["policy"].get("bytes")
        seen = extent.arrivals - int(extent.forgotten(columns).sum()) + extent.elsewhere
        return {"kept": int(extent.stored(columns, largest).sum()), "seen": seen}

    def _finish(self) -> None:
        """Delete versions beyond those to keep, and the items that none of the others needs.

        The oldest go first, but never the current one nor its parent. While the current one cannot
        be read, everything stays.
        """
        keep: int = self.workspace.settings["keep"]
        current, numbers = self.state.current, self.versions.numbers()
        with suppress(Damaged):
            parent = None if current is None else self.versions.record(current)["parent"]
            old = [number for number in numbers if number not in (current, parent)]
            for number in old[: max(0, len(numbers) - keep)]:
                self._remove_version(number)
                reason = f"{keep} are kept"
                self.move("switched", {"step": "drop", "version": number, "reason": reason})
        self._remove_items()
        self.move("idle", operation={})

    def _remove_items(self) -> None:
        """Delete the items that no version needs; all stay while a version cannot be read."""
        with suppress(Damaged):
            numbers = self.versions.numbers()
            self.store.keep_only([self.versions.extent(number) for number in numbers])
