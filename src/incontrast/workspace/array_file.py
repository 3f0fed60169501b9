"""A .npy file that grows: valid at every moment, with the rows that were committed."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["GrowingArray"]

HEADER = 128  # bytes, enough for any number of rows
KIND = np.dtype("<f4")


class GrowingArray:
    """Rows of float32 on disk.

    Args:
        path: The file; made if it is not there.
        columns: Numbers in a row.
        rows: Rows that are there; what follows them in the file is dropped.
    """

    def __init__(self, path: Path, columns: int, rows: int = 0) -> None:
        self.columns = columns
        self.rows = rows
        self._file = path.open("r+b" if rows else "w+b")
        self._file.truncate(HEADER + self._bytes(rows))
        self._write_header()

    def add(self, rows: NDArray[np.float32]) -> None:
        """Append rows; they count from ``commit`` on."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(rows, KIND).tobytes())
        self.rows += len(rows)

    def commit(self) -> None:
        """See to it that all rows are on the disk, and let the header count them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_header(self) -> None:
        text = (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.rows}, {self.columns}), }}"
        )
        body = text.ljust(HEADER - 11) + "\n"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode())

    def _bytes(self, rows: int) -> int:
        return rows * self.columns * KIND.itemsize

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
