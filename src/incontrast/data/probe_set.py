"""Labelled items from a path, to evaluate encoders with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incontrast.data.labelled import Labelled, image_folder
from incontrast.data.sources import TABLES, read_source, with_columns
from incontrast.data.tables import CSVTable
from incontrast.domains.images.files import is_image


@dataclass(frozen=True)
class ProbeSet:
    """Labelled items behind a path.

    Args:
        path: A folder of images with a subfolder for each class, a folder of TU graphs, a table of
            vectors or texts with a column of labels, or a ``.csv`` of labels and of image files,
            whose paths start at its folder.
        label: The column of labels.
    """

    path: str | Path
    label: str = "label"

    def read(self, usual: Mapping[str, Any] | None = None) -> Labelled:
        """The items and their labels.

        Args:
            usual: ``columns`` and ``id`` to read a table with; it may have no such id.

        Raises:
            ValueError: There is nothing at the path, or it has no labels.
        """
        path = Path(self.path).absolute()
        if path.is_dir():
            source = read_source(path, check=False)
            if source.kind == "graphs":
                return Labelled(source.items, source.labels)
            images = image_folder(path)
            if images.labels is None:
                raise ValueError(f"{path} has no subfolders: a probe set has one for each class")
            return images
        if path.suffix.lower() not in (*TABLES, ".jsonl"):
            raise ValueError(
                f"{path} is not a probe set: give a folder with a subfolder for each class, or a "
                f"table ({', '.join(TABLES)}, .jsonl) with a column of labels"
            )
        if path.suffix.lower() in (".csv", ".tsv") and path.is_file():
            listed = self._listed_images(path)
            if listed is not None:
                return listed
        table = with_columns(path, usual or {}, {"label": self.label}, optional=("id",))
        source = read_source(path, check=False, **table)
        if source.labels is None:
            raise ValueError(
                f"{path} holds graphs, whose labels are read from TU folders only: give one"
            )
        return Labelled.by_name(source.items, source.labels)

    def _listed_images(self, path: Path) -> Labelled | None:
        """The images that a .csv lists; None if it lists no images."""
        rows = (row for _, row in CSVTable(path, label=self.label).records())
        first = next(rows, {})
        column = next((name for name, cell in first.items() if is_image(cell)), None)
        if column is None:
            return None
        if self.label not in first:
            raise ValueError(f"{path} has no column {self.label!r}: it has {list(first)}")
        files, labels = [], []
        for row in (first, *rows):
            files.append(str(path.parent / row.get(column, "")))
            labels.append(row.get(self.label, ""))
            if not Path(files[-1]).is_file():
                raise ValueError(f"{path} names {files[-1]}, which is not there")
        return Labelled.by_name(files, labels)
