"""Indexes of unit vectors, in a FAISS file or in LanceDB, each with a stamp of its encoder."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.extras import needed
from incontrast.files import write_bytes

BATCH = 4096  # vectors that are read at a time


class Stamp(NamedTuple):
    """Which encoder the vectors of an index are from."""

    workspace: str
    version: int
    encoder: str


class Found(NamedTuple):
    """The nearest items of each query, nearest first; fewer where there are fewer items."""

    ids: list[list[str]]
    cosines: list[list[float]]


class Index(Protocol):
    """Vectors of one version by the names of their items."""

    stamp: Stamp

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        """Add (n, d) vectors, or replace those of the same items."""

    def search(self, queries: Tensor, count: int = 10) -> Found:
        """The nearest by cosine."""

    def delete(self, ids: Iterable[str]) -> None:
        """Remove items; unknown ones are ignored."""

    def exists(self) -> bool:
        """Whether anything was ever added, even if it was deleted since."""

    def ids(self) -> set[str]: ...

    def read(self, ids: Sequence[str]) -> Tensor:
        """(n, d) the vectors of these items."""

    def flush(self) -> None:
        """Return once everything is on the disk."""


class FaissIndex:
    """An exact index in one file, which is replaced as a whole; needs faiss-cpu.

    What was added since the last ``flush`` is lost if the process ends.
    """

    def __init__(self, file: str | Path, stamp: Stamp) -> None:
        self.file, self.stamp = Path(file), stamp
        with needed("this index needs faiss", "search"):
            import faiss
        self._faiss = faiss
        self._index: Any = None
        self._keys: dict[str, int] = {}
        if self.file.exists():
            with np.load(self.file, allow_pickle=False) as content:
                _check_stamp(self.file, Stamp(*json.loads(str(content["stamp"]))), stamp)
                self._keys = dict(
                    zip(content["ids"].tolist(), content["keys"].tolist(), strict=True)
                )
                self._index = faiss.deserialize_index(content["index"])
        self._names = {key: name for name, key in self._keys.items()}
        self._next = max(self._names, default=-1) + 1

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        rows = unit_rows(ids, vectors, None if self._index is None else self._index.d)
        if self._index is None:
            self._index = self._faiss.IndexIDMap2(self._faiss.IndexFlatIP(rows.shape[1]))
        self.delete(ids)
        keys = range(self._next, self._next + len(ids))
        self._next += len(ids)
        self._index.add_with_ids(rows, np.array(keys, np.int64))
        self._keys |= dict(zip(ids, keys, strict=True))
        self._names |= dict(zip(keys, ids, strict=True))

    def search(self, queries: Tensor, count: int = 10) -> Found:
        if not self._keys:
            return Found([[] for _ in queries], [[] for _ in queries])
        rows = unit_rows(range(len(queries)), queries, self._index.d)
        cosines, keys = self._index.search(rows, min(count, len(self._keys)))
        return Found([[self._names[key] for key in row] for row in keys.tolist()], cosines.tolist())

    def delete(self, ids: Iterable[str]) -> None:
        keys = [self._keys.pop(name) for name in ids if name in self._keys]
        for key in keys:
            del self._names[key]
        if keys:
            self._index.remove_ids(np.array(keys, np.int64))

    def exists(self) -> bool:
        return self._index is not None

    def ids(self) -> set[str]:
        return set(self._keys)

    def read(self, ids: Sequence[str]) -> Tensor:
        rows = [self._index.reconstruct(self._keys[name]) for name in ids]
        return torch.from_numpy(np.stack(rows))

    def flush(self) -> None:
        if self._index is None:
            return
        content = io.BytesIO()
        np.savez(
            content,
            index=self._faiss.serialize_index(self._index),
            ids=np.array(list(self._keys), dtype=np.str_),
            keys=np.array(list(self._keys.values()), np.int64),
            stamp=np.array(json.dumps(self.stamp)),
        )
        write_bytes(self.file, content.getvalue())


class LanceIndex:
    """A table of LanceDB, in a folder or in object storage; needs lancedb.

    Every change is durable when its call returns.
    """

    def __init__(self, place: str | Path, stamp: Stamp, *, table: str = "vectors") -> None:
        self.stamp, self._name = stamp, table
        with needed("this index needs lancedb", "lancedb"):
            import lancedb
        # The interval makes changes by other processes visible.
        self._database = lancedb.connect(str(place), read_consistency_interval=timedelta(0))
        self._table: Any = None
        if table in self._database.list_tables().tables:
            self._table = self._database.open_table(table)
            metadata = self._table.schema.metadata[b"incontrast"]
            _check_stamp(place, Stamp(*json.loads(metadata)), stamp)

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        import pyarrow

        width = None if self._table is None else self._table.schema.field("vector").type.list_size
        rows = unit_rows(ids, vectors, width)
        values = pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(rows.reshape(-1)), rows.shape[1]
        )
        schema = pyarrow.schema(
            [("id", pyarrow.string()), ("vector", values.type)],
            metadata={"incontrast": json.dumps(self.stamp)},
        )
        batch = pyarrow.table([pyarrow.array(list(ids), pyarrow.string()), values], schema=schema)
        if self._table is None:
            self._table = self._database.create_table(self._name, batch)
            return
        merge = self._table.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(batch)

    def search(self, queries: Tensor, count: int = 10) -> Found:
        found = Found([], [])
        for query in normalize(queries.float()).numpy():
            rows = []
            if self._table is not None:
                search = self._table.search(query).distance_type("cosine").limit(count)
                rows = search.select(["id", "_distance"]).to_list()
            found.ids.append([row["id"] for row in rows])
            found.cosines.append([1.0 - row["_distance"] for row in rows])
        return found

    def delete(self, ids: Iterable[str]) -> None:
        for names in batches(ids) if self._table is not None else ():
            self._table.delete(_condition(names))

    def exists(self) -> bool:
        return self._table is not None

    def ids(self) -> set[str]:
        if self._table is None:
            return set()
        return set(self._table.search().select(["id"]).to_arrow().column("id").to_pylist())

    def read(self, ids: Sequence[str]) -> Tensor:
        rows = self._table.search().where(_condition(ids)).limit(len(ids)).to_list()
        vectors = {row["id"]: row["vector"] for row in rows}
        return torch.tensor([vectors[name] for name in ids])

    def flush(self) -> None:
        pass


def _condition(ids: Sequence[str]) -> str:
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in ids)
    return f"id IN ({quoted})"


def unit_rows(ids: Sequence[Any], vectors: Tensor, width: int | None = None) -> NDArray[np.float32]:
    """(n, d) unit vectors, or an error if they do not fit the items or the width of the index."""
    vectors, count = torch.as_tensor(vectors), len(ids)  # embeddings in a file are NumPy's
    if vectors.ndim != 2 or len(vectors) != count:
        raise ValueError(f"{count} items need ({count}, d) vectors, got {tuple(vectors.shape)}")
    if len(set(ids)) < len(ids):
        [(repeated, _)] = Counter(ids).most_common(1)
        raise ValueError(f"an item has one vector, got several of {repeated!r}: keep one of them")
    if width not in (None, vectors.shape[1]):
        raise ValueError(f"the index has {width} dimensions, vectors {vectors.shape[1]}: map them")
    if not bool(vectors.isfinite().all()):
        raise ValueError("vectors must be finite, got NaN or infinity")
    return normalize(vectors.float()).numpy()


def _check_stamp(place: object, stamp: Stamp, expected: Stamp) -> None:
    if stamp != expected:
        raise ValueError(
            f"{place} holds vectors of version {stamp.version} (encoder {stamp.encoder[:8]}), "
            f"not of version {expected.version} (encoder {expected.encoder[:8]})"
        )


def batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """The names in alphabetical order, some at a time."""
    names = sorted(ids)
    for first in range(0, len(names), BATCH):
        yield names[first : first + BATCH]
