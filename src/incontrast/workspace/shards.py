"""Embeddings of a source as a folder of shards, written by one process or by many.

A shard is a range of the source's items, the same for any number of processes, so what is there is
never computed again. ``00007.npy`` has the rows, ``00007.ids.jsonl`` the name of each row's item;
``00007.json`` is written last, and completes the shard. ``manifest.json`` describes the shards, and
says whether all are there. ``export`` makes one file of them, which is replaced as a whole.
"""

import io
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import normalize

from incontrast.compat import Chain
from incontrast.data.source import Source, rows_at_once
from incontrast.data.tables import open_parquet
from incontrast.extras import needed
from incontrast.files import flush_files, make_folder, write_bytes
from incontrast.learner import Learner
from incontrast.training.engine import BATCH_SIZE, Engine, embed
from incontrast.workspace import stamps
from incontrast.workspace.files import Damaged, read_json, write_json

T = TypeVar("T")

_LEFTOVER = re.compile(r"\.(manifest|\d{5})\.(json|npy|ids\.jsonl)\.\d+")
STAMPED = ("workspace", "version", "encoder", "normalized", "dtype")
ROWS = 8192  # in a group of a Parquet file, or of an array that is copied


class Shard(NamedTuple):
    """Embeddings of some items that follow each other in a source."""

    rows: NDArray[Any]  # (n, d); (0, 0) where nothing can be read
    names: list[str]  # one for each row
    skipped: list[str]  # why items were left out


def by_first(engine: Engine, task: str, work: Callable[[], T]) -> T:
    """What the first process makes of some work, for all processes."""
    result = None
    with engine.error_barrier(task):
        if engine.rank == 0:
            result = work()
    return cast(T, engine.broadcast(result))


def leftovers(folder: Path) -> list[Path]:
    """What an interrupted writing has left among shards."""
    return [path for path in folder.glob(".*") if _LEFTOVER.fullmatch(path.name)]


class Shards:
    """A folder of shards.

    ``about`` describes them: workspace, version, source, whether they are normalised, their type.
    Shards of anything else do not count. ``adapter`` maps embeddings into another space.
    """

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        learner: Learner,
        source: Source,
        adapter: Chain | None = None,
    ) -> None:
        rows = rows_at_once(learner.domain)
        # A quarter of a chunk if that is a whole number of batches.
        self.size = rows if rows % (4 * BATCH_SIZE) else rows // 4
        self.folder = folder
        self.about = {**about, "items": len(source), "size": self.size}
        self.learner, self.source, self.adapter = learner, source, adapter
        self.found = 0  # rows that were there before this run

    def __len__(self) -> int:
        return math.ceil(len(self.source) / self.size)

    def file(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:05d}{suffix}"

    def begin(self) -> None:
        make_folder(self.folder)
        write_json(self.folder / stamps.MANIFEST, {**self.about, "complete": False, "rows": 0})

    def embed(self, *, strict: bool, progress: Callable[[int, int], None] | None) -> None:
        """Embed what is missing; all processes call this, and each shard is the work of one."""
        engine, total = self.learner.engine, len(self.source)
        missing = by_first(engine, "find shards", self._missing)
        for start in range(0, len(missing), engine.processes):
            # In rounds, so that a failed or lost process is noticed after one shard.
            with engine.error_barrier("embed its items"):
                for number in missing[start:][engine.rank : engine.rank + 1]:
                    self._write(number, self._embedded(number, strict))
            if progress is not None:
                left = missing[start + engine.processes :]
                sizes = (min(self.size, total - number * self.size) for number in left)
                progress(total - sum(sizes), total)

    def finish(self) -> dict[str, Any]:
        """Complete the manifest; returns it."""
        shards: list[dict[str, Any]] = []
        files: dict[str, Any] = {}
        columns = 0
        for number in range(len(self)):
            record = self.file(number, ".json")
            part = read_json(record)
            columns = max(columns, part["columns"])
            name = self.file(number, ".npy").name
            shards.append({"file": name, "first": number * self.size, "rows": part["rows"]})
            files |= {record.name: stamps.digest(record), **part["files"]}
        number = len(self)
        while self.file(number, ".json").exists():  # of a source that had more items
            for suffix in (".json", ".ids.jsonl", ".npy"):
                self.file(number, suffix).unlink(missing_ok=True)
            number += 1
        rows = sum(shard["rows"] for shard in shards)
        counts = {"complete": True, "rows": rows, "columns": columns}
        manifest = {**self.about, **counts, "shards": shards, "files": files}
        write_json(self.folder / stamps.MANIFEST, manifest)
        return manifest

    def read(self) -> Iterator[Shard]:
        """The shards in the order of the source."""
        for number in range(len(self)):
            lines = self.file(number, ".ids.jsonl").read_text(encoding="utf-8").splitlines()
            skipped = read_json(self.file(number, ".json"))["skipped"]
            rows = np.load(self.file(number, ".npy"))
            yield Shard(rows, [json.loads(line) for line in lines], skipped)

    def _missing(self) -> list[int]:
        for path in leftovers(self.folder):
            path.unlink()
        there = {number: self._rows(number) for number in range(len(self))}
        self.found = sum(rows or 0 for rows in there.values())
        return [number for number, rows in there.items() if rows is None]

    def _rows(self, number: int) -> int | None:
        """The number of rows of a shard; None if it is missing, damaged, or of something else."""
        try:
            about = read_json(self.file(number, ".json"))
        except Damaged:
            return None
        whole = about["of"] == self.about and not stamps.damaged(self.folder, about["files"])
        return about["rows"] if whole else None

    def _embedded(self, number: int, strict: bool) -> Shard:
        learner, first = self.learner, number * self.size
        alone = Engine(learner.engine.device, learner.engine.precision)
        stop = first + self.size  # within one chunk
        chunk = next(self.source.chunks(learner.domain, strict=strict, start=first, stop=stop))
        skipped = [skip.reason for skip in chunk.skipped]
        if not chunk.names:
            return Shard(np.empty((0, 0), np.float32), [], skipped)
        vectors = embed(learner.backbone, learner.domain, chunk.items, engine=alone)
        vectors = vectors if self.adapter is None else self.adapter(vectors)
        vectors = normalize(vectors) if self.about["normalized"] else vectors
        return Shard(vectors.numpy().astype(self.about["dtype"]), chunk.names, skipped)

    def _write(self, number: int, shard: Shard) -> None:
        array, ids = self.file(number, ".npy"), self.file(number, ".ids.jsonl")
        write_array(array, shard.rows)
        write_bytes(ids, "".join(f"{json.dumps(name)}\n" for name in shard.names).encode())
        rows, columns = shard.rows.shape
        about = {"of": self.about, "rows": rows, "columns": columns, "skipped": shard.skipped}
        files = {file.name: stamps.digest(file) for file in (array, ids)}
        write_json(self.file(number, ".json"), {**about, "files": files})


def write_array(file: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file atomically."""
    content = io.BytesIO()
    np.save(content, array)
    write_bytes(file, content.getvalue())


def read_file(file: Path) -> Iterator[Shard]:
    """The rows of a file that ``export`` wrote, some at a time."""
    if file.suffix == ".npy":
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
        with stamps.ids_file(file).open(encoding="utf-8") as lines:
            for start in range(0, len(rows), ROWS):
                names = [json.loads(line) for line in islice(lines, ROWS)]
                yield Shard(rows[start : start + ROWS], names, [])
        return
    with open_parquet(file) as content:
        for batch in content.iter_batches(ROWS, columns=["id", "embedding"]):
            flat = batch.column("embedding").flatten().to_numpy(zero_copy_only=False)
            names = batch.column("id").to_pylist()
            yield Shard(flat.reshape(len(names), -1), names, [])


def export(file: Path, folder: Path, shards: Iterable[Shard], stamp: dict[str, Any]) -> None:
    """Write shards to a file, by way of this folder, which is deleted at the end.

    ``stamp`` describes the file, with its number of ``rows`` and ``columns``.
    """
    new = folder / file.name
    write = _write_parquet if file.suffix == ".parquet" else _write_npy
    write(new, shards, stamp)
    flush_files(folder)
    parts = (new, stamps.ids_file(new), stamps.order_file(new))
    files = {part.name: stamps.digest(part) for part in parts if part.exists()}
    waiting = {"complete": True, "export": {**stamp, "files": files}}
    write_json(folder / stamps.MANIFEST, {**waiting, "replaces": _stamp_digest(file)})
    finish_exports(file)


def finish_exports(file: Path) -> None:
    """Move an exported file that waits into place.

    It is dropped if the file that it was to replace has been replaced by another one.
    """
    for folder in (stamps.beside(file, "shards"), stamps.beside(file, "reembed")):
        waiting = folder / stamps.MANIFEST
        manifest = read_json(waiting) if waiting.exists() else {}
        if "export" not in manifest:
            continue
        stamp = manifest["export"]
        if manifest["replaces"] == _stamp_digest(file):
            for name in reversed(stamp["files"]):
                if (folder / name).exists():
                    (folder / name).replace(file.with_name(name))
            write_json(stamps.stamp_file(file), stamp)  # which also flushes the folder
        shutil.rmtree(folder)


def _stamp_digest(file: Path) -> dict[str, int] | None:
    """The digest of the stamp, which is the last file that an export replaces."""
    return stamps.digest(stamps.stamp_file(file)) if stamps.stamp_file(file).exists() else None


def _write_npy(file: Path, shards: Iterable[Shard], stamp: dict[str, Any]) -> None:
    descr = np.dtype(stamp["dtype"]).newbyteorder("<").str
    kind = {"descr": descr, "fortran_order": False, "shape": (stamp["rows"], stamp["columns"])}
    with file.open("wb") as array, stamps.ids_file(file).open("w", encoding="utf-8") as lines:
        np.lib.format.write_array_header_1_0(array, kind)
        for shard in shards:
            array.write(np.ascontiguousarray(shard.rows, descr).tobytes())
            lines.writelines(f"{json.dumps(name)}\n" for name in shard.names)


def _write_parquet(file: Path, shards: Iterable[Shard], stamp: dict[str, Any]) -> None:
    """A column of ids and one of vectors, with the stamp in its metadata."""
    with needed("writing Parquet, unlike .npy, needs pyarrow", "parquet", ValueError):
        import pyarrow
        from pyarrow import parquet
    vector = pyarrow.list_(pyarrow.from_numpy_dtype(stamp["dtype"]), stamp["columns"])
    schema = pyarrow.schema(
        [("id", pyarrow.string()), ("embedding", vector)],
        metadata={"incontrast": json.dumps({name: stamp[name] for name in STAMPED})},
    )
    with parquet.ParquetWriter(file, schema) as writer:
        for shard in shards:
            if shard.names:
                flat = pyarrow.array(shard.rows.reshape(-1))
                vectors = pyarrow.FixedSizeListArray.from_arrays(flat, stamp["columns"])
                batch = pyarrow.record_batch([pyarrow.array(shard.names), vectors], schema=schema)
                writer.write_batch(batch, row_group_size=ROWS)
