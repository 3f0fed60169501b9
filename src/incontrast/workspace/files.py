"""JSON files and journals: every object with its format and a checksum."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from incontrast._version import __version__
from incontrast.files import write_bytes
from incontrast.workspace.errors import Damaged

FORMAT = 2  # of every JSON file and line of a workspace


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with its format and a checksum; it is whole or not there."""
    write_bytes(path, (json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote.

    Raises:
        Damaged: The file is missing, is not what was written, or has another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing: restore it from a copy") from error
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is damaged ({error}): restore it from a copy") from error
    return unsealed(text, str(path))


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The value with the format and a checksum over both."""
    body = {"format": FORMAT, **value}
    return {**body, "checksum": _checksum(body)}


def unsealed(text: str, where: str) -> dict[str, Any]:
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


def sweep(folder: Path) -> None:
    """Delete what an interrupted writing has left in a workspace."""
    for pattern in (".*.json.*", ".*.checkpoint.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{zlib.crc32(text.encode()):08x}"


class Record(NamedTuple):
    """A line of a journal."""

    line: int
    event: dict[str, Any] | None  # None where the line is damaged
    problem: str | None


class Journal:
    """A file of events: one JSON object per line, only ever added to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, step: str, **about: Any) -> dict[str, Any]:
        """An event of now."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        common = {"time": now, "step": step, "incontrast": __version__, "pid": os.getpid()}
        event: dict[str, Any] = json.loads(json.dumps({**common, **about}))
        return event

    def add(self, event: dict[str, Any]) -> None:
        """Write a line and see to it that it reaches the disk."""
        line = json.dumps(sealed(event), ensure_ascii=False) + "\n"
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody cuts off another's line
            end = _end_of_lines(file)
            file.truncate(end)  # a power cut may have torn a line, which was never acknowledged
            try:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, end)  # nor does half a line stay on a full disk
                raise

    def records(self) -> list[Record]:
        """Every line, the damaged ones too."""
        return list(self._parse(self.path.read_bytes() if self.path.exists() else b""))

    def events(self) -> list[dict[str, Any]]:
        """What can be read."""
        return [record.event for record in self.records() if record.event is not None]

    def tail(self, count: int) -> list[dict[str, Any]]:
        """The last events, without a look at the others; damaged ones are left out."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            end = begin = _end_of_lines(file)
            for _ in range(count):
                begin = _end_of_lines(file, begin - 1) if begin else 0
            file.seek(begin)
            records = self._parse(file.read(end - begin))
            return [record.event for record in records if record.event is not None]

    def _parse(self, content: bytes) -> Iterator[Record]:
        # What follows the last end of a line was never acknowledged.
        lines = content.decode(errors="replace").split("\n")[:-1]
        for number, line in enumerate(lines, start=1):
            try:
                yield Record(number, unsealed(line, f"{self.path}, line {number}"), None)
            except Damaged as error:
                yield Record(number, None, str(error))


def _end_of_lines(file: IO[bytes], before: int | None = None) -> int:
    """Where the last line that was written to its end ends, before some place in the file."""
    place = end = file.seek(0, os.SEEK_END) if before is None else before
    while place > 0:
        place = max(0, place - 4096)
        file.seek(place)
        found = file.read(min(4096, end - place)).rfind(b"\n")
        if found >= 0:
            return place + found + 1
    return 0
