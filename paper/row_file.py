"""Results as a file of JSON lines, to which rows are only ever added.

A run that is killed leaves at most one unfinished last line. Reading warns and leaves it out; the
next row that is added moves it to a file beside this one and begins a line of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

Row = dict[str, Any]

FORMAT = 2
# Whatever depends on the clock or on the machine, wherever it stands in a row.
TIMES = frozenset({"seconds", "wall_seconds", "clock", "date", "machine", "software", "cost"})

# Names of format 1 that have changed since, wherever they stand in a row.
RENAMED = {
    "actor_rate": "actor_lr",
    "average": "ema_decay",
    "batch": "batch_size",
    "critic_rate": "critic_lr",
    "fitting": "fit_strategy",
    "inference": "no_update",
    "learning_rate": "agent_lr",
    "old_batch": "old_batch_size",
    "ours": "parity",
    "passes": "forward_passes",
    "rate": "lr",
    "rates": "lr",
}
RENAMED_VALUES = {
    "kind": {"cell": "run"},
    "strategy": {"inference": "no-update", "fitting": "fit"},
    "type": {"Inference": "NoUpdate"},
}


def read_rows(path: str | Path, *, needs: Collection[str] = ()) -> list[Row]:
    """All rows of a file, in today's format; none, if there is no such file.

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
            log.warning("%s: the last line is damaged and left out, the rest is used", path)
        elif row is None:
            raise ValueError(
                f"{path}, line {number} is not a row: restore the file from a copy, "
                "or delete the line, and its run is repeated"
            )
        else:
            rows.append(row)
    last = _row(rest)
    if last is not None:
        rows.append(last)  # complete, but for its end
    elif rest:
        log.warning("%s: the last line is unfinished and left out, the rest is used", path)
    for number, row in enumerate(rows, start=1):
        if row["format"] not in (1, FORMAT):
            raise ValueError(
                f"{path} has a row of format {row['format']}, this version reads up to {FORMAT}: "
                "use the version of incontrast that wrote it, or another file"
            )
        missing = [name for name in needs if name not in row]
        if missing:
            raise ValueError(
                f"{path}, row {number} has no {missing[0]!r}: it is not a row of a grid; delete "
                "it, or name another file"
            )
    return [_upgraded(row) if row["format"] == 1 else row for row in rows]


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Add a row, in one write that is on disk when this returns."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"format": FORMAT, **row}, allow_nan=False) + "\n"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody moves another's line
        _move_damaged_line(path)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def key_of(settings: Mapping[str, Any]) -> str:
    """A short name for settings: what has a row with this key need not be run again."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def without_times(value: Any) -> Any:
    """A row less what differs from run to run: the same settings give the same rest."""
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [without_times(part) for part in value]
    return value


def _upgraded(row: Row) -> Row:
    """A row of format 1 in the words of today, under the key that its settings have today."""
    renamed: Row = _renamed(row)
    if "settings" in renamed:
        renamed["key"] = key_of(renamed["settings"])
    return renamed | {"format": FORMAT}


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Fixed":
        return value["rate"]
    renamed = {}
    for name, part in value.items():
        values = RENAMED_VALUES.get(name, {})
        renamed[RENAMED.get(name, name)] = (
            values.get(part, part) if isinstance(part, str) else _renamed(part)
        )
    schedule = value.get("rates")
    if isinstance(schedule, dict) and "largest_change" in schedule:
        # The cap on learning rates was the schedule's; it is the optimiser's now.
        cap = {"type": "Adam", "max_relative_update": schedule["largest_change"]}
        renamed["optimizer"] = cap
    return renamed


def _move_damaged_line(path: Path) -> None:
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
