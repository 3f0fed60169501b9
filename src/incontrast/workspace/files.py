"""The files of a workspace: JSON, journals and versions, each with checksums; and locks."""

import fcntl
import hashlib
import json
import math
import os
import shutil
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incontrast._version import __version__
from incontrast.files import flush, flush_files, write_bytes
from incontrast.memory.store import Extent

FORMAT = 3  # of every JSON file and line of a workspace
SETTINGS = "workspace.json"
CREATING = ".creating"  # in a folder that is not a workspace yet
EVENTS = 500  # of the journal that are never summarised
SHORTENED = 100  # events after which earlier ones are summarised
ATTEMPTS = 5  # to take a lock
WEIGHTS = "encoder.safetensors"
RECORD, MANIFEST, EVALUATION = "version.json", "manifest.json", "evaluation.json"
UNFINISHED = ".unfinished-"
NO_ENCODER = "has no encoder yet: run incontrast fit DATA"
SUMMARY = "summary"  # the step of an event that stands for all before it
OUTLINED = (  # what a summary keeps of the events of versions
    *("step", "version", "kind", "strategy", "seconds", "time"),
    *("loss", "change_ratio", "probe", "overlap"),
)


class WorkspaceError(RuntimeError):
    """A workspace cannot do this."""


class Busy(WorkspaceError):
    """Another process is writing."""


class Damaged(WorkspaceError):
    """A file of the workspace is missing, truncated, changed, or of another format."""


class Unfinished(WorkspaceError):
    """Something else is unfinished."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with its format and a checksum, atomically."""
    write_bytes(path, (json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what ``write_json`` wrote; raises ``Damaged`` if it is anything else, or missing."""
    try:
        return unsealed(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing: restore it from a copy") from error


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The value with its format and a checksum over both."""
    body = {"format": FORMAT, **value}
    return {**body, "checksum": _checksum(body)}


def unsealed(text: str | bytes, where: str) -> dict[str, Any]:
    """The value in the text of a sealed one, without format and checksum."""
    try:
        body: dict[str, Any] = json.loads(text)
        version, checksum = body["format"], body.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{where} is damaged ({error!r}): restore it from a copy") from error
    if checksum != _checksum(body):
        raise Damaged(f"{where} is damaged (its checksum is wrong): restore it from a copy")
    if version != FORMAT:
        advice = "of a newer incontrast: upgrade incontrast"
        if not isinstance(version, int) or version < FORMAT:
            advice = (
                "of an earlier incontrast: create a new workspace (incontrast init), embed again, "
                "or use the incontrast that wrote it"
            )
        raise Damaged(f"{where} has format {version} {advice}")
    del body["format"]
    return body


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{zlib.crc32(text.encode()):08x}"


@dataclass(frozen=True)
class Journal:
    """A file of events: one JSON object per line."""

    path: Path

    def event(self, step: str, **fields: Any) -> dict[str, Any]:
        """An event that happens now, as JSON has it."""
        common = {"time": timestamp(), "step": step, "incontrast": __version__, "pid": os.getpid()}
        event: dict[str, Any] = json.loads(json.dumps({**common, **fields}))
        return event

    def add(self, event: dict[str, Any]) -> None:
        """Write a line durably."""
        line = _line(event)
        check_no_link(self.path, "a journal")
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: others may write as well
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)  # a power cut may have torn a line, which was never acknowledged
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, end)  # no half a line on a full disk
                raise

    def commit(
        self, file: Path, state: dict[str, Any], event: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Write a state file atomically and, if there is an event, add its line.

        The state contains the event, so that its line can be added after a power cut.
        """
        if event is None:
            write_json(file, state)
            return state
        number = 1 + (state["event"] or {"number": 0})["number"]  # so that no line can be missed
        event = self.event(number=number, **event)
        state = {**state, "event": event}
        write_json(file, state)
        self.add(event)
        if number % SHORTENED == 0:
            self.shorten(EVENTS)
        return state

    def shorten(self, keep: int) -> None:
        """Summarise all but the last ``keep`` events, unless one of them is damaged or lost.

        For a journal with a single writer, whose events are numbered from 1.
        """
        old = [event for event in self.records()[:-keep] if isinstance(event, dict)]
        steps: Counter[str] = Counter()
        for event in old:
            steps.update(event["steps"] if event["step"] == SUMMARY else [event["step"]])
        if not old or steps.total() != old[-1]["number"]:
            return
        summary = self.event(
            SUMMARY,
            time=old[-1]["time"],
            number=old[-1]["number"],
            since=old[0].get("since", old[0]["time"]),
            steps=steps,
            versions=[outline for event in old for outline in outlines(event)],
        )
        recent = [line + b"\n" for line in self._lines()[-keep:]]
        write_bytes(self.path, b"".join([_line(summary), *recent]))

    def records(self, last: int | None = None) -> list[dict[str, Any] | Damaged]:
        """The event of every line, or of the ``last`` ones; an error for a damaged line."""
        lines = self._lines()
        records: list[dict[str, Any] | Damaged] = []
        for place in range(0 if last is None else max(0, len(lines) - last), len(lines)):
            try:
                records.append(unsealed(lines[place], f"{self.path}, line {place + 1}"))
            except Damaged as error:
                records.append(error)
        return records

    def events(self, last: int | None = None) -> list[dict[str, Any]]:
        """The events of all lines, or of the ``last`` ones, that can be read."""
        return [record for record in self.records(last) if isinstance(record, dict)]

    def _lines(self) -> list[bytes]:
        # What follows the last end of a line was never acknowledged.
        return self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []


def outlines(event: dict[str, Any]) -> list[dict[str, Any]]:
    """What the history of versions needs of an event, or of those that a summary stands for."""
    if "version" not in event:
        return [*event.get("versions", ())]
    shown = {name: event[name] for name in OUTLINED if name in event}
    if "data" in event:
        shown["data"] = {name: event["data"][name] for name in ("name", "items")}
    return [shown]


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _line(event: dict[str, Any]) -> bytes:
    return (json.dumps(sealed(event), ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class Versions:
    """Folders ``000001``, ``000002``, …, each complete from the moment it has its name."""

    root: Path

    def folder(self, number: int) -> Path:
        return self.root / f"{number:06d}"

    def exists(self, number: int) -> bool:
        return self.folder(number).is_dir()

    def numbers(self) -> list[int]:
        """All versions in order, candidates too."""
        return sorted(int(entry.name) for entry in self.root.iterdir() if entry.name.isdecimal())

    def write(self, number: int, save: Callable[[Path], None], record: dict[str, Any]) -> None:
        """Write a version; ``save`` writes the learner into an empty folder."""
        folder = self.root / f"{UNFINISHED}{number:06d}"
        folder.mkdir()
        try:
            save(folder)
            encoder = _hash(folder / WEIGHTS)
            write_json(folder / RECORD, {"version": number, "encoder": encoder, **record})
            hashes = {file.name: _hash(file) for file in sorted(folder.iterdir())}
            write_json(folder / MANIFEST, {"files": hashes})
            mode = (folder / RECORD).stat().st_mode
            for file in folder.iterdir():
                file.chmod(mode)  # not every writer of weights respects the umask
            flush_files(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        folder.rename(self.folder(number))
        flush(self.root)

    def verify(self, number: int, only: Collection[str] | None = None) -> None:
        """Compare the files of a version with their hashes; names the first that differs."""
        folder = self.folder(number)
        if not folder.is_dir():
            there = ", ".join(map(str, self.numbers())) or "none"
            raise WorkspaceError(f"there is no version {number}: there are {there}")
        for name, expected in read_json(folder / MANIFEST)["files"].items():
            file = folder / name
            if only is not None and name not in only:
                continue
            if not file.is_file():
                raise Damaged(f"{file} is missing: go back to another version, or restore it")
            if _hash(file) != expected:
                raise Damaged(
                    f"{file} is damaged (it is not what was written): go back to another version "
                    "(incontrast rollback), or restore it from a copy"
                )

    def record(self, number: int) -> dict[str, Any]:
        """How a version came about."""
        return read_json(self.folder(number) / RECORD)

    def extent(self, number: int) -> Extent:
        """Which items the memory of a version holds."""
        memory = self.record(number)["memory"]
        threshold = math.inf if memory["threshold"] is None else memory["threshold"]
        return Extent(memory["arrivals"], threshold, memory["skipped"], memory["elsewhere"])

    def evaluation(self, number: int) -> dict[str, Any] | None:
        """How a version was evaluated; None before it is."""
        file = self.folder(number) / EVALUATION
        return read_json(file) if file.exists() else None

    def set_evaluation(self, number: int, evaluation: dict[str, Any]) -> None:
        write_json(self.folder(number) / EVALUATION, evaluation)

    def remove(self, number: int) -> None:
        """Delete a version; halfway through, it has lost its name."""
        doomed = self.root / f"{UNFINISHED}{number:06d}"
        self.folder(number).rename(doomed)
        flush(self.root)
        shutil.rmtree(doomed)


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def check_no_link(path: Path, what: str) -> None:
    """Refuse to write through a link, which may lead to somebody else's file."""
    if path.is_symlink():
        raise Damaged(f"{path} is a link, which {what} is never: delete it")


@contextmanager
def locked(path: Path, doing: str, what: Path | None = None) -> Iterator[None]:
    """Hold a lock file, which is deleted at the end; ``what`` is written (the folder it is in).

    The system releases the lock when the process ends, for whatever reason.
    """
    check_no_link(path, "a lock")
    while True:
        with path.open("a+", encoding="utf-8") as file:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if attempt == ATTEMPTS:
                        by = holder(path) or "another process"
                        raise Busy(
                            f"{what or path.parent} is being written by {by}: wait until it has "
                            "finished, or stop it"
                        ) from error
                    time.sleep(0.02)  # `holder` also takes it for a moment
            try:
                if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                    continue  # its last holder has deleted it, and another one created it
            except FileNotFoundError:
                continue
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            about = {"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}
            file.truncate(0)
            file.write(json.dumps({**about, "since": since}))
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def holder(path: Path) -> str | None:
    """The process that holds a lock, in words; None if none does."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the file is closed
                return None
            except BlockingIOError:
                about = json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "another process"
    return f"process {about['pid']} on {about['host']} ({about['doing']}, since {about['since']})"
