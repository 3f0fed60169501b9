"""Embeddings of a source: written as shards, stamped, and usually exported to one file."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from incontrast.data.source import Source
from incontrast.files import check_outside
from incontrast.workspace import stamps
from incontrast.workspace.files import Damaged, WorkspaceError, locked, read_json
from incontrast.workspace.shards import (
    STAMPED,
    Shards,
    by_first,
    export,
    finish_exports,
    leftovers,
    read_file,
)
from incontrast.workspace.workspace import Workspace


@dataclass(frozen=True)
class Embedded:
    """The result of embedding a source."""

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
    space: int | None = None,
    normalized: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    append: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Embedded:
    """Write the embeddings of a source to ``.npy``, to ``.parquet``, or to a folder of shards.

    An interrupted run is resumed. A file that has this source's embeddings by this version already
    is left alone; any other stays until the new one is complete, and is refused unless this is to
    ``append`` to it or to ``overwrite`` it. If there are several processes, all of them call this.

    Vectors are mapped into the ``space`` of another version, if one is given. ``strict`` refuses
    files that cannot be read. ``progress`` is called with the number of items done, and of all.
    """
    file = file.absolute()
    # Once, because another version may be promoted meanwhile.
    version = workspace.engine.broadcast(workspace.serving(version))
    _check_place(workspace, source, file, append)
    learner = workspace.learner(version, memory=False)
    source.check(learner.domain)
    name, count = Counter(_names(source)).most_common(1)[0] if _names(source) else ("", 0)
    if count > 1:
        raise ValueError(
            f"{source.path} has {count:,} items called {name!r}: give unique names, or no --id"
        )
    about: dict[str, Any] = {
        "workspace": workspace.id,
        "version": version,
        "encoder": workspace.encoder_hash(version),
        "normalized": normalized,
        "dtype": dtype,
        "source": {"path": source.title, "fingerprint": source.fingerprint()},
    }
    adapter = None
    if space is not None and space != version:
        adapter = workspace.adapter(version, space)
        about["source"]["embedded_by"] = about["encoder"]
        about |= {"version": space, "encoder": workspace.encoder_hash(space)}
    # The shards of a file lie beside it until they are complete.
    folder = stamps.beside(file, "shards") if file.suffix else file
    shards, engine = Shards(folder, about, learner, source, adapter), learner.engine
    begin = partial(_begin, workspace, file, shards, append=append, overwrite=overwrite)
    with locked(stamps.beside(file, "lock"), "embed", file) if engine.rank == 0 else nullcontext():
        done = by_first(engine, "begin to embed", begin)
        if done is None:
            shards.embed(strict=strict, progress=progress)
            done = by_first(engine, "write the embeddings", lambda: _finish(file, shards))
    return done


def _check_place(workspace: Workspace, source: Source, file: Path, append: bool) -> None:
    """Refuse to write where a workspace or the data are."""
    if file.suffix not in (".npy", ".parquet", ""):
        raise ValueError(
            f"embeddings are written to .npy, to .parquet or to a folder, got {file.name!r}"
        )
    if append and not file.suffix:
        raise ValueError("a folder holds embeddings of one source: choose another for more")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent}")
    check_outside(file)
    target, home, data = file.resolve(), workspace.folder.resolve(), source.path.resolve()
    if home.is_relative_to(target):
        raise ValueError(f"{file} is in the workspace {home}: choose a place outside of it")
    written = data in (target, stamps.stamp_file(target), stamps.ids_file(target))
    if written or target.is_relative_to(data) or data.is_relative_to(target):
        raise ValueError(f"{file} is where the data are ({data}): choose another place")


def _names(source: Source) -> Sequence[str]:
    """The names of items in a table, unless these are places, since others were left out."""
    ids = source.ids or ()
    places = map(str, range(len(source) + len(source.skipped)))
    return () if source.skipped and {*ids} <= {*places} else ids


def _begin(
    workspace: Workspace, file: Path, shards: Shards, *, append: bool, overwrite: bool
) -> Embedded | None:
    """The embeddings that are there if they are up to date; None if there is something to do."""
    about, source = shards.about, shards.about["source"]
    if file.suffix:
        finish_exports(file)
    stamp, begun = _stamp_to_keep(workspace, file, overwrite), None
    if (shards.folder / stamps.MANIFEST).exists() and not overwrite:
        begun = read_json(shards.folder / stamps.MANIFEST)
    stamp = stamp if stamp is not None and stamp["complete"] else None
    begun = begun if begun is not None and not begun["complete"] else None
    if stamp is not None:
        stamps.check_same(file, stamp, about)
        if append and "mapped" in stamp:
            raise WorkspaceError(
                f"{file} is in part mapped from version {stamp['mapped']['version'] or 'unknown'}: "
                "finish it with incontrast reembed first"
            )
        if source in stamp.get("sources", [stamp.get("source")]):
            if damage := stamps.problems(file):
                raise WorkspaceError(f"{damage[0]}: embed with --overwrite to replace it")
            return Embedded(file, stamp["version"], stamp["rows"], 0, ())
        names = _names(shards.source) if append else ()
        if names:
            there = {name for shard in read_file(file) for name in shard.names}
            again = [name for name in names if name in there]
            if again:
                raise WorkspaceError(
                    f"{file} has {len(again):,} of these {len(names):,} ids already, such as "
                    f"{again[0]!r}: leave these out, or embed all with --overwrite"
                )
    about["after"] = 0 if stamp is None else stamp["rows"]
    if begun is not None:
        stamps.check_same(file, begun, about)
        if begun["source"] != source:
            raise WorkspaceError(
                f"{file} is unfinished, with embeddings of {begun['source']['path']}: finish that "
                "first, or overwrite it"
            )
    elif stamp is not None and not append:
        raise WorkspaceError(
            f"{file} holds embeddings of other data by the same version: append or overwrite"
        )
    if begun is None or any(begun.get(name) != value for name, value in about.items()):
        shards.begin()
    stamps.register(workspace, file)
    return None


def _stamp_to_keep(workspace: Workspace, file: Path, overwrite: bool) -> dict[str, Any] | None:
    """The stamp of what is there and stays, if any; refuses files that ``embed`` did not write."""
    try:
        stamp = stamps.stamp_of(file)
    except Damaged as error:
        if file not in stamps.outputs(workspace):
            raise
        if not overwrite:
            raise Damaged(f"{error}, or embed with --overwrite") from error
        return None
    if stamp is not None and not file.exists():
        return None  # somebody has deleted it
    others: list[Path] = []
    if stamp is None:
        others = [file] if file.suffix else [*file.glob("*"), *([file] if file.is_file() else [])]
        if file.suffix == ".npy":
            others.append(stamps.ids_file(file))
    elif overwrite and stamp["complete"] and not file.suffix:
        ours = {name[:5] for name in stamp["files"]}
        others = [path for path in file.glob("[0-9]" * 5 + ".*") if path.name[:5] not in ours]
    folder = stamps.beside(file, "shards")
    if file.suffix and not (folder / stamps.MANIFEST).exists():
        others += folder.glob("*")
    for other in others:
        if other.exists() and other not in leftovers(other.parent):
            raise WorkspaceError(f"{other} was not written by embed: choose another name")
    return None if overwrite else stamp


def _finish(file: Path, shards: Shards) -> Embedded:
    version, source, before = (shards.about[name] for name in ("version", "source", "after"))
    manifest = shards.finish()
    skipped = [skip.reason for skip in shards.source.skipped]
    skipped += [reason for shard in shards.read() for reason in shard.skipped]
    if manifest["rows"] == 0:
        shutil.rmtree(shards.folder)
        raise ValueError(f"nothing in {source['path']} can be read; the first: {skipped[0]}")
    rows, added = before + manifest["rows"], manifest["rows"] - shards.found
    if file.suffix:
        earlier = (stamps.stamp_of(file) or {}) if before else {}
        stamp = {
            **{name: shards.about[name] for name in STAMPED},
            "rows": rows,
            "columns": manifest["columns"],
            "sources": [*earlier.get("sources", ()), source],
            "complete": True,
        }
        every = chain(read_file(file) if before else (), shards.read())
        export(file, shards.folder, every, stamp)
    return Embedded(file, version, rows, added, tuple(skipped))
