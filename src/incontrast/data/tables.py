"""Tables of numbers in files: .npy, .npz, .csv, .tsv and .parquet. Pickled objects never load."""

from __future__ import annotations

import csv
import json
import logging
import shlex
import zipfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from incontrast.data.labelled import Labelled
from incontrast.data.source import Source
from incontrast.domains.images.files import Skipped
from incontrast.extras import needed

log = logging.getLogger(__name__)

LARGEST = 2 * 2**30
"""Bytes of numbers that are read into memory; a file of a few kilobytes can hold many more."""

STAYS = "save its rows as .npy, which stays on disk, or divide it"
TABLES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
NO_FEATURES = ("label", "labels", "class", "target", "y", "id", "index")
ROWS = 65536  # looked at together
LONGEST_LINE = 2**24
LONGEST_FIELD = 2**30  # bytes of a text in a table


def _counted(row: int, column: int | None = None) -> str:
    beside = "" if column is None else f", column {column} (counted from 0)"
    return f"row {row} (counted from 0){beside}"


class RawTable(NamedTuple):
    """What a file holds, before it is checked."""

    rows: Any  # an array, or ``StoredRows``
    features: Sequence[str] = ()  # their names, if they have any
    beside: Mapping[str, NDArray[Any]] = {}  # labels and ids
    where: Callable[[int, int], str] = _counted  # a row and a feature, as the file names them


def arrays(path: str | Path, *, label: str | None = None) -> Labelled:
    """Rows of numbers from a file: items (n, d) float32.

    Args:
        path: A file that ends in .npy, .npz, .csv, .tsv or .parquet; see ``read_table``.
        label: Where the labels are: the name of a column, or of an array in a .npz.

    Raises:
        ValueError: The file is missing or damaged, or is no table of finite numbers.
    """
    table = read_table(Path(path), label=label)
    rows = np.asarray(table.items, np.float32)
    return Labelled(rows) if table.labels is None else Labelled.by_name(rows, table.labels)


def read_table(
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    id: str | None = None,
    strict: bool = True,
) -> Source:
    """The numbers of a file, (n, d), as an array or as ``StoredRows``.

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
    embedded = kind == ".parquet" and id is None and columns is None and _of_embeddings(path)
    id = "id" if embedded else id
    asked = [name for name in (label, id) if name is not None]
    readers = {".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet}
    rows, features, beside, where = readers.get(kind, _read_text)(path, columns, asked)
    check_table(rows, path)
    for name, values in beside.items():
        if values.shape != rows.shape[:1]:
            raise ValueError(
                f"{path} has {len(rows)} rows but {name!r} of shape {values.shape}: "
                "give one for each row"
            )
    if not isinstance(rows, StoredRows):
        rows = _as_floats(rows)
    # Names that come twice do not tell which is which; 0, 1, 2, … are places.
    places = [str(place) for place in range(len(features))]
    distinct = len({*features}) == len(features) and list(features) != places
    ids = _ids_beside(path, len(rows)) if id is None else tuple(map(str, beside[id].tolist()))
    if (embedded or id is None) and len({*(ids or ())}) < len(ids or ()):
        ids = None  # nobody asked for names that do not tell rows apart, of several sources, say
    for name in features:
        if name.lower() in NO_FEATURES:
            log.warning(
                "%s: the column %r is taken as a feature: is it one? Choose by columns, id, label",
                path,
                name,
            )
    table = Source(
        path,
        "vectors",
        rows,
        ids=ids,
        labels=None if label is None else beside[label],
        columns=tuple(features) if distinct else (),
    )
    return _finite(table, where, strict)


def _ids_beside(path: Path, rows: int) -> tuple[str, ...] | None:
    """The names that ``embed`` wrote beside its rows, if it did and they are still these rows'."""
    beside = path.with_name(f"{path.stem}.ids.jsonl")
    if path.suffix.lower() != ".npy" or not beside.is_file():
        return None
    names = tuple(map(json.loads, beside.read_text(encoding="utf-8").splitlines()))
    return names if len(names) == rows else None


def _of_embeddings(path: Path) -> bool:
    """Whether ``embed`` wrote this file."""
    with open_parquet(path) as file:
        return b"incontrast" in (file.schema_arrow.metadata or {})


def _read_npy(path: Path, columns: Sequence[str] | None, asked: list[str]) -> RawTable:
    if asked or columns is not None:
        name = [*asked, *(columns or ())][0]
        raise ValueError(
            f"{path} holds one array and no column {name!r}: use .npz, .csv or .parquet"
        )
    return RawTable(read_npy(path))


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
    return RawTable(next(iter(members.values())), beside=beside)


def _read_text(path: Path, columns: Sequence[str] | None, asked: list[str]) -> RawTable:
    first, delimiter = first_line(path)
    check_size(8 * _count_values(path, delimiter), path)
    named = names_columns(first, [*asked, *(columns or ())])
    names = first if named else []
    features = list(range(len(first)))
    if named or asked or columns:
        features = _features(path, names, columns, asked)
    beside: dict[str, list[str]] = {name: [] for name in asked}
    lines = array("q")  # of the rows

    def place(line: int, column: int) -> str:
        return f"line {line}, column {repr(names[column]) if named else column + 1}"

    def numbers() -> Iterator[float]:
        for line, cells in islice(records(path, delimiter), int(named), None):
            if len(cells) != len(first):
                raise ValueError(
                    f"{path} has {len(first)} columns in its first line and {len(cells)} in "
                    f"line {line}"
                )
            lines.append(line)
            for name, found in beside.items():
                found.append(cells[names.index(name)].strip())
            for column in features:
                text = cells[column]
                try:
                    # A gap is no number yet; and Python would take 12_34 for one.
                    yield float(text.replace("_", "?") if text.strip() else "nan")
                except ValueError as error:
                    advice = ""
                    if named:
                        name = shlex.quote(names[column])
                        advice = f"; if it is no feature, give --id {name}, --label {name}, or the "
                        advice += "features by --columns a,b,c"
                    raise ValueError(
                        f"{path} must hold numbers only: could not convert string {text!r:.60} in "
                        f"{place(line, column)}{advice}"
                    ) from error

    flat = np.fromiter(numbers(), np.float64)
    if not lines:
        raise ValueError(f"{path} has names of columns but no rows")

    def where(row: int, feature: int) -> str:
        return place(lines[row], features[feature])

    rows = flat.reshape(len(lines), len(features))
    texts = {name: np.array(found) for name, found in beside.items()}
    return RawTable(rows, [names[c] for c in features if named], texts, where)


def records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line and the cells of every record of a text file that is not empty."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        # Bytes that are not UTF-8 become what no text may have, so that only their row is lost.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            yield from ((rows.line_num, cells) for cells in rows if cells)
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    finally:
        csv.field_size_limit(limit)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow ``ParquetFile``; what goes wrong while it is read is a ``ValueError``."""
    with needed(f"{path}: reading Parquet needs pyarrow", "parquet", ValueError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
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
        return RawTable(np.stack(features[0]), beside=beside)  # one column of lists
    for name, column in zip(chosen, features, strict=True):
        if column.dtype.kind not in "fiub":
            raise ValueError(f"{path} must hold numbers only: column {name!r} holds others")
    rows = np.stack(features, axis=1) if features else np.empty((0, 0))

    def where(row: int, column: int) -> str:
        return f"{_counted(row)}, column {chosen[column]!r}"

    return RawTable(rows, chosen, beside, where)


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


def _as_floats(rows: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a double may be too large for a float
        return rows.astype(np.float32)


def _finite(table: Source, where: Callable[[int, int], str], strict: bool) -> Source:
    """The rows that have finite numbers only; others are refused if ``strict``, or left out."""
    path, rows, skipped = table.path, table.items, []
    whole = np.ones(len(rows), bool)
    for start in range(0, len(rows), ROWS):
        finite = np.isfinite(_as_floats(rows[start : start + ROWS]))
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
    return replace(
        table,
        items=rows,
        ids=tuple(str(place) if table.ids is None else table.ids[place] for place in kept.tolist()),
        labels=None if table.labels is None else table.labels[whole],
        skipped=tuple(skipped),
    )


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


def check_size(size: int, path: Path, advice: str = STAYS) -> None:
    """Refuse what would take too much memory."""
    if size > LARGEST:
        raise ValueError(
            f"{path} holds {size / 2**30:.1f} GiB, more than the {LARGEST / 2**30:.0f} GiB that "
            f"are read into memory: {advice}"
        )
