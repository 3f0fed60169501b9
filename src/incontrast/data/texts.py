"""Texts in files: .txt with one per line, a folder with one per .txt, .jsonl, .csv, .tsv, .parquet.

What is no text (invalid UTF-8, an empty field) is left out, and said.
"""

from __future__ import annotations

import codecs
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from incontrast.data.graphs import LONGEST
from incontrast.data.source import Source, text_files
from incontrast.data.tables import (
    check_size,
    first_line,
    is_number,
    names_columns,
    open_parquet,
    records,
)
from incontrast.domains.images.files import Skipped, printable
from incontrast.domains.text.collection import TextCollection
from incontrast.domains.text.reading import USUAL, packed

LOOKED_AT = 2**20  # characters of a file that tell what it holds
ROWS = 64  # of a Parquet file at a time: a few bytes of it can stand for many long texts


class Record(NamedTuple):
    """A text that is not checked yet, and what stands beside it."""

    where: str
    text: Any
    id: str | None = None
    label: Any = None


def _records(
    path: Path, columns: Sequence[str] | None, id: str | None, label: str | None
) -> Iterator[Record]:
    """A text in each file of a folder, in each line, or in one or two fields of each record."""
    if path.is_dir():
        for file in text_files(path):
            name = printable(str(file.relative_to(path)))
            yield Record(printable(str(file)), _content(file), name)
        return
    if path.suffix.lower() == ".txt":
        for number, line in enumerate(_content(path).splitlines(), start=1):
            if line.strip():
                yield Record(f"{path}, line {number}", line)
        return
    if columns is not None and not 1 <= len(columns) <= 2:
        raise ValueError(f"a text is in one column, a pair in two, got {len(columns)}: {columns}")
    for where, row in _rows(path):
        if not isinstance(row, dict):
            yield Record(where, row)
            continue
        for asked in (id, label):
            if asked is not None and asked not in row:
                raise ValueError(f"{where} has no field {asked!r}: it has {sorted(row)}")
        fields = {name: value for name, value in row.items() if name not in (id, label)}
        named = None if id is None else str(row[id])
        yield Record(where, row if columns else fields, named, row[label] if label else None)


def holds_texts(
    path: Path, columns: Sequence[str] | None, *, id: str | None, label: str | None
) -> bool:
    """Whether a table or a .jsonl file is about texts: by its first row, in the fields chosen."""
    if path.suffix.lower() == ".jsonl":
        line = _first_line(path)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # what is cut off here may be a long text
            return len(line) == LOOKED_AT and '"edges"' not in line
        if isinstance(row, dict):
            row = [] if "edges" in row else list(row.values())
        return any(isinstance(value, str) for value in (row if isinstance(row, list) else [row]))
    if path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            texts = {f.name for f in file.schema_arrow if str(f.type) in ("string", "large_string")}
            names = file.schema_arrow.names
    elif path.suffix.lower() in (".csv", ".tsv"):
        names, _ = first_line(path)
        _, first = next(named_rows(path), ("", {}))
        texts = {name for name, value in first.items() if value and not is_number(value)}
        if any(map(is_number, names)):
            return False
    else:
        return False
    others = [name for name in names if name and name not in (id, label)]
    chosen = columns or ([USUAL] if USUAL in names else others)
    return len(chosen) <= (2 if columns else 1) and bool(chosen) and set(chosen) <= texts


def field_names(path: Path, chosen: Sequence[str]) -> list[str] | None:
    """Of a table or of the first record of a ``.jsonl`` file; None where there are no names.

    Raises:
        ValueError: The file cannot be read, or whether it has the ``chosen`` ones cannot be told.
    """
    kind = path.suffix.lower()
    if not path.is_file():
        return None
    if kind == ".parquet":
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if kind == ".npz":
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            return names if len(names) > 1 else None
    if kind in (".csv", ".tsv"):
        first, _ = first_line(path)
        return first if names_columns(first, chosen) else None
    if kind == ".jsonl":
        line = _first_line(path)
        with suppress(ValueError, RecursionError):  # which is said by who reads it
            row = json.loads(line)
            return list(row) if isinstance(row, dict) and "edges" not in row else None
        if len(line) == LOOKED_AT and line.lstrip().startswith("{") and '"edges"' not in line:
            raise ValueError(
                f"{path} begins with a record of more than {LOOKED_AT:,} characters, too long to "
                f"look for {', '.join(map(repr, chosen))} in it: put a shorter one first"
            )
    return None


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = iter(lambda: file.readline(LOOKED_AT), "")
        return next((line for line in lines if line.strip()), "")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(_content(path).splitlines(), start=1):
            where = f"{path}, line {number}"
            try:
                if len(line) > LONGEST:
                    yield where, line  # the same
                elif line.strip():
                    yield where, json.loads(line)
            except UnicodeDecodeError:
                yield where, line  # which is refused as a text, with the reason
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
    elif path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            rows = (row for batch in file.iter_batches(ROWS) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"{path}, row {number}", row
    else:
        yield from named_rows(path)


def named_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row of a text file with names of columns is, and its cells by these names."""
    rows = records(path, first_line(path)[1])
    names = [name.strip() for name in next(rows)[1]]
    for line, cells in rows:
        yield f"{path}, line {line}", dict(zip(names, cells, strict=False))


def _content(path: Path) -> bytes:
    check_size(path.stat().st_size, path, "divide it")
    return path.read_bytes().removeprefix(codecs.BOM_UTF8)


def read_texts(
    path: Path,
    *,
    strict: bool,
    columns: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
) -> Source:
    """The texts of a file or a folder; what is none is left out, or refused if ``strict``."""
    contents, ids, labels, skipped = [], [], [], []
    size = 0
    for record in _records(path, columns, id, label):
        try:
            content = packed(record.text, record.where, columns)
            if len(content) > LONGEST:
                raise ValueError(
                    f"{record.where} has more than {LONGEST // 2**20} MiB, the most that a text "
                    "may have: divide it"
                )
        except ValueError as error:
            if strict:
                raise
            skipped.append(Skipped(record.where, str(error)))
            continue
        size += len(content)
        check_size(size, path, "divide it")
        contents.append(content)
        ids.append(record.id)
        labels.append(record.label)
    if not contents:
        reason = f"; the first: {skipped[0].reason}" if skipped else ""
        raise ValueError(f"{path} holds no text{reason}")
    return Source(
        path,
        "texts",
        TextCollection(contents),
        tuple(skipped),
        [name for name in ids if name is not None] or None,
        np.array(labels) if labels[0] is not None else None,
    )
