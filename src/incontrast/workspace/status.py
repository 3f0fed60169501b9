"""What is in a workspace, and what is damaged; without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incontrast.memory.store import Store
from incontrast.text import counted
from incontrast.workspace import stamps
from incontrast.workspace.files import SUMMARY, Damaged, WorkspaceError, holder
from incontrast.workspace.state import NAMES, State

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

OUTSTANDING = {  # by phase
    "ingesting": "interrupted while it ingested items",
    "ingested": "to be trained",
    "trained": "to be evaluated",
    "evaluated": "to be promoted",
    "discarding": "being discarded",
}


def status_of(workspace: Workspace) -> dict[str, Any]:
    """What is in a workspace, as JSON."""
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
    for file in stamps.outputs(workspace):
        try:
            stamp = stamps.stamp_of(file) or {}
        except WorkspaceError:
            continue
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
    """A memory policy in words."""
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
    """What is unfinished or was refused, in words; None if nothing is."""
    try:
        return _unfinished(workspace.state())
    except Damaged:  # a rollback writes it again
        return None


def _unfinished(state: State) -> str | None:
    operation = state.operation
    if state.phase in ("idle", "switched"):
        return None
    if state.phase == "forgetting":
        items = counted(operation["items"])
        return f"{items} to be forgotten: the next command that writes does it"
    kind, name = NAMES[operation["kind"]], operation["data"]["name"]
    if state.refused:
        failed = "; ".join(operation["failed_checks"])
        if state.candidate is None:
            return f"{kind} with {name}: {failed}"
        return f"version {operation['number']} was not promoted: {failed}"
    if state.phase == "ingesting":
        name = operation["incoming"]
    outstanding = OUTSTANDING[state.phase]
    if operation["kind"] == "adopt" and state.phase == "ingested":
        outstanding = "interrupted before it was complete"
    return f"{kind} with {name}, {outstanding}"


def damage_in(workspace: Workspace) -> list[str]:
    """Read every file; returns what is wrong."""
    wrong: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # those of a workspace and of a store
            wrong.append(str(error))

    lines = 0  # that the journal must have, if the state can be read
    with noted():
        event = workspace.state().event  # whose own line is added if it is missing
        lines = event["number"] - 1 if event else 0
    for number in workspace.versions.numbers():
        try:
            workspace.versions.verify(number)
            workspace.versions.evaluation(number)
        except WorkspaceError as error:
            if workspace.versions.exists(number):  # and was not deleted meanwhile
                wrong.append(str(error))
    with noted(), closing(Store.open(workspace.store_file, readonly=True)) as store:
        wrong += store.check()
    for file in stamps.outputs(workspace):
        with noted():
            wrong += stamps.problems(file)
    missing, damaged = set(range(1, lines + 1)), []
    for record in workspace.journal.records():
        if isinstance(record, Damaged):
            damaged.append(str(record))
        elif record["step"] == SUMMARY:
            missing -= {*range(1, record["number"] + 1)}
        else:
            missing -= {record["number"]}
    lost = len(missing) - len(damaged)
    if lost > 0:
        damaged.append(f"{workspace.journal.path} is damaged: it has lost {counted(lost, 'line')}")
    return wrong + damaged
