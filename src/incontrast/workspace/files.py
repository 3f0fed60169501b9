"""JSON files and lines with a format and a checksum."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from incontrast._version import __version__
from incontrast.files import flush, flush_folder, write_bytes
from incontrast.workspace.errors import Damaged

__all__ = [
    "FORMAT",
    "flush",
    "flush_folder",
    "read_json",
    "sealed",
    "sweep",
    "unsealed",
    "write_bytes",
    "write_json",
]

FORMAT = 1  # of every JSON file and line of a workspace


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with its format and a checksum."""
    write_bytes(path, (json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote.

    Raises:
        Damaged: The file is missing, is not what was written, or has a newer format.
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{where} is damaged ({error!r}): restore it from a copy") from error
    if checksum != _checksum(body):
        raise Damaged(f"{where} is damaged (its checksum is wrong): restore it from a copy")
    if found != FORMAT:
        age = "a newer" if isinstance(found, int) and found > FORMAT else "another"
        raise Damaged(
            f"{where} has format {found} of {age} incontrast, this is {__version__} with format "
            f"{FORMAT}: use the version that wrote it"
        )
    del body["format"]
    return body


def sweep(folder: Path) -> None:
    """Delete what an interrupted writing has left beside the files of a workspace."""
    for name in ("current.json", "workspace.json"):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{zlib.crc32(text.encode()):08x}"
