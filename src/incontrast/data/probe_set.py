"""Labelled items behind a path, to judge encoders by: class subfolders, or a table of labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incontrast.data.labelled import Labelled, image_folder
from incontrast.data.sources import TABLES, column_names, read_source, with_columns
from incontrast.data.tables import Chosen, CSVTable
from incontrast.domains.images.files import is_image


@dataclass(frozen=True)
class ProbeSet:
    """Where labelled items are.

    Args:
        path: A folder of images with a subfolder for each class, a folder of TU graphs, a table of
            vectors or texts with a column of labels, or a ``.csv`` of image files and their labels,
            the files as they are named from the folder of the ``.csv``.
        label: The column of labels.
    """

    path: str | Path
    label: str = "label"

    def read(self, usual: Mapping[str, Any] | None = None) -> Labelled:
        """The items and their labels.

        Args:
            usual: ``columns`` and ``id`` of tables; an id that it has not is not missed.

        Raises:
            ValueError: There is nothing at the path, or it has no labels.
        """
        path = Path(self.path).absolute()
        if path.is_dir():
            source = read_source(path, check=False)
            if source.kind == "graphs":
                return Labelled(source.items, source.labels)
            found = image_folder(path)
            if found.labels is None:
                raise ValueError(f"{path} has no subfolders: a probe set has one for each class")
            return found
        if path.suffix.lower() not in (*TABLES, ".jsonl"):
            raise ValueError(
                f"{path} is no probe set: give a folder with a subfolder for each class, or a "
                f"table ({', '.join(TABLES)}, .jsonl) with a column of labels"
            )
        if listed := self._listed(path):
            return listed
        table = {name: value for name, value in (usual or {}).items() if name != "label"}
        id = table.get("id")
        if id is not None and id not in (column_names(path, Chosen(id=id)) or ()):
            table["id"] = None
        table = with_columns(path, table, {"label": self.label})
        source = read_source(path, check=False, **table)
        if source.labels is None:
            remedy = f"give each record a field {self.label!r}"
            if source.kind == "graphs":
                remedy = "labels are not read from .jsonl, give a folder of TU graphs"
            raise ValueError(f"{path} holds {source.kind} without labels: {remedy}")
        return Labelled.by_name(source.items, source.labels)

    def _listed(self, path: Path) -> Labelled | None:
        """Image files and labels out of a table of both; None for a table of numbers."""
        if path.suffix.lower() not in (".csv", ".tsv") or not path.is_file():
            return None
        rows = (row for _, row in CSVTable(path, Chosen(label=self.label)).records())
        first = next(rows, {})
        column = next((name for name, text in first.items() if is_image(text)), None)
        if column is None:
            return None
        if self.label not in first:
            raise ValueError(f"{path} has no column {self.label!r}: it has {list(first)}")
        lines = [first, *rows]
        files = [path.parent / line.get(column, "") for line in lines]
        missing = next((file for file in files if not file.is_file()), None)
        if missing is not None:
            raise ValueError(f"{path} names {missing}, which is not there")
        labels = [line.get(self.label, "") for line in lines]
        return Labelled.by_name([str(file) for file in files], labels)
