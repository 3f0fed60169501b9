"""Feature vectors from files: .npy, .npz and .csv."""

from __future__ import annotations

import csv
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incontrast.data.labelled import Labelled

__all__ = ["arrays"]


def arrays(path: str | Path, *, label: str | None = None) -> Labelled:
    """Rows of numbers: items (n, d) float32.

    A CSV file may begin with a line of column names and be separated by commas, semicolons or
    tabs. A column without a name (row numbers, as pandas writes them) is left out. Pickled objects
    are never loaded.

    Args:
        path: A file that ends in .npy, .npz, .csv or .tsv.
        label: Where the labels are: the name of a column (.csv) or of an array (.npz).

    Raises:
        ValueError: The file is missing or damaged, or is no table of finite numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    kind = path.suffix.lower()
    if kind == ".npy" and label is not None:
        raise ValueError(f"{path} holds one array and no label {label!r}: use .npz or .csv")
    if kind in (".npy", ".npz"):
        rows, names = _read_numpy(path, label)
    elif kind in (".csv", ".tsv"):
        rows, names = _read_text(path, label)
    else:
        raise ValueError(f"{path} must end in .npy, .npz, .csv or .tsv to be read as arrays")
    rows = _checked(rows, path)
    if names is None:
        return Labelled(rows)
    if names.shape != rows.shape[:1]:
        raise ValueError(
            f"{path} has {len(rows)} rows but labels of shape {names.shape}: give one for each row"
        )
    classes, labels = np.unique(names, return_inverse=True)
    return Labelled(rows, labels.astype(np.int64), tuple(str(name) for name in classes))


def _read_numpy(path: Path, label: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content, None
            members = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    names = None
    if label is not None:
        if label not in members:
            raise ValueError(f"{path} has no array {label!r}: it has {sorted(members)}")
        names = members.pop(label)
    if len(members) != 1:
        raise ValueError(
            f"{path} must hold one array (besides the labels, which label= names), "
            f"got {sorted(members)}"
        )
    return next(iter(members.values())), names


def _read_text(path: Path, label: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    first, delimiter = _first_line(path)
    counted = [text for text in first if text != ""] == [str(i) for i in range(len(first))]
    named = not any(_is_number(text) for text in first)
    # A line 0, 1, 2, … is what pandas writes above columns without names.
    has_header = label in first or named or (counted and len(first) > 1)
    if label is not None and label not in first:
        found = first if has_header else "no line of column names"
        raise ValueError(f"{path} has no column {label!r}: it has {found}")
    left_out = [column for column, name in enumerate(first) if has_header and name == ""]
    # Text becomes numbers while it is read, so that one pass also sees lines of another length.
    converters: dict[int | str, Callable[[str], float]] = {
        column: lambda text: 0.0 for column in left_out
    }
    codes: dict[str, int] = {}
    if label is not None:
        left_out.append(first.index(label))
        converters[left_out[-1]] = lambda text: codes.setdefault(text.strip(), len(codes))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a file without rows, which is refused below
            table = np.loadtxt(
                path,
                comments=None,
                delimiter=delimiter,
                skiprows=int(has_header),
                ndmin=2,
                encoding="utf-8-sig",
                quotechar='"',
                converters=converters,
            )
    except ValueError as error:
        reason = str(error).split(";")[0]  # what follows is about numpy
        raise ValueError(f"{path} must hold numbers only: {reason}") from error
    if len(table) == 0:
        raise ValueError(f"{path} has names of columns but no rows")
    if table.shape[1] != len(first):
        raise ValueError(
            f"{path} has {len(first)} names of columns but {table.shape[1]} columns of numbers"
        )
    rows = np.delete(table, left_out, axis=1)
    if label is None:
        return rows, None
    return rows, np.array(list(codes))[table[:, first.index(label)].astype(np.int64)]


def _first_line(path: Path) -> tuple[list[str], str]:
    """The cells of the first line, and what separates them."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    if not line.strip():
        raise ValueError(f"{path} is empty, or its first line is")
    delimiter = max(",;\t", key=line.count)
    return [text.strip() for text in next(csv.reader([line], delimiter=delimiter))], delimiter


def _checked(rows: NDArray[Any], path: Path) -> NDArray[np.float32]:
    if rows.ndim == 2 and rows.size == 0:
        raise ValueError(f"{path} holds no rows (shape {rows.shape})")
    if rows.ndim != 2:
        raise ValueError(f"{path} must hold a table (n, d), got shape {rows.shape}")
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold real numbers, got {rows.dtype}")
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{path} must hold finite numbers, got nan or infinite in row {int(finite.argmin())} "
            "(counted from 0): mend or remove it"
        )
    return rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
