"""Rows of numbers in a .npy file, which stay on disk until they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 2 * 2**30
"""Bytes of numbers that are read into memory; a file of a few kilobytes can hold many more."""


class StoredRows:
    """The rows of a .npy file, which stay on disk until they are asked for.

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
        place = self.offset + start * width * self.dtype.itemsize
        count = (stop - start) * width
        values = np.fromfile(self.path, self.dtype, count, offset=place)
        if len(values) != count:
            raise ValueError(f"{self.path} was shortened while it was read: run it again")
        return values.reshape(-1, width)

    def select(self, indices: Tensor) -> NDArray[Any]:
        """These rows, in this order."""
        return np.concatenate([self[index : index + 1] for index in indices.tolist()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


def read_npy(path: Path) -> StoredRows | NDArray[Any]:
    """The array of a file: as it is on disk if it is a table, else in memory."""
    try:
        with path.open("rb") as file:
            if file.read(6) != npy.MAGIC_PREFIX:
                raise ValueError("it is no .npy file")
            file.seek(0)
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, by_column, dtype = header(file)
            if dtype.hasobject:
                raise ValueError(
                    "it holds Python objects, which could run code and are never loaded; "
                    "save an array of numbers"
                )
            size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
            if min(shape, default=0) < 0 or path.stat().st_size - file.tell() < size:
                raise ValueError(f"it ends before the {size} bytes that its header tells")
            if len(shape) == 2 and size and not by_column:
                return StoredRows(path, shape, dtype, file.tell())
            check_size(size, path)
            file.seek(0)
            whole: NDArray[Any] = np.load(file, allow_pickle=False)
            return whole
    except Exception as error:  # damaged headers make NumPy raise nearly anything
        raise ValueError(f"{path} cannot be read: {error}") from error


def check_size(size: int, path: Path) -> None:
    """Refuse what would take too much memory."""
    if size > LARGEST:
        raise ValueError(
            f"{path} holds {size / 2**30:.1f} GiB, more than the {LARGEST / 2**30:.0f} GiB that "
            "are read into memory: save its rows as .npy, which stays on disk, or divide it"
        )
