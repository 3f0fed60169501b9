"""Items from a path, or from the objects of other libraries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from incontrast.data.graphs import tu
from incontrast.data.inputs import Column, TarImages, loaded
from incontrast.data.labelled import Labelled
from incontrast.data.numpy_tables import NpyTable, NpzTable
from incontrast.data.source import Source, text_files
from incontrast.data.tables import CSVTable, JSONLines, ParquetTable, Table
from incontrast.data.texts import TextFile, TextFolder, read_texts
from incontrast.data.vectors import read_vectors
from incontrast.domains.base import Collection, Domain
from incontrast.domains.graphs.reading import read_graphs
from incontrast.domains.images.files import decode, find_images, is_image
from incontrast.text import counted

log = logging.getLogger(__name__)

TABLES: dict[str, type[Table]] = {
    ".npy": NpyTable,
    ".npz": NpzTable,
    ".csv": CSVTable,
    ".tsv": CSVTable,
    ".parquet": ParquetTable,
}
FORMATS = {**TABLES, ".jsonl": JSONLines, ".txt": TextFile}
OPTIONS = ("columns", "id", "label")
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z")


def arrays(path: str | Path, *, label: str | None = None) -> Labelled:
    """Rows of numbers from a file: items (n, d) float32.

    Args:
        path: A file that ends in .npy, .npz, .csv, .tsv or .parquet; see ``read_source``.
        label: The column of labels, or the array of labels in a .npz.

    Raises:
        ValueError: The file is missing or damaged, or is no table of finite numbers.
    """
    source = read_source(path, strict=True, label=label)
    if source.kind != "vectors":
        raise ValueError(f"{path} holds {source.kind}: give a table ({', '.join(TABLES)})")
    rows = np.asarray(source.items, np.float32)
    return Labelled(rows) if source.labels is None else Labelled.by_name(rows, source.labels)


def read_source(
    path: str | Path,
    *,
    check: bool = True,
    strict: bool = False,
    columns: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
) -> Source:
    """Items from a path.

    A folder with images in it or below it, or one image; a ``.npy``, ``.npz``, ``.csv``, ``.tsv``
    or ``.parquet`` file of vectors; a folder of graphs in TU's text files, or a ``.jsonl`` file
    with a graph in each line, ``{"edges": [[0, 1], …], "x": [[…], …]}``; texts as a ``.txt`` file
    with one in each line, a folder with one in each ``.txt`` file, or fields of a ``.jsonl``,
    ``.csv``, ``.tsv`` or ``.parquet`` file.

    Args:
        path: Where the items are.
        check: Decode every image once, and leave out those that cannot be read. Without it, they
            are left out when they are used.
        strict: Refuse an item that cannot be read: an image, a text, a row of a table.
        columns: The columns of a table that are features; all but label and id by default. Of
            texts, the field that has them, or the two fields of a pair; ``text`` by default.
        id: The column of a table that has a name for each item.
        label: The column of a table that has a label for each item, which nothing learns from.

    Raises:
        ValueError: There is nothing at this path, or nothing that can be read.
    """
    path = Path(path).absolute()
    suffix = path.suffix.lower()
    name = next((name for name in (columns, id, label) if name is not None), None)
    if name is not None and (path.is_dir() or suffix not in (*TABLES, ".jsonl")):
        raise ValueError(f"{path} is not a table: there is no column {name!r} to choose")
    if path.is_dir():
        return _read_folder(path, check, strict)
    if not path.exists():
        reason = "is a link that leads nowhere" if path.is_symlink() else "does not exist"
        raise ValueError(f"{path} {reason}: give a folder of images, or a file of items")
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder: save it to a file first")
    if suffix in FORMATS:
        table = FORMATS[suffix](path, columns, id, label)
        if table.holds_texts():
            return read_texts(table, strict=strict)
        if suffix == ".jsonl":
            return Source(path, "graphs", read_graphs(table.records()))
        return read_vectors(table, strict=strict)
    if is_image(path.name):
        return _read_images(path, [str(path)], check, strict)
    if suffix in ARCHIVES:
        raise ValueError(f"{path} is an archive: unpack it, and give the folder or file inside")
    raise ValueError(
        f"{path} has an unsupported format: give a folder of images, TU graphs or .txt files, "
        f"graphs as .jsonl, texts as .txt or .jsonl, or vectors or texts as {', '.join(TABLES)}"
    )


def with_columns(
    path: Path,
    usual: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    optional: Sequence[str] = ("label",),
) -> dict[str, Any]:
    """The columns, id and label to read a table with: the given ones, else the usual ones.

    A file without named columns has none of the usual ones. Of any other table, only those that
    are ``optional`` may be missing.
    """
    given = {name: given[name] for name in OPTIONS if given.get(name)}
    usual = {name: usual[name] for name in OPTIONS if usual.get(name) and name not in given}
    if "columns" in usual:
        metadata = [{**usual, **given}.get(name) for name in ("id", "label")]
        usual["columns"] = [name for name in usual["columns"] if name not in metadata]
        if path.suffix.lower() == ".npz":  # its names are those of arrays
            del usual["columns"]
    names = None
    if usual and path.is_file() and path.suffix.lower() in FORMATS:
        names = FORMATS[path.suffix.lower()](path, **usual, **given).names
    if names is None:
        return given
    for option, chosen in list(usual.items()):
        missing = {chosen} if isinstance(chosen, str) else {*chosen}
        missing -= {*names}
        if missing and option in optional:
            del usual[option]
        elif missing:
            raise ValueError(
                f"{path} has no column {min(missing)!r}, which this workspace has as --{option}: "
                f"it has {names}; give --{option}, or incontrast config --set table.{option}=none"
            )
    return {**usual, **given}


def _read_folder(path: Path, check: bool, strict: bool) -> Source:
    # A TU data set may also lie in ``raw``, or in a folder of its name, below.
    for place in (path, path / "raw", path / path.name, path / path.name / "raw"):
        for file in sorted(place.glob("*_A.txt")):
            name = file.name.removesuffix("_A.txt")
            if (place / f"{name}_graph_indicator.txt").is_file():
                data = tu(place, name)
                return Source(path, "graphs", data.items, labels=data.labels)
    if (path / "manifest.json").is_file() and (files := sorted(path.glob("[0-9]*.npy"))):
        # what ``embed`` writes to a folder
        shards = [read_vectors(NpyTable(file), strict=True) for file in files]
        ids = [name for shard in shards for name in shard.ids or ()]
        rows = np.concatenate([np.asarray(shard.items) for shard in shards])
        return Source(path, "vectors", rows, ids=ids if len(ids) == len(rows) else None)
    try:
        images = find_images(path)
    except ValueError as error:
        if text_files(path):
            return read_texts(TextFolder(path), strict=strict)
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        found = f"it has {', '.join(names[:3])}{', …' * (len(names) > 3)}" if names else "empty"
        raise ValueError(
            f"{path} holds neither images, TU graphs nor .txt files ({found}): give a folder of "
            "images or of texts (subfolders are searched), of TU graphs, or a file of items"
        ) from error
    return _read_images(path, images, check, strict)


def _read_images(path: Path, files: list[str], check: bool, strict: bool) -> Source:
    if not check:
        return Source(path, "images", files)
    # At 8 pixels a JPEG is decoded at an eighth of its size, and still to its end.
    _, skipped = decode(files, size=8, channels=1, strict=strict, keep=False)
    left_out = {skip.file for skip in skipped}
    kept = [file for file in files if file not in left_out]
    if not kept:
        raise ValueError(
            f"none of the {len(files)} images in {path} can be read; the first: {skipped[0].reason}"
        )
    return Source(path, "images", kept, skipped)


def resolve(items: Any, domain: Domain, read: Callable[[Path], Source] | None = None) -> Any:
    """Items as ``Domain.collect`` takes them; those of a path as a ``Source``.

    Items can be a path, labelled items, or what other libraries have. A domain without a ``kind``
    gets paths as they are. ``read`` reads a path instead of ``read_source``.
    """
    paths = items if isinstance(items, list | tuple) else [items]
    shards = [isinstance(path, str | Path) and Path(path).suffix == ".tar" for path in paths]
    if domain.kind == "images" and shards and all(shards):
        items = TarImages(*paths)
    elif isinstance(items, str | Path) and domain.kind is not None:
        items = read_source(items, check=False) if read is None else read(Path(items))
    elif isinstance(items, DataLoader):
        items = loaded(items)
    elif type(items).__module__.partition(".")[0] == "datasets" and hasattr(items, "column_names"):
        items = Column(items, domain.kind)
    if isinstance(items, Source):
        items.check(domain)
    return items.items if isinstance(items, Labelled) else items


def collect(items: Any, domain: Domain) -> Collection:
    """The collection of items, or of what ``resolve`` makes of them."""
    items = resolve(items, domain)
    if not isinstance(items, Source):
        return domain.collect(items)
    if items.skipped:
        verb = "is" if len(items.skipped) == 1 else "are"
        count = f"{counted(len(items.skipped))} of {items.title} {verb} left out"
        log.warning("%s: %s", count, items.skipped[0].reason)
    return domain.collect(items.items)
