"""Results as a file of JSON lines, to which rows are only ever added.

A run that is killed leaves at most one unfinished last line. It is set aside, never lost in
silence: reading warns and goes on without it, and the next row begins a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "Row", "append_row", "read_rows", "without_times"]

log = logging.getLogger(__name__)

Row = dict[str, Any]

FORMAT = 1
# Whatever depends on the clock or on the machine, wherever it stands in a row.
TIMES = frozenset(
    {"seconds", "wall_seconds", "speed_up", "clock", "date", "machine", "software", "cost"}
)


def read_rows(path: str | Path, *, needs: Collection[str] = ()) -> list[Row]:
    """All rows of a file; none, if there is no such file.

    Args:
        path: The file.
        needs: What every row must have.

    Raises:
        ValueError: A line other than the last is damaged, or a row is of another format.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rest = lines.pop()  # empty, where the last line has its end
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None and number == len(lines) and not rest:
            log.warning("%s: the last line is damaged and set aside, the rest is used", path)
        elif row is None:
            raise ValueError(
                f"{path}, line {number} is no row: restore the file from a copy, "
                "or take the line out to have its cell run again"
            )
        else:
            rows.append(row)
    last = _row(rest)
    if last is not None:
        rows.append(last)  # whole, but for its end
    elif rest:
        log.warning("%s: the last line is unfinished and set aside, the rest is used", path)
    for number, row in enumerate(rows, start=1):
        missing = [name for name in needs if name not in row]
        if missing and row["format"] == FORMAT:
            raise ValueError(
                f"{path}, row {number} has no {missing[0]!r}: it is no row of a grid; take it out, "
                "or name another file"
            )
        if row["format"] != FORMAT:
            raise ValueError(
                f"{path} has a row of format {row['format']}, this version reads {FORMAT}: "
                "use the version of incontrast that wrote it, or another file"
            )
    return rows


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Add a row, in one write that is on disk when this returns."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"format": FORMAT, **row}, allow_nan=False) + "\n"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody sets another's line aside
        _set_aside(path)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def without_times(value: Any) -> Any:
    """A row less what differs from run to run: the same settings give the same rest."""
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [without_times(part) for part in value]
    return value


def _set_aside(path: Path) -> None:
    """Move a damaged last line to a file beside this one, so that the next row is not lost too."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if _row(content[len(whole) :]) is not None:
        with path.open("ab") as file:
            file.write(b"\n")
        return
    last = whole[whole[:-1].rfind(b"\n") + 1 :]
    if whole and _row(last) is None:
        whole = whole[: -len(last)]
    if len(whole) < len(content):
        with path.with_name(path.name + ".damaged").open("ab") as file:
            file.write(content[len(whole) :] + b"\n")
        os.truncate(path, len(whole))


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "format" in row else None
