"""Tables of numbers in files: .npy, .npz, .csv, .tsv and .parquet. Pickled objects never load."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from incontrast.data.labelled import Labelled
from incontrast.domains.images.files import Skipped

LARGEST = 2 * 2**30
"""Bytes of numbers that are read into memory; a file of a few kilobytes can hold many more."""

TABLES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
NO_FEATURES = ("label", "labels", "class", "target", "y", "id", "index")
ROWS = 65536  # looked at together
LONGEST_LINE = 2**24

Where = Callable[[int, int], str]
"""A row and a feature, as they are named in the file."""
RawTable = tuple[NDArray[Any], Sequence[str], dict[str, NDArray[Any]], Where]


class EmptyCell(ValueError):
    """A text file has no number where one is expected."""


class Table(NamedTuple):
    """What a file of numbers holds; labels and ids, one for each row, if asked for."""

    rows: Any  # (n, d) finite numbers: an array, or ``StoredRows``
    ids: tuple[str, ...] | None
    labels: NDArray[Any] | None = None
    suspicious: tuple[str, ...] = ()  # features whose names say that they are none
    columns: tuple[str, ...] = ()  # the features, where their names tell them apart
    skipped: tuple[Skipped, ...] = ()  # rows that are left out


def arrays(path: str | Path, *, label: str | None = None) -> Labelled:
    """Rows of numbers from a file: items (n, d) float32.

    Args:
        path: A file that ends in .npy, .npz, .csv, .tsv or .parquet; see ``read_table``.
        label: Where the labels are: the name of a column, or of an array in a .npz.

    Raises:
        ValueError: The file is missing or damaged, or is no table of finite numbers.
    """
    table = read_table(Path(path), label=label)
    rows = np.asarray(table.rows, np.float32)
    return Labelled(rows) if table.labels is None else Labelled.by_name(rows, table.labels)


def read_table(
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    id: str | None = None,
    strict: bool = True,
) -> Table:
    """The numbers of a file.

    A text file may begin with a line of column names and be separated by commas, semicolons or
    tabs. A column without a name (row numbers, as pandas writes them) is left out. ``columns`` are
    the features, all but label and id by default; in a .npz, label and id are arrays. A row with a
    number that is missing or not finite is refused, or left out unless ``strict``; the others keep
    their names, which are their places if the table has no ids.

    Raises:
        ValueError: The file is missing, damaged, too large, or no table of finite numbers.
    """
    kind = path.suffix.lower()
    if kind not in TABLES:
        raise ValueError(f"{path} must end in {', '.join(TABLES)} to be read as a table")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    asked = [name for name in (label, id) if name is not None]
    if kind == ".npy":
        if asked or columns is not None:
            name = [*asked, *(columns or ())][0]
            raise ValueError(
                f"{path} holds one array and no column {name!r}: use .npz, .csv or .parquet"
            )
        rows: Any = read_npy(path)
        check_table(rows, path)
        return _finite(Table(rows, _ids_beside(path, len(rows))), path, _counted, strict)
    if kind == ".parquet" and id is None and columns is None and _of_embeddings(path):
        id = "id"
        asked.append(id)
    if kind == ".npz":
        rows, features, beside, where = _read_npz(path, columns, asked)
    elif kind == ".parquet":
        rows, features, beside, where = _read_parquet(path, columns, asked)
    else:
        try:
            rows, features, beside, where = _read_text(path, columns, asked)
        except EmptyCell:
            if strict:
                raise
            rows, features, beside, where = _read_text(path, columns, asked, gaps=True)
    check_table(rows, path)
    for name, values in beside.items():
        if values.shape != rows.shape[:1]:
            raise ValueError(
                f"{path} has {len(rows)} rows but {name!r} of shape {values.shape}: "
                "give one for each row"
            )
    ids = None if id is None else tuple(str(value) for value in beside[id].tolist())
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)  # a double may be too large for a float
    suspicious = tuple(name for name in features if name.lower() in NO_FEATURES)
    # Names that come twice do not tell which is which; 0, 1, 2, … are places.
    places = [str(place) for place in range(len(features))]
    distinct = len({*features}) == len(features) and list(features) != places
    labels = None if label is None else beside[label]
    table = Table(rows, ids, labels, suspicious, tuple(features) if distinct else ())
    return _finite(table, path, where, strict)


def _ids_beside(path: Path, rows: int) -> tuple[str, ...] | None:
    """The names that ``embed`` wrote beside its rows, if it did and they are still these rows'."""
    beside = path.with_name(f"{path.stem}.ids.jsonl")
    if not beside.is_file():
        return None
    names = tuple(map(json.loads, beside.read_text(encoding="utf-8").splitlines()))
    return names if len(names) == rows else None


def _of_embeddings(path: Path) -> bool:
    """Whether ``embed`` wrote this file."""
    with open_parquet(path) as file:
        return b"incontrast" in (file.schema_arrow.metadata or {})


def _read_npz(path: Path, columns: Sequence[str] | None, asked: list[str]) -> RawTable:
    if columns is not None:
        raise ValueError(f"{path} has no names of columns to choose from: use .csv or .parquet")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        check_size(size, path)
        with np.load(path, allow_pickle=False) as content:
            members: dict[str, Any] = {name: content[name] for name in content.files}
    except Exception as error:  # damaged archives and headers make NumPy raise nearly anything
        raise ValueError(f"{path} cannot be read: {error}") from error
    for name, member in members.items():
        if not isinstance(member, np.ndarray):
            raise ValueError(f"{path} cannot be read: {name!r} in it is no array")
    for name in asked:
        if name not in members:
            raise ValueError(f"{path} has no array {name!r}: it has {sorted(members)}")
    beside = {name: members.pop(name) for name in dict.fromkeys(asked)}
    if len(members) != 1:
        raise ValueError(
            f"{path} must hold one array (besides labels and ids, if they are named), "
            f"got {sorted(members)}"
        )
    return next(iter(members.values())), (), beside, _counted


def _read_text(
    path: Path, columns: Sequence[str] | None, asked: list[str], *, gaps: bool = False
) -> RawTable:
    """``gaps`` takes empty cells for nan, which makes reading several times slower."""
    first, delimiter = first_line(path)
    check_size(8 * _count_values(path, delimiter), path)
    named = names_columns(first, [*asked, *(columns or ())])
    names = first if named else []
    features = _features(path, names, columns, asked) if named or asked or columns else None
    # Text becomes numbers while it is read, so that one pass also sees lines of another length.
    converters: dict[int | str, Callable[[str], float]] = {
        column: lambda text: 0.0
        for column in range(len(first))
        if features is not None and column not in features
    }
    for column in range(len(first)) if gaps else ():
        converters.setdefault(column, _or_nan)
    ends: list[int] = []  # the last line of each record

    def line(record: int) -> str:
        if not ends:
            with suppress(csv.Error), path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter=delimiter)
                ends.extend(reader.line_num for cells in reader if cells)
        # One may be too long for Python's reader.
        return f"line {ends[record]}" if record < len(ends) else f"record {record + 1}"

    codes: dict[str, dict[str, int]] = {name: {} for name in asked}
    for name, known in codes.items():
        converters[names.index(name)] = lambda text, known=known: float(  # type: ignore[misc]
            known.setdefault(text.strip(), len(known))
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a file without rows, which is refused below
            table = np.loadtxt(
                path,
                comments=None,
                delimiter=delimiter,
                skiprows=int(named),
                ndmin=2,
                encoding="utf-8-sig",
                quotechar='"',
                converters=converters,
            )
    except (ValueError, csv.Error) as error:
        reason = str(error).split(";")[0]  # what follows is about numpy
        if found := re.fullmatch(r"(.*) at row (\d+)(?:, column (\d+)\.)?", reason, re.DOTALL):
            row = int(found[2]) - (found[3] is None)  # numpy counts in two ways
            reason = f"{found[1]} in {line(row + named)}"
            if found[3] is not None:
                called = [repr(name) for name in names][int(found[3]) - 1 : int(found[3])]
                reason += f", column {called[0] if called else found[3]}"
                reason = re.sub(r"^could not convert string '\s*' to \w+", "an empty cell", reason)
                if called and reason.startswith("could not convert"):
                    name = shlex.quote(names[int(found[3]) - 1])
                    reason += (
                        f"; if it is no feature, give --id {name}, --label {name}, or the features "
                        "by --columns a,b,c"
                    )
        kind = EmptyCell if reason.startswith("an empty cell") else ValueError
        raise kind(f"{path} must hold numbers only: {reason}") from error
    if len(table) == 0:
        raise ValueError(f"{path} has names of columns but no rows")
    if table.shape[1] != len(first):
        raise ValueError(
            f"{path} has {len(first)} names of columns but {table.shape[1]} columns of numbers"
        )
    features = list(range(len(first))) if features is None else features
    called = [names[column] for column in features if named]
    numbered: Sequence[str | int] = called or [column + 1 for column in features]
    beside = {
        name: np.array(list(known))[table[:, names.index(name)].astype(np.int64)]
        for name, known in codes.items()
    }

    def where(row: int, column: int) -> str:
        return f"{line(row + named)}, column {numbered[column]!r}"

    return table[:, features], called, beside, where


def _or_nan(text: str) -> float:
    return float(text) if text.strip() else math.nan


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow ``ParquetFile``; what goes wrong while it is read is a ``ValueError``."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(
            f'{path}: reading Parquet needs pyarrow, pip install "incontrast[parquet]"'
        ) from error
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _parquet_values(file: Any) -> int:
    """How many values a ``ParquetFile`` has."""
    about, kinds = file.metadata, [field.type for field in file.schema_arrow]
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    widths = [getattr(kind, "list_size", 0 if kind.num_fields else 1) for kind in kinds]
    if all(widths):
        return int(sum(group.num_rows for group in groups) * sum(widths))
    # Of lists of any length, columns tell. Where these are damaged, pyarrow ends the process when
    # they are asked, but raises an error when a row is read.
    for number in range(len(groups)):
        next(file.iter_batches(1, row_groups=[number]), None)
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    return int(sum(column.num_values for column in columns))


def _read_parquet(path: Path, columns: Sequence[str] | None, asked: list[str]) -> RawTable:
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        check_size(8 * _parquet_values(file), path)
        chosen = [names[column] for column in _features(path, names, columns, asked)]
        table = file.read(columns=list(dict.fromkeys([*chosen, *asked])))
        features = [table.column(name).to_numpy() for name in chosen]
        beside = {name: table.column(name).to_numpy() for name in asked}
    if len(features) == 1 and len(features[0]) and isinstance(features[0][0], np.ndarray):
        if len({row.shape for row in features[0]}) > 1:
            raise ValueError(f"{path} must hold lists of one length in column {chosen[0]!r}")
        return np.stack(features[0]), (), beside, _counted  # one column of lists
    for name, column in zip(chosen, features, strict=True):
        if column.dtype.kind not in "fiub":
            raise ValueError(f"{path} must hold numbers only: column {name!r} holds others")
    rows = np.stack(features, axis=1) if features else np.empty((0, 0))
    return rows, chosen, beside, lambda row, column: f"{_counted(row)}, column {chosen[column]!r}"


def _features(
    path: Path, names: Sequence[str], columns: Sequence[str] | None, asked: list[str]
) -> list[int]:
    """The places of the columns that are features: those asked for, or all others with names."""
    for name in [*asked, *(columns or ())]:
        if name not in names:
            found = list(names) if names else "no line of column names"
            raise ValueError(f"{path} has no column {name!r}: it has {found}")
    if columns is not None:
        return [names.index(name) for name in columns]
    return [place for place, name in enumerate(names) if name != "" and name not in asked]


def first_line(path: Path) -> tuple[list[str], str]:
    """The cells of the first line, and what separates them."""
    try:
        with path.open("rb") as file:
            line = file.readline(LONGEST_LINE).decode("utf-8-sig")
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path} has a first line of more than {LONGEST_LINE} bytes")
        if not line.strip():
            raise ValueError(f"{path} is empty, or its first line is")
        delimiter = max(",;\t", key=line.count)
        return [text.strip() for text in next(csv.reader([line], delimiter=delimiter))], delimiter
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    except csv.Error as error:
        raise ValueError(f"{path} has a first line that cannot be read: {error}") from error


def names_columns(first: Sequence[str], chosen: Sequence[str]) -> bool:
    """Whether the first line of a table has names: no numbers, or some that are chosen."""
    # A line 0, 1, 2, … is what pandas writes above columns without names.
    counted = [text for text in first if text != ""] == [str(i) for i in range(len(first))]
    numbers = any(map(is_number, first)) and not (counted and len(first) > 1)
    return not numbers or not {*chosen}.isdisjoint(first)


def _count_values(path: Path, delimiter: str) -> int:
    count = 1
    with path.open("rb") as file:
        while part := file.read(2**20):
            count += part.count(delimiter.encode()) + part.count(b"\n")
    return count


def check_table(rows: Any, path: Path) -> None:
    """Refuse what is no table of numbers."""
    if rows.ndim == 2 and 0 in rows.shape:
        raise ValueError(f"{path} holds no rows (shape {rows.shape})")
    if rows.ndim != 2:
        raise ValueError(f"{path} must hold a table (n, d), got shape {rows.shape}")
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold real numbers, got {rows.dtype}")


def _finite(table: Table, path: Path, where: Where, strict: bool) -> Table:
    """The rows that have finite numbers only; others are refused if ``strict``, or left out."""
    rows, skipped = table.rows, []
    whole = np.ones(len(rows), bool)
    for start in range(0, len(rows), ROWS):
        finite = np.isfinite(rows[start : start + ROWS])
        for row in np.flatnonzero(~finite.all(axis=1)).tolist():
            place = where(start + row, int(finite[row].argmin()))
            whole[start + row] = False
            reason = f"{path} must hold finite numbers, and has none in {place}"
            if strict:
                raise ValueError(f"{reason}: fix or remove it")
            skipped.append(Skipped(str(path), reason))
    if not skipped:
        return table
    if not whole.any():
        raise ValueError(f"no row of {path} is whole; the first: {skipped[0].reason}")
    kept = np.flatnonzero(whole)
    if isinstance(rows, StoredRows):
        check_size(len(kept) * rows.shape[1] * rows.dtype.itemsize, path)
        rows = rows.select(torch.from_numpy(kept))
    else:
        rows = rows[whole]
    return table._replace(
        rows=rows,
        ids=tuple(str(place) if table.ids is None else table.ids[place] for place in kept.tolist()),
        labels=None if table.labels is None else table.labels[whole],
        skipped=tuple(skipped),
    )


def _counted(row: int, column: int | None = None) -> str:
    beside = "" if column is None else f", column {column} (counted from 0)"
    return f"row {row} (counted from 0){beside}"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
        runs = np.split(indices.numpy(), np.flatnonzero(np.diff(indices.numpy()) != 1) + 1)
        return np.concatenate([self[run[0] : run[-1] + 1] for run in runs])

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
