"""Shards of embeddings as one file, ``.npy`` or ``.parquet``: replaced as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from incontrast.files import flush_files
from incontrast.workspace.files import read_json, write_json
from incontrast.workspace.shards import Shards
from incontrast.workspace.stamps import MANIFEST, digest, ids_file, stamp_file

ROWS = 8192  # in a group of a Parquet file, or of an array that is copied


def export(file: Path, shards: Shards, stamp: dict[str, Any], *, kept: int) -> None:
    """Write shards to a file, after rows that are there, and delete them.

    Args:
        file: The file; the new one waits among the shards until it is whole.
        shards: The new rows.
        stamp: What the file will be of, with its ``rows`` and ``columns``.
        kept: Rows of the file that stay, in front of the new ones.
    """
    folder = shards.folder
    write = _write_parquet if file.suffix == ".parquet" else _write_npy
    written = write(file, shards, stamp, kept)
    flush_files(folder)
    whole = {**stamp, "files": {part.name: digest(part) for part in written}}
    write_json(folder / MANIFEST, {**shards.about, "complete": True, "export": whole})
    finish_export(file, folder)


def finish_export(file: Path, folder: Path) -> bool:
    """Move an exported file into place, if there is one that waits for it; returns whether."""
    manifest = folder / MANIFEST
    stamp = read_json(manifest).get("export") if manifest.exists() else None
    if stamp is None:
        return False
    for target in (ids_file(file), file):
        if (folder / target.name).exists():
            (folder / target.name).replace(target)
    write_json(stamp_file(file), stamp)  # which also flushes the folder
    shutil.rmtree(folder)
    return True


def _write_npy(file: Path, shards: Shards, stamp: dict[str, Any], kept: int) -> list[Path]:
    rows, ids = shards.folder / file.name, shards.folder / ids_file(file).name
    kind = {"descr": "<f4", "fortran_order": False, "shape": (stamp["rows"], stamp["columns"])}
    with rows.open("wb") as array, ids.open("w", encoding="utf-8") as lines:
        np.lib.format.write_array_header_1_0(array, kind)
        if kept:
            before = np.load(file, mmap_mode="r", allow_pickle=False)
            for start in range(0, len(before), ROWS):
                array.write(before[start : start + ROWS].tobytes())
            with ids_file(file).open(encoding="utf-8") as names:
                shutil.copyfileobj(names, lines)
        for shard in shards.read():
            array.write(np.ascontiguousarray(shard.rows, "<f4").tobytes())
            lines.writelines(f"{json.dumps(name)}\n" for name in shard.names)
    return [rows, ids]


def _write_parquet(file: Path, shards: Shards, stamp: dict[str, Any], kept: int) -> list[Path]:
    """A column of ids and one of vectors, with the stamp in its metadata."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            'writing Parquet needs pyarrow: pip install "incontrast[parquet]", or write to .npy'
        ) from error
    about = {name: stamp[name] for name in ("workspace", "version", "encoder")}
    vector = pyarrow.list_(pyarrow.float32(), stamp["columns"])
    schema = pyarrow.schema(
        [("id", pyarrow.string()), ("embedding", vector)],
        metadata={"incontrast": json.dumps(about)},
    )
    target = shards.folder / file.name
    with parquet.ParquetWriter(target, schema) as writer:
        if kept:
            for batch in parquet.ParquetFile(file).iter_batches(ROWS):
                writer.write_batch(batch)
        for shard in shards.read():
            if shard.names:
                flat = pyarrow.array(shard.rows.reshape(-1))
                vectors = pyarrow.FixedSizeListArray.from_arrays(flat, stamp["columns"])
                batch = pyarrow.record_batch([pyarrow.array(shard.names), vectors], schema=schema)
                writer.write_batch(batch, row_group_size=ROWS)
    return [target]
