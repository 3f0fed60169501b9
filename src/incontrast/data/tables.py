"""Files of rows with named columns: .csv, .tsv, .parquet and .jsonl."""

from __future__ import annotations

import csv
import json
import shlex
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incontrast.data.source import Source
from incontrast.domains.base import Kind
from incontrast.domains.images.files import Skipped
from incontrast.domains.text.reading import TEXT_FIELD
from incontrast.extras import needed

LARGEST = 2 * 2**30  # bytes in memory; a compressed file of a few kilobytes can hold more
LONGEST = 64 * 2**20  # characters of a line of .jsonl or .txt, and bytes of a text
LONGEST_HEADER = 2**24  # bytes of the first line of a .csv
LONGEST_CELL = 2**30  # characters of a cell of a .csv
TEXT_ROWS = 64  # of a .parquet read at a time: a few bytes of it can stand for many long texts


class Table:
    """A file of rows, to be read once, and the names of the columns to read."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[str] | None = None,
        id: str | None = None,
        label: str | None = None,
    ) -> None:
        self.path, self.id, self.label = path, id, label
        self.columns = columns  # features or texts; None for all but id and label
        self.names: Sequence[str] | None = None  # of all columns, if they have names
        self.text_names: Sequence[str] = ()  # of columns that begin with a text
        self.feature_names: Sequence[str] = ()  # of the numbers, once they are read
        self.lines: Sequence[int] | None = None  # of the numbers in a text file
        self.metadata: dict[str, list[Any]] = {n: [] for n in (id, label) if n is not None}
        self.ids_by_embed = False  # whether ``embed`` wrote the ids
        self.open()

    def open(self) -> None:
        """Find the names of columns."""

    def source(
        self, kind: Kind, items: Any, skipped: Sequence[Skipped], features: Sequence[str] = ()
    ) -> Source:
        """Items with the ids and labels that were read."""
        ids = None if self.id is None else [str(id) for id in self.metadata[self.id]]
        if self.ids_by_embed and len({*(ids or ())}) != len(items):
            ids = None  # of other rows, or of several sources
        labels = None if self.label is None else np.array(self.metadata[self.label])
        return Source(self.path, kind, items, tuple(skipped), ids, labels, tuple(features))

    def numbers(self) -> Any:
        """(n, d) features, not checked, as an array or ``StoredRows``; reads metadata too."""
        raise NotImplementedError

    def place(self, row: int, column: int) -> str:
        """A row and a column of the numbers, for a message."""
        if self.lines is None:
            line, name = f"row {row} (counted from 0)", f"{column} (counted from 0)"
        else:
            line, name = f"line {self.lines[row]}", str(column + 1)
        return f"{line}, column {repr(self.feature_names[column]) if self.feature_names else name}"

    def records(self) -> Iterator[tuple[str, Any]]:
        """The place of each row, for messages, and its cells by the names of their columns."""
        raise NotImplementedError

    def holds_texts(self) -> bool:
        """Whether the chosen columns are texts: ``text`` by default, or the only column."""
        names = [name for name in self.names or () if name not in ("", *self.metadata)]
        columns = self.columns or ([TEXT_FIELD] if TEXT_FIELD in names else names)
        most = 2 if self.columns else 1
        return 0 < len(columns) <= most and {*columns} <= {*self.text_names}

    def features(self, names: Sequence[str]) -> list[int]:
        """The places of the features among all columns; a column without a name is none."""
        for name in (*self.metadata, *(self.columns or ())):
            if name not in names:
                raise ValueError(f"{self.path} has no column {name!r}: it has {[*names]}")
        if self.columns is not None:
            return [names.index(name) for name in self.columns]
        return [place for place, name in enumerate(names) if name not in ("", *self.metadata)]


class CSVTable(Table):
    """A .csv or .tsv file with commas, semicolons or tabs; its first line may name the columns.

    A column without a name, such as the row numbers that pandas writes, is not a feature.
    """

    def open(self) -> None:
        self._first, self._delimiter = _first_line(self.path)
        self._places = [str(place) for place in range(len(self._first))]
        # A line 0, 1, 2, … is what pandas writes above columns without names.
        counted = len(self._first) > 1 and self._first == self._places
        chosen = {*self.metadata, *(self.columns or ())}
        if counted or chosen & {*self._first} or not any(map(is_number, self._first)):
            self.names = self._first
        _, first = next(self.records(), ("", {}))
        self.text_names = [name for name, cell in first.items() if cell and not is_number(cell)]

    def records(self) -> Iterator[tuple[str, dict[str, str]]]:
        for line, cells in self._rows():
            yield f"{self.path}, line {line}", dict(zip(self._first, cells, strict=False))

    def numbers(self) -> NDArray[Any]:
        names = self.names or self._places
        features = self.features(names)
        if self.names:
            self.feature_names = [names[place] for place in features]
        metadata = [(names.index(name), column) for name, column in self.metadata.items()]
        values, self.lines = array("d"), array("q")
        for line, cells in self._rows():
            if len(cells) != len(names):
                raise ValueError(
                    f"{self.path} has {len(names)} columns, but {len(cells)} in line {line}"
                )
            check_size(8 * len(values), self.path)
            self.lines.append(line)
            for place, column in metadata:
                column.append(cells[place].strip())
            for place in features:
                cell = cells[place]
                try:
                    # An empty cell is a gap; and float() would read 12_34 as a number.
                    values.append(float(cell.replace("_", "?") if cell.strip() else "nan"))
                except ValueError as error:
                    name = shlex.quote(names[place])
                    advice = f": if it is no feature, give --id {name}, --label {name} or --columns"
                    raise ValueError(
                        f"{self.path} must hold numbers only, got {cell!r:.60} in "
                        f"{self.place(-1, features.index(place))}{advice if self.names else ''}"
                    ) from error
        if not self.lines:
            raise ValueError(f"{self.path} has names of columns but no rows")
        return np.asarray(values).reshape(len(self.lines), len(features))

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line and the cells of every row that is not empty, without the names of columns."""
        limit = csv.field_size_limit(LONGEST_CELL)
        try:
            # Bytes that are not UTF-8 become surrogates, so that only their row is refused.
            with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                rows = csv.reader(file, delimiter=self._delimiter)
                if self.names:
                    next(rows)
                yield from ((rows.line_num, cells) for cells in rows if cells)
        except csv.Error as error:
            raise ValueError(f"{self.path} cannot be read: {error}") from error
        finally:
            csv.field_size_limit(limit)


def _first_line(path: Path) -> tuple[list[str], str]:
    """The cells of the first line, and the character between them."""
    try:
        with path.open("rb") as file:
            line = file.readline(LONGEST_HEADER).decode("utf-8-sig")
        if len(line) == LONGEST_HEADER:
            raise ValueError(f"{path} has a first line of {LONGEST_HEADER} bytes or more")
        if not line.strip():
            raise ValueError(f"{path} is empty, or its first line is")
        delimiter = max(",;\t", key=line.count)
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))], delimiter
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} has a first line that cannot be read: {error}") from error


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class ParquetTable(Table):
    """A .parquet file; all features may be in one column of lists."""

    def open(self) -> None:
        with open_parquet(self.path) as file:
            self._schema = file.schema_arrow
        self.names = self._schema.names
        kinds = ("string", "large_string")
        self.text_names = [field.name for field in self._schema if str(field.type) in kinds]
        by_embed = b"incontrast" in (self._schema.metadata or {})
        if by_embed and self.columns is None and self.id is None:
            self.id, self.metadata["id"], self.ids_by_embed = "id", [], True

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        with open_parquet(self.path) as file:
            batches = file.iter_batches(TEXT_ROWS)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"{self.path}, row {number} (counted from 0)", row

    def numbers(self) -> NDArray[Any]:
        names: list[str] = self._schema.names
        features = [names[place] for place in self.features(names)]
        with open_parquet(self.path) as file:
            check_size(8 * _count_values(file), self.path)
            table = file.read(columns=list(dict.fromkeys([*features, *self.metadata])))
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
        self.metadata = {name: columns[name].tolist() for name in self.metadata}
        if len(features) == 1 and hasattr(self._schema.field(features[0]).type, "value_field"):
            lists = columns[features[0]]
            lengths = {len(row) for row in lists if row is not None}
            if len(lengths) != 1:
                raise ValueError(f"{self.path} must hold lists of one length in {features[0]!r}")
            gap = np.full(lengths.pop(), np.nan)
            return np.stack([gap if row is None else row for row in lists])
        for name in features:
            if columns[name].dtype.kind not in "fiub":
                raise ValueError(f"{self.path} must hold numbers only, but not in column {name!r}")
        self.feature_names = features
        if not features:
            return np.empty((0, 0))
        return np.stack([columns[name] for name in features], axis=1)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow ``ParquetFile``; errors of pyarrow become a ``ValueError``."""
    with needed(f"{path}: reading Parquet needs pyarrow", "parquet", ValueError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _count_values(file: Any) -> int:
    """The number of values in a ``ParquetFile``."""
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    kinds = [field.type for field in file.schema_arrow]
    widths = [getattr(kind, "list_size", 0 if kind.num_fields else 1) for kind in kinds]
    if all(widths):
        return int(sum(widths) * sum(group.num_rows for group in groups))
    # For lists of any length, the metadata of columns have the number. If these are damaged, asking
    # for them kills the process, but reading a row raises an error.
    for number in range(len(groups)):
        next(file.iter_batches(1, row_groups=[number]), None)
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    return int(sum(column.num_values for column in columns))


class JSONLines(Table):
    """A .jsonl file: a string, a pair of strings, a record or a graph in each line."""

    _graphs = False

    def open(self) -> None:
        _, first = next(self.records(), ("", None))
        self._graphs = isinstance(first, dict) and "edges" in first
        if isinstance(first, dict) and not self._graphs:
            self.names = list(first)

    def holds_texts(self) -> bool:
        return not self._graphs

    def records(self) -> Iterator[tuple[str, Any]]:
        """As of every table; a line that is too long comes as a string."""
        for place, line in read_lines(self.path):
            if self._graphs:
                check_length(len(line), place)
            try:
                row = line if len(line) > LONGEST else json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is not JSON: {error}") from error
            yield place, row


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The place of each line that is not blank, for messages, and the line.

    A line that is too long is cut off, but so that ``check_length`` refuses it.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number in count(1):
            line = file.readline(LONGEST + 1)
            if not line:
                return
            if line.strip():
                yield f"{path}, line {number}", line.removesuffix("\n")
            while len(line) > LONGEST and not line.endswith("\n"):
                line = file.readline(LONGEST + 1)


def check_length(length: int, place: str) -> None:
    """Refuse a line or a text that is too long."""
    if length > LONGEST:
        raise ValueError(f"{place} has more than {LONGEST // 2**20} MiB: divide it")


def check_size(size: int, path: Path) -> None:
    """Refuse what would take too much memory."""
    if size > LARGEST:
        raise ValueError(
            f"{path} has more than the {LARGEST / 2**30:.0f} GiB that are read into memory: divide "
            "it, or save rows of numbers as .npy, which stays on disk"
        )
