"""Tables in NumPy's files, .npy and .npz. Pickled objects never load."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from incontrast.data.tables import Table, check_size


class NpyTable(Table):
    """A .npy file with one array; ``embed`` writes the ids of the rows to another file."""

    def numbers(self) -> StoredRows | NDArray[Any]:
        for name in (*self.metadata, *(self.columns or ())):
            raise ValueError(
                f"{self.path} holds one array and no column {name!r}: use .npz, .csv or .parquet"
            )
        file = self.path.with_name(f"{self.path.stem}.ids.jsonl")
        if file.is_file():
            self.id, self.ids_by_embed = "id", True
            self.metadata["id"] = list(map(json.loads, file.read_text("utf-8").splitlines()))
        return _read_npy(self.path)


class NpzTable(Table):
    """A .npz file with an array of rows, and others of ids and labels if these are chosen."""

    def open(self) -> None:
        with _damage_refused(self.path), zipfile.ZipFile(self.path) as archive:
            members = archive.infolist()
        self._size = sum(member.file_size for member in members)
        if len(members) > 1:
            self.names = [member.filename.removesuffix(".npy") for member in members]

    def numbers(self) -> NDArray[Any]:
        check_size(self._size, self.path)
        with _damage_refused(self.path), np.load(self.path, allow_pickle=False) as content:
            # A member that is not a .npy file is read as bytes.
            arrays = {name: np.asarray(content[name]) for name in content.files}
        names = list(arrays)
        features = [names[place] for place in self.features(names)]
        if len(features) != 1:
            raise ValueError(
                f"{self.path} must hold one array besides ids and labels, got {features}: name it "
                "by columns"
            )
        rows: NDArray[Any] = arrays[features[0]]
        for name in self.metadata:
            if arrays[name].shape != rows.shape[:1]:
                raise ValueError(
                    f"{self.path} has {len(rows)} rows but {name!r} of shape {arrays[name].shape}"
                )
            self.metadata[name] = arrays[name].tolist()
        return rows


class StoredRows:
    """The rows of a .npy file, which stay on disk until they are used.

    They are read and not mapped: a file that shrinks under a memory map ends the process.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int):
        self.path, self.shape, self.dtype, self.offset = path, shape, dtype, offset
        self.ndim = len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, stop, _ = part.indices(len(self))
        width = self.shape[1]
        count = (stop - start) * width
        place = self.offset + start * width * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, count, offset=place)
        if len(values) != count:
            raise ValueError(f"{self.path} was shortened while it was read: run it again")
        return values.reshape(-1, width)

    def select(self, indices: Tensor) -> NDArray[Any]:
        """These rows, in this order."""
        runs = np.split(indices.numpy(), np.flatnonzero(np.diff(indices.numpy()) != 1) + 1)
        return np.concatenate([self[run[0] : run[-1] + 1] for run in runs])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


@contextmanager
def _damage_refused(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # damaged archives and headers make NumPy raise nearly anything
        raise ValueError(f"{path} cannot be read: {error}") from error


def _read_npy(path: Path) -> StoredRows | NDArray[Any]:
    """The array of a file, which stays on disk if it is a table."""
    with _damage_refused(path), path.open("rb") as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_column, dtype = header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which could run code and are never loaded")
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
        if min(shape, default=0) < 0 or path.stat().st_size - file.tell() < size:
            raise ValueError(f"it ends before the {size} bytes that its header says")
        if len(shape) == 2 and size and not by_column:
            return StoredRows(path, shape, dtype, file.tell())
        check_size(size, path)
        file.seek(0)
        whole: NDArray[Any] = np.load(file, allow_pickle=False)
    return whole
