"""Embeddings as Parquet: a column of ids and one of vectors, with the stamp in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from incontrast.workspace.files import flush, flush_folder

__all__ = ["write_parquet"]

ROWS = 8192  # in a group


def write_parquet(file: Path, rows: Path, ids: Path, stamp: dict[str, Any]) -> None:
    """Write a Parquet file of what is there already and of new rows; whole or not at all.

    Args:
        file: The Parquet file; its rows come first if it is there and the stamp says so.
        rows: The new rows as ``.npy``.
        ids: Their names, one JSON text per line.
        stamp: What made them.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            'writing Parquet needs pyarrow: pip install "incontrast[parquet]", or write to .npy'
        ) from error
    if stamp["sources"] and parquet.ParquetFile(file).metadata.num_rows == stamp["rows"]:
        return  # an interruption came after this
    beside = file.with_name(f".{file.name}.writing")
    about = {"workspace": stamp["workspace"], "version": stamp["version"]}
    schema = pyarrow.schema(
        [
            ("id", pyarrow.string()),
            ("embedding", pyarrow.list_(pyarrow.float32(), stamp["columns"])),
        ],
        metadata={"incontrast": json.dumps(about)},
    )

    def groups() -> Iterator[Any]:
        if stamp["sources"]:
            yield from parquet.ParquetFile(file).iter_batches(ROWS)
        array = np.load(rows, mmap_mode="r", allow_pickle=False)
        for start in range(0, len(array), ROWS):
            part = np.array(array[start : start + ROWS])
            names = [json.loads(line) for line in islice(lines, len(part))]
            vectors = pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(part.reshape(-1)), stamp["columns"]
            )
            yield pyarrow.record_batch([pyarrow.array(names), vectors], schema=schema)

    with ExitStack() as stack:
        lines = stack.enter_context(ids.open(encoding="utf-8"))
        writer = stack.enter_context(parquet.ParquetWriter(beside, schema))
        for batch in groups():
            writer.write_batch(batch)
    flush(beside)
    beside.replace(file)
    flush_folder(file.parent)
