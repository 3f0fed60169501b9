"""A workspace and its journal in words and figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from incontrast.memory import Policy, Store, remembered
from incontrast.workspace.embeddings import outputs, stamp_of
from incontrast.workspace.errors import Damaged
from incontrast.workspace.lock import holder
from incontrast.workspace.words import NAMES, counted
from incontrast.workspace.workspace import Workspace

__all__ = ["refused_candidate", "sentence", "status_of", "unfinished"]


def status_of(workspace: Workspace) -> dict[str, Any]:
    """What is there, as JSON."""
    current = workspace.current
    store = Store.open(workspace.store_file, readonly=True)
    pending = store.note("pending")
    about: dict[str, Any] = {
        "folder": str(workspace.folder),
        "id": workspace.id,
        "current": current,
        "versions": workspace.versions.numbers(),
        "unfinished": _unfinished(workspace, pending),
        "writer": holder(workspace.lock_file),
        "bytes": sum(map(_size, workspace.folder.rglob("*"))),
        "embeddings": [],
    }
    if current is not None:
        record = workspace.versions.record(current)
        template = workspace.template()
        extent = workspace.versions.extent(current)
        memory = remembered(store, template.domain, template.memory.policy, extent)
        about |= {
            "domain": type(template.domain).__name__,
            "created": record["created"],
            "kept": len(memory),
            "seen": memory.seen,
            "policy": _words(memory.policy),
        }
    store.close()
    for file in outputs(workspace):
        try:
            stamp = stamp_of(file) or {}
        except Damaged:
            stamp = {}
        if stamp.get("workspace") == workspace.id:
            about["embeddings"].append(
                {
                    "file": str(file),
                    "version": stamp["version"],
                    "rows": stamp.get("rows", 0),
                    "complete": stamp["complete"],
                    "current": stamp["version"] == current,
                }
            )
    return about


def _words(policy: Policy) -> str:
    """A policy of memory, for people."""
    limits = [
        f"{limit:,} {unit}"
        for limit, unit in ((policy.items, "items"), (policy.bytes, "bytes"))
        if limit is not None
    ]
    kinds = {"KeepAll": "all are kept", "Reservoir": "a random sample", "Queue": "the newest"}
    kind = kinds.get(type(policy).__name__, repr(policy))
    return f"{kind}, {' and '.join(limits)} at most" if limits else kind


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0  # deleted meanwhile


def refused_candidate(workspace: Workspace) -> int | None:
    """The version that was trained and not promoted, if there is one."""
    with closing(Store.open(workspace.store_file, readonly=True)) as store:
        pending = store.note("pending")
    if pending is None or pending["number"] == workspace.current:
        return None
    number: int = pending["number"]
    return number if workspace.versions.folder(number).is_dir() else None


def unfinished(workspace: Workspace) -> str | None:
    """What was begun and not finished, or was refused, in words; None if there is nothing."""
    try:
        with closing(Store.open(workspace.store_file, readonly=True)) as store:
            return _unfinished(workspace, store.note("pending"))
    except Damaged:  # of the pointer, which a rollback sets again
        return None


def _unfinished(workspace: Workspace, pending: dict[str, Any] | None) -> str | None:
    if pending is None or workspace.current == pending["number"]:
        return None
    kind, name, number = pending["kind"], pending["data"]["name"], pending["number"]
    if pending.get("dropped"):
        return f"{NAMES[kind]} with {name}, being dropped"
    if not pending["complete"]:
        return f"{NAMES[kind]} with {name} that was taking items in"
    if not workspace.versions.folder(number).is_dir():
        return f"{NAMES[kind]} with {name}, to be trained"
    evaluation = workspace.versions.evaluation(number)
    if evaluation is None:
        return f"{NAMES[kind]} with {name}, to be evaluated"
    if not evaluation["objections"]:
        return f"{NAMES[kind]} with {name}, to be promoted"
    return f"version {number} was not promoted: {'; '.join(evaluation['objections'])}"


def sentence(event: dict[str, Any]) -> str:
    """A line of the journal, for people."""
    step, version = event["step"], event.get("version")
    data = event.get("data", {})
    said: dict[str, Callable[[], str]] = {
        "init": lambda: "workspace made",
        "ingest": lambda: (
            f"{counted(data['items'])} of {data['name']} taken in"
            + _ids(event, data["items"])
            + (f", {len(data['skipped'])} files skipped" if data["skipped"] else "")
        ),
        "train": lambda: (
            f"version {version} trained: {event['strategy']}, {event['epochs']} epochs, "
            f"{event['steps']} steps, stopped by {event['stopped']}"
        ),
        "evaluate": lambda: (
            f"version {version} evaluated: {'; '.join(event['objections']) or 'no objection'}"
        ),
        "promote": lambda: (
            f"version {version} promoted"
            + (f" despite: {'; '.join(event['despite'])}" if event["despite"] else "")
        ),
        "discard": lambda: (
            f"{data['name']} dropped" + (f" with version {version}" if event.get("made") else "")
        ),
        "drop": lambda: f"version {version} deleted ({event['reason']})",
        "rollback": lambda: f"version {version} made the current one again",
        "forgetting": lambda: f"{counted(len(event['ids']))} to be forgotten",
        "forget": lambda: f"{counted(event['items'])} forgotten",
    }
    text = said[step]() if step in said else step
    seconds = f" ({event['seconds']:.1f} s)" if "seconds" in event else ""
    return f"{event['time']}  {text}{seconds}"


def _ids(event: dict[str, Any], count: int) -> str:
    """The ids that items got, for those who will want to forget some."""
    first = event.get("first")
    if first is None:
        return ""
    return f" as {first}" if count == 1 else f" as {first} to {first + count - 1}"
