"""A workspace in words and figures, and what is damaged; without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incontrast.memory.store import Store
from incontrast.text import counted
from incontrast.workspace.files import SUMMARY, Damaged, Journal, WorkspaceError, holder
from incontrast.workspace.stamps import outputs, problems, stamp_of
from incontrast.workspace.state import NAMES, State

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace


def status_of(workspace: Workspace) -> dict[str, Any]:
    """What is there, as JSON."""
    state = workspace.state()
    about: dict[str, Any] = {
        "folder": str(workspace.folder),
        "id": workspace.id,
        "current": state.current,
        "versions": workspace.versions.numbers(),
        "unfinished": _unfinished(state),
        "advice": state.advice,
        "writer": holder(workspace.lock_file),
        "bytes": sum(map(_size, workspace.folder.rglob("*"))),
        "embeddings": [],
    }
    encoder = None
    if state.current is not None:
        record = workspace.versions.record(state.current)
        encoder = record["encoder"]
        domain = workspace.settings["learner"]["domain"]
        about |= {
            "domain": domain.get("name", domain["type"]),
            "created": record["created"],
            **state.memory,
            "policy": _policy(workspace.settings["learner"]["policy"]),
        }
    for file in outputs(workspace):
        try:
            stamp = stamp_of(file) or {}
        except WorkspaceError:
            stamp = {}
        if stamp.get("workspace") == workspace.id:
            about["embeddings"].append(
                {
                    "file": str(file),
                    "version": stamp["version"],
                    "rows": stamp["rows"],
                    "complete": stamp["complete"],
                    "mapped": stamp.get("mapped", {}).get("rows", 0),
                    "current": (stamp["version"], stamp["encoder"]) == (state.current, encoder),
                }
            )
    return about


def _policy(policy: dict[str, Any]) -> str:
    """A memory policy, for people."""
    limits = [f"{policy[unit]:,} {unit}" for unit in ("items", "bytes") if policy.get(unit)]
    kinds = {"KeepAll": "all are kept", "Reservoir": "a random sample", "Queue": "the newest"}
    kind = kinds.get(policy["type"], str(policy.get("name")))
    return f"{kind}, {' and '.join(limits)} at most" if limits else kind


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0  # deleted meanwhile


def unfinished(workspace: Workspace) -> str | None:
    """What was begun and not finished, or was refused, in words; None if there is nothing."""
    try:
        return _unfinished(workspace.state())
    except Damaged:  # which a rollback writes again
        return None


def _unfinished(state: State) -> str | None:
    operation = state.operation
    if state.phase in ("idle", "switched"):
        return None
    if state.phase == "forgetting":
        return (
            f"{counted(operation['items'])} to be forgotten: the next command that writes does it"
        )
    if state.refused:
        failed = "; ".join(operation["failed_checks"])
        if state.candidate is None:
            return f"{NAMES[operation['kind']]} with {operation['data']['name']}: {failed}"
        return f"version {operation['number']} was not promoted: {failed}"
    kind = operation["kind"]
    outstanding = {
        "ingesting": "interrupted while it ingested items",
        "ingested": "to be trained" if kind != "adopt" else "interrupted before it was complete",
        "trained": "to be evaluated",
        "evaluated": "to be promoted",
        "discarding": "being discarded",
    }
    data = operation["incoming"] if state.phase == "ingesting" else operation["data"]["name"]
    return f"{NAMES[kind]} with {data}, {outstanding[state.phase]}"


def damage_in(workspace: Workspace) -> list[str]:
    """Read every file; returns what is wrong."""
    wrong: list[str] = []
    last = 0  # number of the lines that the journal must have, if the state can be read

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # which those of a workspace and of a store are
            wrong.append(str(error))

    with noted():
        event = workspace.state().event  # also in the state, and added if it is missing
        last = event["number"] - 1 if event else 0
    for number in workspace.versions.numbers():
        try:
            workspace.versions.verify(number)
            workspace.versions.evaluation(number)
        except WorkspaceError as error:
            if workspace.versions.exists(number):  # and was not deleted meanwhile
                wrong.append(str(error))
    with noted(), closing(Store.open(workspace.store_file, readonly=True)) as store:
        wrong += store.check()
    for file in outputs(workspace):
        with noted():
            wrong += problems(file)
    return wrong + _damage_in_journal(workspace.journal, last)


def _damage_in_journal(journal: Journal, last: int) -> list[str]:
    records = journal.records()
    wrong = [str(record) for record in records if isinstance(record, Damaged)]
    missing = set(range(1, last + 1))
    for event in (record for record in records if isinstance(record, dict)):
        number = event["number"]
        missing -= {*range(1, number + 1)} if event["step"] == SUMMARY else {number}
    lost = len(missing) - len(wrong)
    if lost > 0:
        wrong.append(f"{journal.path} is damaged: it has lost {counted(lost, 'line')}")
    return wrong
