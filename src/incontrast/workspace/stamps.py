"""What embeddings are of: a stamp beside a file, a manifest in a folder of shards.

Beside ``x.npy`` lie ``x.ids.jsonl`` (the name of each row's item) and ``x.npy.json``, the stamp;
beside ``x.parquet`` its stamp alone; a folder of shards has a ``manifest.json``.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from incontrast.workspace.files import WorkspaceError, read_json

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

MANIFEST = "manifest.json"


def stamp_file(file: Path) -> Path:
    """Where the stamp of a file or folder of embeddings is."""
    return file.with_name(f"{file.name}.json") if file.suffix else file / MANIFEST


def ids_file(file: Path) -> Path:
    """Where the names of the rows of a ``.npy`` file are."""
    return file.with_name(f"{file.stem}.ids.jsonl")


def order_file(file: Path) -> Path:
    """Which rows of a file are mapped, in the order in which to re-embed them."""
    return file.with_name(f"{file.name}.order.npy")


def beside(file: Path, purpose: Literal["shards", "reembed", "lock"]) -> Path:
    """Where a new file waits until it is complete, or the file's lock."""
    return file.with_name(f".{file.name}.{purpose}")


def stamp_of(file: Path) -> dict[str, Any] | None:
    """The stamp of a file or folder of embeddings; None if it has none."""
    if not stamp_file(file).exists():
        return None
    stamp = read_json(stamp_file(file))
    if "complete" not in stamp:  # a file of a workspace, say
        raise WorkspaceError(f"{stamp_file(file)} was not written by embed: choose another name")
    return stamp


def check_same(
    file: Path,
    stamp: dict[str, Any],
    about: dict[str, Any],
    advice: str = "overwrite it, or choose another name",
) -> None:
    """Refuse to mix embeddings of different encoders."""
    version = stamp["version"]
    length, option = ("unit", "with") if stamp["normalized"] else ("their own", "without")
    differences = {
        "workspace": f"another workspace, which cannot be mixed: {advice}",
        "version": f"version {version}, these would be of version {about['version']}, and the two "
        f"cannot be mixed: replace it (--overwrite), embed for its space (--space {version}), or "
        f"bring it along (incontrast reembed {file.name})",
        "encoder": f"another version {version}, with other weights: {advice}",
        "normalized": f"{length} length: embed {option} --normalize, {advice}",
        "dtype": f"type {stamp['dtype']}: {advice}",
    }
    for name, difference in differences.items():
        if stamp[name] != about[name]:
            raise WorkspaceError(f"{file} holds embeddings of {difference}")


def outputs(workspace: Workspace) -> list[Path]:
    """The embeddings that this workspace has written and that are still there."""
    files = [Path(event["file"]) for event in workspace.outputs.events()]
    return [file for file in files if file.exists() and stamp_file(file).exists()]


def register(workspace: Workspace, file: Path) -> None:
    """Record that embeddings of this workspace are in a file."""
    if str(file) not in [event["file"] for event in workspace.outputs.events()]:
        with suppress(OSError):  # a read-only workspace can still embed
            workspace.outputs.add(workspace.outputs.event("embed", file=str(file)))


def digest(file: Path) -> dict[str, int]:
    """The length and the checksum of a file."""
    checksum = 0
    with file.open("rb") as content:
        while part := content.read(2**20):
            checksum = zlib.crc32(part, checksum)
        return {"bytes": content.tell(), "crc32": checksum}


def damaged(folder: Path, files: dict[str, dict[str, int]]) -> list[str]:
    """Which of the files in a folder are missing, or do not have these digests."""
    wrong = []
    for name, expected in files.items():
        if not (folder / name).is_file():
            wrong.append(f"{folder / name} is missing")
        elif digest(folder / name) != expected:
            wrong.append(f"{folder / name} is not what was written")
    return wrong


def problems(file: Path) -> list[str]:
    """What is wrong with the files of embeddings."""
    stamp = read_json(stamp_file(file))
    return damaged(file.parent if file.suffix else file, stamp.get("files", {}))
