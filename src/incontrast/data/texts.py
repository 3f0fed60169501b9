"""Texts: of a .txt file, of the .txt files of a folder, or of a table."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from incontrast.data.source import Source, text_files
from incontrast.data.tables import LONGEST, Table, check_length, check_size, read_lines
from incontrast.domains.images.files import Skipped, printable
from incontrast.domains.text.collection import TextCollection
from incontrast.domains.text.reading import TEXT_FIELD, pack_text


class TextFile(Table):
    """A .txt file with a text in each line."""

    def holds_texts(self) -> bool:
        return True

    def records(self) -> Iterator[tuple[str, str]]:
        return read_lines(self.path)


class TextFolder(Table):
    """A folder with a text in each .txt file; their names are the ids."""

    def open(self) -> None:
        self.id, self.metadata["id"] = "id", []

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in text_files(self.path):
            with path.open("rb") as file:
                content = file.read(LONGEST + 1 + len(BOM_UTF8)).removeprefix(BOM_UTF8)
            name = printable(str(path.relative_to(self.path)))
            yield printable(str(path)), {TEXT_FIELD: content, "id": name}


def read_texts(table: Table, *, strict: bool) -> Source:
    """The texts of a table; what is not a text is left out, or refused if ``strict``."""
    path, columns = table.path, table.columns
    if columns is not None and not 1 <= len(columns) <= 2:
        raise ValueError(f"a text is in one column, a pair in two, got {len(columns)}: {columns}")
    contents, skipped, size = [], [], 0
    for place, row in table.records():
        fields = row
        if isinstance(row, dict) and columns is None:
            fields = {name: value for name, value in row.items() if name not in table.metadata}
        try:
            content = pack_text(fields, place, columns)
            check_length(len(content), place)
        except ValueError as error:
            if strict:
                raise
            skipped.append(Skipped(place, str(error)))
            continue
        size += len(content)
        check_size(size, path)
        contents.append(content)
        for name, column in table.metadata.items():
            if not isinstance(row, dict) or name not in row:
                known = sorted(row) if isinstance(row, dict) else "no fields"
                raise ValueError(f"{place} has no field {name!r}: it has {known}")
            column.append(row[name])
    if not contents:
        reason = f"; the first: {skipped[0].reason}" if skipped else ""
        raise ValueError(f"{path} holds no text{reason}")
    return table.source("texts", TextCollection(contents), skipped)
