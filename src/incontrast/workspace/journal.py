"""What was done with a workspace: one JSON object per line, only ever added to."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from incontrast._version import __version__
from incontrast.workspace.errors import Damaged
from incontrast.workspace.files import sealed, unsealed

__all__ = ["Journal", "Record"]


class Record(NamedTuple):
    """A line of the journal."""

    line: int
    event: dict[str, Any] | None  # None where the line is damaged
    problem: str | None


class Journal:
    """A file of events."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, step: str, **about: Any) -> None:
        """Write a line and see to it that it reaches the disk."""
        event = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "step": step,
            "incontrast": __version__,
            "pid": os.getpid(),
            **about,
        }
        line = json.dumps(sealed(event), ensure_ascii=False) + "\n"
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody cuts off another's line
            end = _whole(file)
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
        if not self.path.exists():
            return []
        records = []
        text = self.path.read_bytes().decode(errors="replace")
        # What follows the last end of a line was never acknowledged.
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            if line:
                try:
                    event = unsealed(line, f"{self.path}, line {number}")
                    records.append(Record(number, event, None))
                except Damaged as error:
                    records.append(Record(number, None, str(error)))
        return records

    def events(self) -> list[dict[str, Any]]:
        """What can be read."""
        return [record.event for record in self.records() if record.event is not None]


def _whole(file: IO[bytes]) -> int:
    """Where the last line that was written to its end ends."""
    end = place = file.seek(0, os.SEEK_END)
    while place > 0:
        place = max(0, place - 4096)
        file.seek(place)
        found = file.read(min(4096, end - place)).rfind(b"\n")
        if found >= 0:
            return place + found + 1
    return 0
