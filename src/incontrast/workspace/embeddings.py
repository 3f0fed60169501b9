"""Embeddings of a source: written as shards, stamped, exported to one file where one is wanted."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from incontrast.data.source import Source
from incontrast.files import check_outside
from incontrast.workspace.files import Damaged, WorkspaceError, guarded, read_json
from incontrast.workspace.shards import (
    STAMPED,
    Shards,
    export,
    finish_exports,
    leftovers,
    read_file,
    workplace,
)
from incontrast.workspace.stamps import (
    MANIFEST,
    ids_file,
    outputs,
    problems,
    register,
    stamp_file,
    stamp_of,
)
from incontrast.workspace.workspace import Workspace


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
    space: int | None = None,
    normalized: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    append: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Embedded:
    """Write the embeddings of a source to ``.npy``, to ``.parquet``, or to a folder of shards.

    An interrupted run is resumed. A file that holds this source's embeddings by this version
    already is left as it is; any other stays as it is until the new one is complete. Where several
    processes work together, all of them call this.

    Args:
        workspace: Whose encoder.
        source: What to embed.
        file: Where to; a name without a suffix is a folder of shards with a manifest.
        version: The version; the current one by default.
        space: The version whose vectors these will lie beside: they are mapped into its space.
        normalized: Write unit vectors.
        dtype: ``"float16"`` halves the file, at three digits.
        append: Add to a file that holds embeddings of other data, by the same version.
        overwrite: Replace embeddings of another version or of other data.
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
    if append and not file.suffix:
        raise ValueError("a folder holds embeddings of one source: choose another for more")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent}")
    # Once: another may be promoted meanwhile.
    version = workspace.engine.broadcast(workspace.serving(version))
    learner = workspace.learner(version, memory=False)
    source.check(learner.domain)
    _check_place(file, workspace, source)
    _check_names(source)
    about: dict[str, Any] = {
        "workspace": workspace.id,
        "version": version,
        "encoder": workspace.encoder_hash(version),
        "normalized": normalized,
        "dtype": dtype,
        "source": {"path": source.title, "fingerprint": source.fingerprint()},
    }
    mapped = None
    if space is not None and space != version:
        mapped = workspace.adapter(version, space)
        about["source"]["embedded_by"] = about["encoder"]
        about |= {"version": space, "encoder": workspace.encoder_hash(space)}
    # The shards of a file lie beside it until they are complete.
    folder = workplace(file, "shards") if file.suffix else file
    shards = Shards(folder, about, learner, source, mapped)
    engine = learner.engine
    done: Embedded | None = None
    with guarded(file) if engine.rank == 0 else nullcontext():
        with engine.error_barrier("begin to embed"):
            if engine.rank == 0:
                done = _begin(workspace, file, shards, append=append, overwrite=overwrite)
        done = engine.broadcast(done)
        if done is None:
            shards.embed(strict=strict, progress=progress)
            with engine.error_barrier("write the embeddings"):
                if engine.rank == 0:
                    done = _finish(file, shards)
        done = engine.broadcast(done)
    assert done is not None
    return done


def _check_place(file: Path, workspace: Workspace, source: Source) -> None:
    """Refuse to write where a workspace or the data are."""
    target, home, data = file.resolve(), workspace.folder.resolve(), source.path.resolve()
    written = {target, stamp_file(target), ids_file(target)}
    check_outside(file)  # nor in another one
    if home.is_relative_to(target):
        raise ValueError(f"{file} is in the workspace {home}: choose a place outside of it")
    if target.is_relative_to(data) or data.is_relative_to(target) or data in written:
        raise ValueError(f"{file} is where the data are ({data}): choose another place")


def _begin(
    workspace: Workspace, file: Path, shards: Shards, *, append: bool, overwrite: bool
) -> Embedded | None:
    """What there is, if it is up to date; None if there is something to embed."""
    wanted, data = shards.about, shards.about["source"]
    if file.suffix:
        finish_exports(file)
    stamp, begun = _written(workspace, file, overwrite), None
    if (shards.folder / MANIFEST).exists() and not overwrite:
        begun = read_json(shards.folder / MANIFEST)
    stamp = stamp if stamp is not None and stamp["complete"] else None
    begun = begun if begun is not None and not begun["complete"] else None
    if stamp is not None:
        _check_same(file, stamp, wanted)
        if append and "mapped" in stamp:
            raise WorkspaceError(
                f"{file} is in part mapped from version {stamp['mapped']['version'] or 'unknown'}: "
                "finish it with incontrast reembed before more is appended"
            )
        if data in stamp.get("sources", [stamp.get("source")]):
            if damage := problems(file):
                raise WorkspaceError(f"{damage[0]}: embed with --overwrite to replace it")
            return Embedded(file, stamp["version"], stamp["rows"], 0, ())
        if append and shards.source.ids is not None and not _are_places(shards.source):
            _check_ids(file, shards.source.ids)
    wanted["after"] = 0 if stamp is None else stamp["rows"]
    if begun is not None:
        _check_same(file, begun, wanted)
        if begun["source"] != data:
            raise WorkspaceError(
                f"{file} is unfinished, with embeddings of {begun['source']['path']} as it was: "
                "finish that first, or overwrite it"
            )
    elif stamp is not None and not append:
        raise WorkspaceError(
            f"{file} holds embeddings of other data by the same version: append to it, "
            "overwrite it, or choose another name"
        )
    if begun is None or any(begun.get(name) != value for name, value in wanted.items()):
        shards.begin()
    register(workspace, file)
    return None


def _written(workspace: Workspace, file: Path, overwrite: bool) -> dict[str, Any] | None:
    """The stamp of what is there and stays; None if nothing does. Refuses what others wrote."""
    try:
        stamp = stamp_of(file)
    except Damaged as error:
        if file not in outputs(workspace):
            raise
        if not overwrite:
            raise Damaged(f"{error}, or embed with --overwrite") from error
        return None  # it is ours, and goes
    if stamp is not None and not file.exists():
        return None  # somebody has deleted it
    others: list[Path] = []
    if stamp is None:
        others = [file] if file.suffix else [*file.glob("*"), *([file] if file.is_file() else [])]
        if file.suffix == ".npy":
            others.append(ids_file(file))
    elif overwrite and stamp["complete"] and not file.suffix:
        written = {name[:5] for name in stamp["files"]}
        others = [path for path in file.glob("[0-9]" * 5 + ".*") if path.name[:5] not in written]
    beside = workplace(file, "shards")
    if file.suffix and not (beside / MANIFEST).exists():
        others += beside.glob("*")
    for other in others:
        if other.exists() and other not in leftovers(other.parent):
            raise WorkspaceError(f"{other} was not written by embed: choose another name")
    return None if overwrite else stamp


def _check_same(file: Path, stamp: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to mix embeddings of different encoders."""
    advice, version = "overwrite it, or choose another name", stamp["version"]
    length, option = ("unit", "with") if stamp["normalized"] else ("their own", "without")
    differences = {
        "workspace": f"another workspace, which cannot be mixed: {advice}",
        "version": f"version {version}, these would be of version {wanted['version']}, and the two "
        f"cannot be mixed: replace it (--overwrite), embed for its space (--space {version}), or "
        f"bring it along (incontrast reembed {file.name})",
        "encoder": f"another version {version}, with other weights: {advice}",
        "normalized": f"{length} length: embed {option} --normalize, {advice}",
        "dtype": f"type {stamp['dtype']}: {advice}",
    }
    for name, what in differences.items():
        if stamp[name] != wanted[name]:
            raise WorkspaceError(f"{file} holds embeddings of {what}")


def _are_places(source: Source) -> bool:
    """Whether items are named by their places, since others were left out."""
    there = len(source) + len(source.skipped)
    return bool(source.skipped) and {*(source.ids or ())} <= {*map(str, range(there))}


def _check_names(source: Source) -> None:
    """Refuse a table in which several items have one name."""
    if len({*(source.ids or ())}) < len(source.ids or ()) and not _are_places(source):
        name, count = Counter(source.ids).most_common(1)[0]
        raise ValueError(
            f"{source.path} has {count:,} items that are called {name!r}, and a row is found by "
            "its name: give each its own, or embed without --id"
        )


def _check_ids(file: Path, ids: Sequence[str]) -> None:
    """Refuse a second vector of an item that has a name in its table."""
    there = {name for shard in read_file(file) for name in shard.names}
    again = [name for name in ids if name in there]
    if again:
        raise WorkspaceError(
            f"{file} has {len(again):,} of these {len(ids):,} ids already, such as {again[0]!r}: "
            "leave these rows out, or embed all rows with --overwrite"
        )


def _finish(file: Path, shards: Shards) -> Embedded:
    version, source, kept = (shards.about[name] for name in ("version", "source", "after"))
    manifest = shards.finish()
    skipped = tuple(skip.reason for skip in shards.source.skipped)
    skipped += tuple(reason for shard in shards.read() for reason in shard.skipped)
    if manifest["rows"] == 0:
        shutil.rmtree(shards.folder)
        raise ValueError(f"nothing in {source['path']} can be read; the first: {skipped[0]}")
    added = manifest["rows"] - shards.found
    if file.suffix:
        before = stamp_of(file) if kept else None
        stamp = {
            **{name: shards.about[name] for name in STAMPED},
            "rows": kept + manifest["rows"],
            "columns": manifest["columns"],
            "sources": [*(before["sources"] if before else []), source],
            "complete": True,
        }
        whole = chain(read_file(file) if kept else (), shards.read())
        export(file, shards.folder, whole, stamp)
    return Embedded(file, version, kept + manifest["rows"], added, skipped)
