"""Vectors from files, for the command line: .npy stays on disk, .parquet where pyarrow is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incontrast.data.arrays import arrays

__all__ = ["TABLES", "odd_columns", "read_table"]

TABLES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
NO_FEATURES = ("label", "labels", "class", "target", "y", "id", "index")
ROWS = 65536  # looked at together


def read_table(path: Path) -> NDArray[Any]:
    """(n, d) finite numbers. Pickled objects are never loaded.

    Raises:
        ValueError: The file is damaged, or is no table of finite numbers.
    """
    kind = path.suffix.lower()
    if kind == ".npy":
        return _mapped(path)
    if kind == ".parquet":
        return _parquet(path)
    rows: NDArray[np.float32] = arrays(path).items
    return rows


def odd_columns(path: Path) -> list[str]:
    """Columns of a text file whose names say that they are no features."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline()
    names = [name.strip(" \"'\r\n") for name in header.split("\t" if "\t" in header else ",")]
    return [name for name in names if name.lower() in NO_FEATURES]


def _mapped(path: Path) -> NDArray[Any]:
    """The rows of a .npy file, which stay on disk until they are used."""
    try:
        # Copy on write: torch takes no array that may not be written to.
        rows: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        with path.open("rb") as file:
            begin = file.read(6)
        if begin != b"\x93NUMPY":
            raise ValueError(f"{path} is no .npy file") from error
        if "pickle" in str(error) or "Python objects" in str(error):
            raise ValueError(
                f"{path} holds Python objects, which could run code and are never loaded: "
                "save an array of numbers"
            ) from error
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(rows, np.ndarray):
        raise ValueError(f"{path} holds several arrays: give it the name .npz")
    _check(rows, path)
    return rows


def _parquet(path: Path) -> NDArray[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table as read
    except ImportError as error:
        raise ValueError(
            f'{path}: reading Parquet needs pyarrow, pip install "incontrast[parquet]"'
        ) from error
    try:
        table = read(path)
        columns = [column.to_numpy() for column in table.itercolumns()]
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if len(columns) == 1 and len(columns[0]) and isinstance(columns[0][0], np.ndarray):
        columns = list(np.stack(columns[0]).T)  # one column of lists
    texts = [
        name
        for name, column in zip(table.column_names, columns, strict=False)
        if column.dtype.kind not in "fiub"
    ]
    if texts:
        raise ValueError(f"{path} must hold numbers only: column {texts[0]!r} holds others")
    rows = np.stack(columns, axis=1) if columns else np.empty((0, 0))
    _check(rows, path)
    return rows.astype(np.float32)


def _check(rows: NDArray[Any], path: Path) -> None:
    if rows.ndim == 2 and rows.size == 0:
        raise ValueError(f"{path} holds no rows (shape {rows.shape})")
    if rows.ndim != 2:
        raise ValueError(f"{path} must hold a table (n, d), got shape {rows.shape}")
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold real numbers, got {rows.dtype}")
    for start in range(0, len(rows), ROWS):
        finite = np.isfinite(rows[start : start + ROWS]).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"{path} must hold finite numbers, got nan or infinite in row "
                f"{start + int(finite.argmin())} (counted from 0): mend or remove it"
            )
