"""Embeddings of a source in a file: a chunk at a time, stamped, and gone on with when interrupted.

Beside ``x.npy`` lie ``x.ids.jsonl`` (the name of each row's item) and ``x.npy.json``, the stamp:
which workspace and version made it, from which data, and how far it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incontrast.data.sources import Source
from incontrast.learner import Learner
from incontrast.workspace.array_file import GrowingArray
from incontrast.workspace.errors import WorkspaceError
from incontrast.workspace.files import read_json, write_json
from incontrast.workspace.journal import Journal
from incontrast.workspace.lock import guarded
from incontrast.workspace.parquet import write_parquet
from incontrast.workspace.shards import MANIFEST, Piece, Shards, embed_shards, pieces
from incontrast.workspace.workspace import Workspace

__all__ = ["Embedded", "embed_source", "outputs", "stamp_of"]

OUTPUTS = "outputs.jsonl"


@dataclass(frozen=True)
class Embedded:
    """What came of embedding a source."""

    file: Path
    version: int
    rows: int  # in the file
    added: int  # by this run
    skipped: tuple[str, ...]


def embed_source(
    workspace: Workspace,
    source: Source,
    file: Path,
    *,
    version: int | None = None,
    append: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Embedded:
    """Write the embeddings of a source to ``.npy``, to ``.parquet``, or to a folder of shards.

    An interrupted run is gone on with. A file that holds this source's embeddings by this version
    already is left as it is. Where several processes work together, all of them call this.

    Args:
        workspace: Whose encoder.
        source: What to embed.
        file: Where to; a name without a suffix is a folder of shards with a manifest.
        version: The version; the current one by default.
        append: Add to a file that holds embeddings of other data, by the same version.
        overwrite: Begin anew whatever is there.
        strict: Refuse files that cannot be read instead of leaving them out.
        progress: Called with the items done and the items there are.

    Raises:
        WorkspaceError: The file holds embeddings of another version or workspace, or of other data.
    """
    file = file.absolute()
    if file.suffix not in (".npy", ".parquet", ""):
        raise ValueError(
            f"embeddings are written to .npy, to .parquet or to a folder, got {file.name!r}"
        )
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent}")
    if version is None:  # once: another may be promoted meanwhile
        version = workspace.crew().engine.broadcast(workspace.current)
    learner = workspace.learner(version, memory=False)
    source.check(learner.domain)
    about = {"path": str(source.path), "fingerprint": source.fingerprint()}
    job = _Job(workspace, learner, source, about, file, version, append, overwrite, strict)
    if not file.suffix:
        return _embed_to_folder(job, progress)
    if learner.engine.processes > 1:
        return _embed_by_many(job, progress)

    def found(start: int) -> Iterator[Piece]:
        return pieces(learner, source, learner.engine, strict=strict, start=start)

    return _write_file(job, found, progress)


@dataclass(frozen=True, eq=False)
class _Job:
    """What ``embed_source`` was asked for."""

    workspace: Workspace
    learner: Learner
    source: Source
    about: dict[str, str]
    file: Path
    version: int | None
    append: bool
    overwrite: bool
    strict: bool

    def begin(self) -> dict[str, Any]:
        """The stamp to go on from."""
        fresh: dict[str, Any] = {
            "workspace": self.workspace.id,
            "version": self.version,
            "columns": 0,
            "rows": 0,
            "ids": 0,
            "done": 0,
            "sources": [],
            "complete": False,
        }
        return _begin(self.file, fresh, self.about, append=self.append, overwrite=self.overwrite)

    def shards(
        self, folder: Path, overwrite: bool, progress: Callable[[int, int], None] | None
    ) -> Shards:
        of = {"workspace": self.workspace.id, "version": self.version, "source": self.about}
        return embed_shards(
            self.learner,
            self.source,
            folder,
            of,
            strict=self.strict,
            overwrite=overwrite,
            progress=progress,
        )


def _embed_to_folder(job: _Job, progress: Callable[[int, int], None] | None) -> Embedded:
    """Shards and a manifest, by one process or by many."""
    if job.append:
        raise ValueError("a folder holds embeddings of one source: choose another for more")
    there = job.file / MANIFEST
    before = read_json(there).get("rows", 0) if there.exists() and not job.overwrite else 0
    with guarded(job.file) if job.learner.engine.rank == 0 else nullcontext():
        if job.learner.engine.rank == 0:
            _remember(job.workspace, job.file)
        shards = job.shards(job.file, job.overwrite, progress)
    rows = read_json(there)["rows"]
    skipped = tuple(reason for piece in shards.read() for reason in piece.skipped)
    if rows == 0:
        raise _nothing(job.source, skipped)
    return Embedded(job.file, job.version or 0, rows, rows - before, skipped)


def _embed_by_many(job: _Job, progress: Callable[[int, int], None] | None) -> Embedded:
    """One file, from shards that all processes make beside it and the first then joins."""
    engine, done = job.learner.engine, None
    complete = False
    with engine.error_barrier("begin to embed"):
        if engine.rank == 0:
            complete = job.begin()["complete"]
    fingerprint = job.about["fingerprint"][:8]
    folder = job.file.with_name(f".{job.file.name}.{job.version}-{fingerprint}")
    shards = None if engine.broadcast(complete) else job.shards(folder, False, progress)
    with engine.error_barrier("write the file"):
        if engine.rank == 0:
            done = _write_file(job, shards.read if shards else lambda start: iter(()), None)
            for leftover in job.file.parent.glob(f".{job.file.name}.*-????????/{MANIFEST}"):
                shutil.rmtree(leftover.parent)
    result: Embedded | None = engine.broadcast(done)
    assert result is not None
    return result


def _write_file(
    job: _Job,
    found: Callable[[int], Iterator[Piece]],
    progress: Callable[[int, int], None] | None,
) -> Embedded:
    """One file from pieces, which ``found`` gives from an item on."""
    with guarded(job.file):
        return _write_guarded(job, found, progress)


def _write_guarded(
    job: _Job,
    found: Callable[[int], Iterator[Piece]],
    progress: Callable[[int, int], None] | None,
) -> Embedded:
    file, stamp = job.file, job.begin()
    before = stamp["rows"] if stamp.get("kept") is None else stamp["kept"]
    skipped: list[str] = []
    if not stamp["complete"]:
        _remember(job.workspace, file)
        skipped = _write(found, job, stamp, progress)
        stamp.pop("kept", None)
        if file.suffix == ".parquet":
            write_parquet(file, _rows_file(file), _ids_file(file), stamp)
        stamp["sources"] = [*stamp["sources"], job.about]
        stamp["complete"] = True
        write_json(_stamp_file(file), stamp)
        if file.suffix == ".parquet":
            _rows_file(file).unlink(missing_ok=True)
            _ids_file(file).unlink(missing_ok=True)
    return Embedded(file, stamp["version"], stamp["rows"], stamp["rows"] - before, tuple(skipped))


def _begin(
    file: Path,
    fresh: dict[str, Any],
    about: dict[str, str],
    *,
    append: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """The stamp to go on from."""
    if overwrite:
        return fresh
    stamp = stamp_of(file)
    if stamp is None and not file.exists():
        return fresh
    if stamp is None:
        raise WorkspaceError(f"{file} is there and bears no stamp: choose another name")
    if stamp["workspace"] != fresh["workspace"]:
        raise WorkspaceError(
            f"{file} holds embeddings of another workspace, which do not go together: "
            "choose another name, or overwrite it"
        )
    if stamp["version"] != fresh["version"]:
        raise WorkspaceError(
            f"{file} holds embeddings of version {stamp['version']}, these would be of version "
            f"{fresh['version']}, and the two do not go together: overwrite it, or choose another "
            "name"
        )
    if not stamp["complete"]:
        if stamp["current"] != about:
            raise WorkspaceError(
                f"{file} is unfinished, with embeddings of {stamp['current']['path']} as it was: "
                "finish that first, or overwrite it"
            )
        return stamp
    if about in stamp["sources"]:
        return stamp
    if not append:
        raise WorkspaceError(
            f"{file} holds embeddings of other data by the same version: append to it, "
            "overwrite it, or choose another name"
        )
    # Parquet files cannot grow: the new rows wait beside it until they are complete.
    waiting = file.suffix == ".parquet"
    return {
        **stamp,
        "kept": stamp["rows"],
        "complete": False,
        "done": 0,
        "ids": 0 if waiting else stamp["ids"],
        "current": about,
    }


def _write(
    found: Callable[[int], Iterator[Piece]],
    job: _Job,
    stamp: dict[str, Any],
    progress: Callable[[int, int], None] | None,
) -> list[str]:
    file, source = job.file, job.source
    skipped: list[str] = []
    # Rows that are in the file already, as opposed to in a Parquet file that they will join.
    elsewhere = stamp.get("kept", 0) if file.suffix == ".parquet" else 0
    array: GrowingArray | None = None
    try:
        stamp["current"] = job.about
        write_json(_stamp_file(file), stamp)  # before the file changes: it is complete no longer
        with _ids_file(file).open("r+b" if stamp["ids"] else "w+b") as ids:
            ids.truncate(stamp["ids"])
            ids.seek(0, os.SEEK_END)
            for piece in found(stamp["done"]):
                skipped += piece.skipped
                if piece.rows is not None:
                    if array is None:
                        stamp["columns"] = piece.rows.shape[1]
                        array = GrowingArray(
                            _rows_file(file), piece.rows.shape[1], stamp["rows"] - elsewhere
                        )
                    array.add(piece.rows)
                    array.commit()
                    ids.write("".join(f"{json.dumps(name)}\n" for name in piece.names).encode())
                    ids.flush()
                    os.fsync(ids.fileno())
                stamp["ids"] = ids.tell()
                stamp["rows"] += len(piece.names)
                stamp["done"] += piece.passed
                write_json(_stamp_file(file), stamp)
                if progress is not None:
                    progress(stamp["done"], len(source))
    finally:
        if array is not None:
            array.__exit__(None, None, None)
    if stamp["rows"] == 0:
        _stamp_file(file).unlink()  # there is nothing to go on with
        _ids_file(file).unlink()
        raise _nothing(source, skipped)
    return skipped


def _nothing(source: Source, skipped: Sequence[str]) -> ValueError:
    return ValueError(f"nothing in {source.path} can be read; the first: {skipped[0]}")


def stamp_of(file: Path) -> dict[str, Any] | None:
    """What made a file or folder of embeddings; None if it bears no stamp."""
    stamp = _stamp_file(file)
    return read_json(stamp) if stamp.exists() else None


def outputs(workspace: Workspace) -> list[Path]:
    """The files of embeddings that this workspace has written and that are still there."""
    events = Journal(workspace.folder / OUTPUTS).events()
    files = map(Path, dict.fromkeys(event["file"] for event in events))
    return [file for file in files if file.exists() and _stamp_file(file).exists()]


def _remember(workspace: Workspace, file: Path) -> None:
    if file in outputs(workspace):
        return
    with suppress(OSError):  # a workspace that may only be read can still embed
        Journal(workspace.folder / OUTPUTS).add("embed", file=str(file))


def _stamp_file(file: Path) -> Path:
    if file.is_dir():
        return file / MANIFEST
    return file.with_name(f"{file.name}.json")


def _ids_file(file: Path) -> Path:
    if file.suffix == ".parquet":
        return file.with_name(f".{file.name}.ids.jsonl")
    return file.with_name(f"{file.stem}.ids.jsonl")


def _rows_file(file: Path) -> Path:
    return file if file.suffix == ".npy" else file.with_name(f".{file.name}.rows.npy")
