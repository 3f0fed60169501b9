"""The state of a workspace: one file that says what is under way, and what a restart does with it.

::

    idle ─▶ ingesting ─▶ ingested ─▶ trained ─▶ evaluated ─▶ switched ─▶ idle
                └────────────┴──────────┴───────────┴─▶ discarding ─▶ idle
    idle ─▶ switched ─▶ idle        (rollback)
    idle ─▶ forgetting ─▶ idle      (or back to what was refused)

A step's results reach the disk first; one write of ``state.json`` then makes it count. That write
also holds the step's line of the journal, so that a restart can add a line that is missing. Until
``switched``, readers see the version of before. What each phase has on the disk is in
``docs/explanation/architecture.md``; what a restart does with it, in ``recover``.

What was refused (a check failed, or training diverged) stays until somebody promotes it by force or
discards it. New data join it: ``ingesting`` again, and a new candidate is trained on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """What ``state.json`` holds.

    Args:
        current: The version that serves; None before the first fit.
        last: The largest number that a version has had: a number is used once.
        phase: Where the operation is.
        operation: What is under way. Of a fit or an update its ``kind``, the version it began from
            (``base``), the ``number`` of the candidate, the id of the ``first`` new item, ``data``,
            ``strategy``, ``budget``, the ``settings`` it trains with, what was refused and is
            ``joined`` by new data, and, once refused or evaluated, ``failed_checks``.
        memory: How many items the current version has stored, and how many it has seen.
        event: The last line of the journal.
        reverted: The version that was reverted by a rollback that named no version, until other
            data come in. Such a rollback run again, maybe since it was killed, changes nothing.
    """

    current: int | None = None
    last: int = 0
    phase: Phase = "idle"
    operation: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=lambda: {"kept": 0, "seen": 0})
    event: dict[str, Any] | None = None
    reverted: int | None = None

    @property
    def candidate(self) -> int | None:
        """The version that was trained and is not promoted, if there is one."""
        number: int = self.operation.get("number", 0)
        return number if self.phase in ("trained", "evaluated") else None

    @property
    def refused(self) -> bool:
        """Whether a check failed or training diverged, and somebody has to decide."""
        return self.resumable and bool(self.operation.get("failed_checks"))

    @property
    def resumable(self) -> bool:
        """Whether a fit, an update or an adoption can be resumed."""
        return self.phase in ("ingested", "trained", "evaluated")

    @property
    def advice(self) -> str | None:
        """What to do with an operation that can be resumed."""
        if not self.resumable:
            return None
        kind, items = self.operation["kind"], counted(self.operation["data"]["items"])
        drop = f"incontrast {kind} --discard drops it"
        if not self.refused:
            # Only a version that is written holds what was adopted.
            data = kind == "adopt" and self.phase == "ingested"
            how = f"{kind} DATA with its options" if data else kind
            return f"incontrast {how} resumes it, {drop}"
        force = f"incontrast {kind} --force promotes it, " if self.candidate is not None else ""
        return f"the next {kind} with data takes its {items} along; {force}{drop}"

    def unfinished(self) -> Unfinished:
        """The error of a command that has to wait for this operation."""
        kind, name = self.operation["kind"], self.operation["data"]["name"]
        return Unfinished(f"{NAMES[kind]} with {name} is unfinished: {self.advice}")


class StateMachine:
    """Moves a workspace from state to state, while its lock is held.

    ``store`` is open for writing; ``notify`` is called with a sentence about what was done.
    """

    def __init__(self, workspace: Workspace, store: Store, notify: Notify | None = None) -> None:
        self.workspace = workspace
        self.versions = workspace.versions
        self.store = store
        self.notify = notify or (lambda sentence: None)
        self.state = State()

    def move(self, phase: Phase, event: dict[str, Any] | None = None, **changes: Any) -> None:
        """Enter a phase, with a single write; then write its line of the journal."""
        state = asdict(replace(self.state, phase=phase, **changes))
        workspace = self.workspace
        self.state = State(**workspace.journal.commit(workspace.state_file, state, event))
        self._clean()

    def _clean(self) -> None:
        """Delete what the state has no use for, also if that was cut short before."""
        if self.state.phase != "ingested":  # a training that is over
            self.workspace.training_file.unlink(missing_ok=True)
        operation, under_way = self.state.operation, self.state.phase in ("ingesting", "forgetting")
        superseded = operation.get("joined", {}).get("operation", {}).get("number")
        # One that diverged had no version, and left its number to this one.
        if superseded not in (None, operation.get("number")) and not under_way:
            self._remove_candidate(superseded)

    def log(self, step: str, **about: Any) -> dict[str, Any]:
        """An event of the candidate that is under way, for the journal."""
        return {"step": step, "version": self.state.operation["number"], **about}

    def recover(self) -> dict[str, Any] | None:
        """Read the state, and do what a restart does first.

        Returns the operation that had switched to another version, and is finished now.
        """
        self.workspace.sweep()
        self.state = self.workspace.state()
        self._clean()
        event = self.state.event
        if event is not None and [event] != self.workspace.journal.events(1):
            self.workspace.journal.add(event)
        operation = self.state.operation
        if self.state.phase == "ingesting":
            self.cancel_ingest()
        elif self.state.phase == "discarding":
            self.discard()
        elif self.state.phase == "forgetting":
            self._forget()
        elif self.state.phase == "switched":
            self._finish()
            return operation
        elif self.state.phase == "ingested" and self.versions.exists(operation["number"]):
            try:
                self.trained(self.versions.record(operation["number"])["outcome"])
            except Damaged:
                self.versions.remove(operation["number"])  # it is trained again
        return None

    # A fit or an update --------------------------------------------------------------------------

    def ingesting(self, operation: dict[str, Any]) -> None:
        """New items begin to arrive; what was refused before is joined by them."""
        operation = {**operation, "joined": self._refused()}
        self.move("ingesting", operation=operation, reverted=None)

    def _refused(self) -> dict[str, Any]:
        """The phase and operation to come back to: what was refused, or nothing."""
        nothing: dict[str, Any] = {"phase": "idle", "operation": {}}
        if self.state.refused:  # of what was refused even earlier, nothing is left to come back to
            operation = {**self.state.operation, "joined": nothing}
            return {"phase": self.state.phase, "operation": operation}
        return nothing

    def cancel_ingest(self) -> None:
        """Delete the items that had begun to arrive; what was refused before stays."""
        operation = self.state.operation
        self.store.drop_from(operation["first"] + operation["data"]["items"])
        joined = operation["joined"]
        self.move(joined["phase"], operation=joined["operation"])

    def ingested(self, incoming: dict[str, Any], seconds: float) -> None:
        """All new items are in the store.

        ``incoming`` has a ``name``, a ``fingerprint``, the number of ``items`` and of those that
        were ``known`` already, and reasons for ``skipped`` files.
        """
        operation = self.state.operation
        before = operation["data"]
        data = {
            "name": ", ".join(part["name"] for part in [*before["parts"], incoming]),
            "items": before["items"] + incoming["items"],
            "skipped": [*before["skipped"], *incoming["skipped"]],
            "parts": [*before["parts"], incoming],
        }
        first = operation["first"] + before["items"]
        event = self.log("ingest", data=incoming, first=first, seconds=seconds)
        self.move("ingested", event, operation={**operation, "data": data})

    def _remove_candidate(self, number: int) -> None:
        if self.versions.exists(number):
            self.versions.remove(number)
        self.workspace.report_file(number).unlink(missing_ok=True)

    def next_number(self) -> int:
        """The number of the next version."""
        return max([self.state.last, *self.versions.numbers()]) + 1

    def retry(self, how: dict[str, Any]) -> None:
        """Train on the refused items once more, towards another version.

        ``how`` are the ``strategy``, ``budget``, ``only_if_drift`` and ``settings`` of this time.
        """
        number = self.next_number()
        changes = {"number": number, "failed_checks": [], "joined": self._refused()}
        operation = {**self.state.operation, **how, **changes}
        self.move("ingested", operation=operation, last=number - 1)

    def tolerate(self, tolerance: float) -> None:
        """Judge the candidate by another tolerance, also if it was judged before."""
        phase = self.state.phase
        operation = {**self.state.operation, "tolerance": tolerance}
        if phase == "evaluated":
            phase, operation["failed_checks"] = "trained", []
        self.move(phase, operation=operation)

    def failed(self, error: Exception) -> None:
        """Training came to nothing; the new items stay."""
        failed = [f"training diverged: {error}"]
        self.workspace.training_file.unlink(missing_ok=True)
        self.move("ingested", operation={**self.state.operation, "failed_checks": failed})

    def trained(self, outcome: dict[str, Any]) -> None:
        """The candidate has its folder; ``outcome`` as JSON has it."""
        shown = ("strategy", "from_scratch", "epochs", "steps", "forward_passes", "stopped")
        figures = {key: outcome[key] for key in (*shown, "seconds")}
        operation = {**self.state.operation, "failed_checks": []}
        event = self.log("train", kind=operation["kind"], **figures)
        self.move("trained", event, operation=operation)

    def evaluated(
        self, evaluation: dict[str, Any], outcome: dict[str, Any], seconds: float
    ) -> None:
        """The candidate passed its checks or did not."""
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
        operation = self.state.operation
        number, failed = operation["number"], operation["failed_checks"]
        event, memory = self.log("promote", despite=failed), self._counts(number)
        self.move("switched", event, current=number, last=number, memory=memory)
        self._finish()
        self.notify(f"version {number} is the current one")

    def discard(self) -> None:
        """Delete what is under way."""
        operation, last = self.state.operation, self.state.last
        number, first, items = operation["number"], operation["first"], operation["data"]["items"]
        if self.versions.exists(number):
            last = number
        self.move("discarding", last=last)
        self._remove_candidate(number)
        if operation["base"] is not None:
            # The journal has their ids, which no other items may get from now on.
            self.store.remove(range(first, first + items), discarded=True)
        else:
            self.store.drop_from(first)
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
            # Of what was under way, the items go when the rest is deleted that nobody needs.
            events = self.workspace.journal.events()
            self.state = State(
                last=max(self.versions.numbers(), default=0), event=events[-1] if events else None
            )
        if to is None and self.state.reverted is not None and before is not None:
            return before
        reverted = before if to is None else None
        if to is None:
            to = self._parent(before)
        if to == self.state.candidate:
            raise Unfinished(
                f"version {to} was never promoted: incontrast update --force does that"
            )
        self.versions.verify(to)
        if self.state.resumable:
            self.discard()
        event = {"step": "rollback", "version": to, "before": before}
        about = {"operation": {"kind": "rollback", "number": to}, "reverted": reverted}
        self.move("switched", event, current=to, memory=self._counts(to), **about)
        self._finish()
        return to

    def _parent(self, current: int | None) -> int:
        parent: int | None = None
        if current is not None:
            parent = self.versions.record(current)["parent"]
        if parent is None:
            raise WorkspaceError("there is no earlier version to go back to")
        if not self.versions.exists(parent):
            others = ", ".join(str(each) for each in self.versions.numbers() if each != current)
            raise WorkspaceError(
                f"version {parent}, from which {current} was created, is no longer kept: "
                f"incontrast rollback --to N goes to another (there are {others})"
            )
        return parent

    def forget(self, ids: list[int], items: int) -> None:
        """Delete items for good, so many of which are stored."""
        check_no_link(self.workspace.reports, "a folder of reports")  # before anything is begun
        event = {"step": "forgetting", "ids": ids}
        operation = {"ids": ids, "items": items, "joined": self._refused()}
        self.move("forgetting", event, operation=operation)
        self._forget()

    def _forget(self) -> None:
        operation = self.state.operation
        with self.workspace.writing_reports():
            self.store.remove(operation["ids"], forgotten=True)
            # Reports show pictures of items; `incontrast report` writes them again.
            for pattern in ("version-*.html", "history.html"):
                for page in self.workspace.reports.glob(pattern):
                    page.unlink()
        ids, items, joined = (operation[name] for name in ("ids", "items", "joined"))
        event = {"step": "forget", "ids": ids, "items": items}
        current = self.state.current
        memory = self.state.memory if current is None else self._counts(current)
        self.move(joined["phase"], event, operation=joined["operation"], memory=memory)

    def _counts(self, number: int) -> dict[str, int]:
        """How many items the memory of a version has stored, and has seen."""
        extent = self.versions.extent(number)
        columns = self.store.columns(extent.arrivals)
        policy = self.workspace.settings["learner"]["policy"]
        seen = extent.arrivals - int(extent.forgotten(columns).sum()) + extent.elsewhere
        return {"kept": int(extent.stored(columns, policy.get("bytes")).sum()), "seen": seen}

    # Cleaning up ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Delete versions beyond those to keep, then the items that none of the others needs.

        The oldest go first, but never the current one nor the one it was created from. While a
        version cannot be read, nobody knows what is needed, and everything stays.
        """
        keep: int = self.workspace.settings["keep"]
        current = self.state.current
        numbers = self.versions.numbers()
        try:
            parent = None if current is None else self.versions.record(current)["parent"]
            old = [number for number in numbers if number not in (current, parent)]
            for number in old[: max(0, len(numbers) - keep)]:
                self.versions.remove(number)
                self.workspace.report_file(number).unlink(missing_ok=True)
                reason = f"{keep} are kept"
                self.move("switched", {"step": "drop", "version": number, "reason": reason})
            extents = [self.versions.extent(number) for number in self.versions.numbers()]
        except Damaged:
            pass
        else:
            self.store.keep_only(extents)
        self.move("idle", operation={})
