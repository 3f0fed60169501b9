"""The files of a workspace: JSON, journals and versions, each with checksums; and its locks."""

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
from pathlib import Path
from typing import IO, Any

from incontrast._version import __version__
from incontrast.files import flush, flush_files, write_bytes
from incontrast.memory.store import Extent

FORMAT = 3  # of every JSON file and line of a workspace
SETTINGS = "workspace.json"
CREATING = ".creating"  # in a folder that is not a workspace yet
EVENTS = 500  # of the journal that are kept as they are
SHORTENED = 100  # events after which earlier ones are summed up
LOOKS = 5  # attempts to take a lock
WEIGHTS = "encoder.safetensors"
RECORD, MANIFEST, EVALUATION = "version.json", "manifest.json", "evaluation.json"
UNFINISHED = ".unfinished-"
NO_ENCODER = "has no encoder yet: run incontrast fit DATA"
SUMMARY = "summary"  # the step of an event that stands for all before it
# What a summary keeps of the events of versions.
OUTLINED = (
    *("step", "version", "kind", "strategy", "seconds", "time"),
    *("loss", "change_ratio", "probe", "overlap"),
)


class WorkspaceError(RuntimeError):
    """A workspace cannot do what was asked of it."""


class Busy(WorkspaceError):
    """Another process is writing."""


class Damaged(WorkspaceError):
    """A file of the workspace is missing, truncated, changed, or of another format."""


class Unfinished(WorkspaceError):
    """Something else was begun and not finished."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with its format and a checksum; it is whole or not there."""
    write_bytes(path, (json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote.

    Raises:
        Damaged: The file is missing, is not what was written, or has another format.
    """
    try:
        return unsealed(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing: restore it from a copy") from error


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The value with the format and a checksum over both."""
    body = {"format": FORMAT, **value}
    return {**body, "checksum": _checksum(body)}


def unsealed(text: str | bytes, where: str) -> dict[str, Any]:
    """The value in a sealed text, without format and checksum."""
    try:
        body: dict[str, Any] = json.loads(text)
        found, checksum = body["format"], body.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{where} is damaged ({error!r}): restore it from a copy") from error
    if checksum != _checksum(body):
        raise Damaged(f"{where} is damaged (its checksum is wrong): restore it from a copy")
    if found != FORMAT:
        newer = isinstance(found, int) and found > FORMAT
        advice = (
            "upgrade incontrast"
            if newer
            else "create a new workspace (incontrast init) and fit it on your data, delete "
            "embeddings and embed again, or keep using the incontrast that wrote it"
        )
        raise Damaged(
            f"{where} has format {found} of {'a newer' if newer else 'an earlier'} incontrast, "
            f"incontrast {__version__} reads format {FORMAT}: {advice}"
        )
    del body["format"]
    return body


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{zlib.crc32(text.encode()):08x}"


class Journal:
    """A file of events: one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, step: str, **about: Any) -> dict[str, Any]:
        """An event of now, as JSON has it."""
        common = {"time": timestamp(), "step": step, "incontrast": __version__, "pid": os.getpid()}
        event: dict[str, Any] = json.loads(json.dumps({**common, **about}))
        return event

    def add(self, event: dict[str, Any]) -> None:
        """Write a line and see to it that it reaches the disk."""
        line = _line(event)
        check_no_link(self.path)
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody cuts off another's line
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)  # a power cut may have torn a line, which was never acknowledged
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, end)  # nor does half a line stay on a full disk
                raise

    def commit(
        self, file: Path, state: dict[str, Any], event: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Write a state with a single write; if it has an event, then add its line.

        The line is in the state, too, so that it can be added after a power cut.
        """
        if event is not None:  # numbered, so that a journal tells whether it is whole
            number = 1 + (state["event"] or {"number": 0})["number"]
            event = self.event(number=number, **event)
            state = {**state, "event": event}
        write_json(file, state)
        if event is not None:
            self.add(event)
            if event["number"] % SHORTENED == 0:
                self.shorten(EVENTS)
        return state

    def shorten(self, keep: int) -> None:
        """Sum up all but the last ``keep`` events in one, unless one of them is damaged or lost.

        For a journal with a single writer, who numbers its events from 1.
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
        """The event of every line, or what is wrong with the line; or so many of the last."""
        lines = self._lines()
        found: list[dict[str, Any] | Damaged] = []
        for place in range(0 if last is None else max(0, len(lines) - last), len(lines)):
            try:
                found.append(unsealed(lines[place], f"{self.path}, line {place + 1}"))
            except Damaged as error:
                found.append(error)
        return found

    def events(self, last: int | None = None) -> list[dict[str, Any]]:
        """What can be read, of all lines or of so many of the last."""
        return [record for record in self.records(last) if isinstance(record, dict)]

    def _lines(self) -> list[bytes]:
        # What follows the last end of a line was never acknowledged.
        return self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []


def outlines(event: dict[str, Any]) -> list[dict[str, Any]]:
    """What the page over all versions says of an event of one; of a summary, what is in it."""
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


class Versions:
    """Folders ``000001``, ``000002``, …, each complete from the moment it has its name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, number: int) -> Path:
        return self.root / f"{number:06d}"

    def exists(self, number: int) -> bool:
        return self.folder(number).is_dir()

    def numbers(self) -> list[int]:
        """The versions that are there, candidates too, in order."""
        return sorted(int(entry.name) for entry in self.root.iterdir() if entry.name.isdecimal())

    def write(self, number: int, save: Callable[[Path], None], record: dict[str, Any]) -> None:
        """Write a version beside the others; until the last line it has no number.

        ``save`` writes the learner into an empty folder.
        """
        fresh = self.root / f"{UNFINISHED}{number:06d}"
        fresh.mkdir()
        try:
            save(fresh)
            encoder = _hash(fresh / WEIGHTS)
            write_json(fresh / RECORD, {"version": number, "encoder": encoder, **record})
            hashes = {file.name: _hash(file) for file in sorted(fresh.iterdir())}
            write_json(fresh / MANIFEST, {"files": hashes})
            mode = (fresh / RECORD).stat().st_mode
            for file in fresh.iterdir():
                file.chmod(mode)  # not every writer of weights asks for the user's permissions
            flush_files(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fresh.rename(self.folder(number))
        flush(self.root)

    def verify(self, number: int, only: Collection[str] | None = None) -> None:
        """Compare the files of a version with what was written; names the first that differs."""
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
        """What was written down about a version, once and for all."""
        return read_json(self.folder(number) / RECORD)

    def extent(self, number: int) -> Extent:
        """What of the store the memory of a version holds."""
        memory = self.record(number)["memory"]
        threshold = math.inf if memory["threshold"] is None else memory["threshold"]
        return Extent(memory["arrivals"], threshold, memory["skipped"], memory["elsewhere"])

    def evaluation(self, number: int) -> dict[str, Any] | None:
        """How a version was evaluated; None if it was not yet."""
        file = self.folder(number) / EVALUATION
        return read_json(file) if file.exists() else None

    def set_evaluation(self, number: int, evaluation: dict[str, Any]) -> None:
        write_json(self.folder(number) / EVALUATION, evaluation)

    def remove(self, number: int) -> None:
        """Delete a version; halfway through, it has no number any more."""
        doomed = self.root / f"{UNFINISHED}{number:06d}"
        self.folder(number).rename(doomed)
        flush(self.root)
        shutil.rmtree(doomed)


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def check_no_link(path: Path) -> None:
    """Refuse to write through a link: what it leads to is somebody else's."""
    if path.is_symlink():
        what = {"reports": "a folder of reports", "lock": "a lock"}.get(path.name, "a journal")
        raise Damaged(f"{path} is a link, which {what} is never: delete it")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock while the block runs. The system lets go of it when the process ends."""
    check_no_link(path)
    with path.open("a+", encoding="utf-8") as file:
        _hold(file, path.parent, lambda: holder(path))
        file.truncate(0)
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "doing": what,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        file.write(json.dumps(about))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Let one process at a time at a file, by a lock beside it that goes when it is let go of."""
    beside = path.with_name(f".{path.name}.lock")
    while True:
        with beside.open("a") as file:
            _hold(file, path)
            try:
                if os.fstat(file.fileno()).st_ino != beside.stat().st_ino:
                    continue  # it was deleted, and created again, before it was locked here
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                beside.unlink()
            return


def _hold(file: IO[Any], what: Path, by: Callable[[], str | None] = lambda: None) -> None:
    """Take the lock of an open file, which goes when the file is closed; ``by`` says who has it."""
    for attempt in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if attempt + 1 < LOOKS:
                time.sleep(0.02)  # somebody may just be looking
                continue
            raise Busy(
                f"{what} is being written by {by() or 'another process'}: "
                "wait until it has finished, or stop it"
            ) from error


def holder(path: Path) -> str | None:
    """Who holds the lock, in words; None if nobody does."""
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
