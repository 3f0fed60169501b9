"""A path, as a user types it, turned into items and the domain that fits them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from incontrast.data.graphs import json_graphs, tu
from incontrast.data.inputs import Column, Kind, TarImages, loaded
from incontrast.data.labelled import Labelled
from incontrast.data.tables import TABLES, read_table
from incontrast.data.texts import field_names, holds_texts, read_texts, text_files
from incontrast.domains.base import Collection, Domain
from incontrast.domains.graphs.domain import Graphs
from incontrast.domains.images.collection import ImageCollection
from incontrast.domains.images.domain import Images, Network
from incontrast.domains.images.files import (
    Skipped,
    decode,
    find_images,
    is_image,
    printable,
    typical_image,
)
from incontrast.domains.text.domain import Network as TextNetwork
from incontrast.domains.text.domain import Text
from incontrast.domains.vectors import Vectors
from incontrast.import_path import ImportPath
from incontrast.streams import pick
from incontrast.text import counted

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 2**20  # of pixels that are decoded at a time
CHUNK = 4096  # items of other kinds that are taken at a time


class Chunk(NamedTuple):
    """Some items of a source, in memory."""

    items: Collection
    names: list[str]  # one for each item
    skipped: tuple[Skipped, ...]  # items of this chunk that cannot be read, which are left out


@dataclass(frozen=True, eq=False)
class Source:
    """Items behind a path.

    Args:
        path: As it was given, absolute.
        kind: What the items are.
        items: What ``Domain.collect`` takes: paths of images, rows of numbers, graphs, texts.
        skipped: Images or texts that cannot be read, and why; they are not among the items.
        ids: A name for each item, if a table has them; else images have paths, others numbers.
        labels: A label for each item, if a table has them.
        suspicious: Columns that are features though their names say that they are none.
        columns: The names of a table's features, if it has them.
    """

    path: Path
    kind: Kind
    items: Any
    skipped: tuple[Skipped, ...] = ()
    ids: Sequence[str] | None = None
    labels: NDArray[Any] | None = None
    suspicious: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the items: by their labels, or by subfolders that hold every image."""
        if self.labels is not None:
            return tuple(sorted({str(label) for label in self.labels.tolist()}))
        if self.kind != "images" or not self.path.is_dir():
            return ()
        root = len(str(self.path)) + 1
        parts = [file[root:].partition(os.sep) for file in self.items]
        loose = any(not inside for _, _, inside in parts)
        return () if loose else tuple(sorted({printable(name) for name, _, _ in parts}))

    @property
    def title(self) -> str:
        """The path, to be written down."""
        return printable(str(self.path))

    def domain(
        self,
        *,
        size: int | None = None,
        channels: int | None = None,
        encoder: Network | TextNetwork | ImportPath | None = None,
    ) -> Domain:
        """The domain that fits these items; size and channels are for images.

        Args:
            size: Side in pixels; that of a typical image of the source by default, 224 at most.
            channels: 1 or 3; 1 by default if the images looked at are all grey.
            encoder: One of your own; of images also ``"small"``, the default up to 32 pixels, or
                ``"resnet18"``, of texts ``"ngrams"``.
        """
        if self.kind == "graphs":
            return Graphs(encoder=encoder)
        if self.kind == "vectors":
            return Vectors(self.items.shape[1], encoder=encoder)
        if self.kind == "texts":
            return Text(encoder=encoder or "ngrams")
        if size is None or channels is None:
            usual = typical_image(self.items)
            size, channels = size or usual[0], channels or usual[1]
        return Images(size, channels, encoder=encoder or ("small" if size <= 32 else "resnet18"))

    def check(self, domain: Domain) -> None:
        """Refuse a domain of another kind of data, with what the source holds and it takes."""
        expected = _kind_of(domain)
        if expected not in (None, self.kind):
            raise ValueError(f"{self.path} holds {self.kind}, but {expected} are expected here")
        if isinstance(domain, Vectors) and self.items.shape[1] != domain.dim:
            raise ValueError(
                f"{self.path} has {self.items.shape[1]} columns of numbers, but {domain.dim} are "
                "expected here: choose with columns, id and label"
            )

    def chunks(
        self, domain: Domain, *, strict: bool = False, start: int = 0, stop: int | None = None
    ) -> Iterator[Chunk]:
        """All items in order, a few megabytes at a time; images are decoded.

        An image or a text that cannot be read is left out, or refused if ``strict``. ``start``
        passes over as many items as some of the chunks held together.
        """
        self.check(domain)
        if strict and self.skipped:
            raise ValueError(self.skipped[0].reason)
        rows = rows_at_once(domain)
        stop = len(self) if stop is None else min(stop, len(self))
        for begin in range(start, stop, rows):
            yield self.take(domain, torch.arange(begin, min(begin + rows, stop)), strict=strict)

    def take(self, domain: Domain, indices: torch.Tensor, *, strict: bool = True) -> Chunk:
        """Items of these places; one that cannot be read is refused if ``strict``, or left out."""
        places = indices.tolist()
        if self.kind != "images":
            return Chunk(domain.collect(pick(self.items, indices)), self.names(places), ())
        assert isinstance(domain, Images)
        files = [self.items[place] for place in places]
        pixels, skipped = decode(files, size=domain.size, channels=domain.channels, strict=strict)
        left_out = {skip.file for skip in skipped}
        kept = [place for place in places if self.items[place] not in left_out]
        return Chunk(ImageCollection(pixels), self.names(kept), skipped)

    def names(self, places: Iterable[int] | None = None) -> list[str]:
        """Of the items at these places; of all if None."""
        places = range(len(self)) if places is None else places
        if self.kind != "images":
            return [str(place if self.ids is None else self.ids[place]) for place in places]
        folder = self.path if self.path.is_dir() else self.path.parent
        names = [os.path.relpath(self.items[place], folder) for place in places]
        return printable("\0".join(names)).split("\0") if names else []  # no name holds a zero

    def fingerprint(self) -> str:
        """Changes when a file of the source is added, removed, or written to."""
        files = [str(self.path)]
        if self.kind == "images":
            files = sorted([*self.items, *(skip.file for skip in self.skipped)])
        elif self.path.is_dir():
            shards = self.path.glob("*.npy") if self.kind == "vectors" else ()
            files = [str(file) for file in sorted(shards) or text_files(self.path)]
        digest = hashlib.blake2b(digest_size=16)
        for file in files:
            try:
                stat = os.stat(file)  # noqa: PTH116 (a Path for each of a million files is slow)
            except FileNotFoundError:  # a link that leads nowhere
                stat = os.lstat(file)
            digest.update(os.fsencode(file) + b"\0%d %d\n" % (stat.st_size, stat.st_mtime_ns))
        return digest.hexdigest()


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
        check: Decode every image once, and leave out those that cannot be read. Without it they
            are found out when they are used; ``Source.chunks`` leaves them out then.
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
    chosen = next((name for name in (columns, id, label) if name is not None), None)
    if chosen is not None and (path.is_dir() or suffix not in (*TABLES, ".jsonl")):
        raise ValueError(f"{path} is no table: there is no column {chosen!r} to choose")
    if path.is_dir():
        return _folder(path, check, strict)
    if not path.exists():
        reason = "is a link that leads nowhere" if path.is_symlink() else "does not exist"
        raise ValueError(f"{path} {reason}: give a folder of images, or a file of items")
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder: save it to a file first")
    if suffix == ".txt":
        return Source(path, "texts", *read_texts(path, strict=strict))
    if suffix in (*TABLES, ".jsonl") and holds_texts(path, columns, id=id, label=label):
        texts = read_texts(path, strict=strict, columns=columns, id=id, label=label)
        return Source(path, "texts", *texts)
    if suffix in TABLES:
        table = read_table(path, columns=columns, id=id, label=label, strict=strict)
        for column in table.suspicious:
            log.warning(
                "%s: the column %r is taken as a feature: is it one? Choose by columns, id, label",
                path,
                column,
            )
        beside = (table.ids, table.labels, table.suspicious, table.columns)
        return Source(path, "vectors", table.rows, table.skipped, *beside)
    if suffix == ".jsonl":
        return Source(path, "graphs", json_graphs(path))
    if is_image(path.name):
        return _images(path, [str(path)], check, strict)
    if suffix in (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"):
        raise ValueError(f"{path} is an archive: unpack it, and give the folder or file inside")
    raise ValueError(
        f"{path} has an unsupported format: give a folder of images, TU graphs or .txt files, "
        f"graphs as .jsonl, texts as .txt or .jsonl, or vectors or texts as {', '.join(TABLES)}"
    )


def with_columns(path: Path, usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the table at a path: those that are given, else the usual ones.

    A file without named columns has none of the usual ones. A label that it has not is nothing to
    leave out; any other column is missed.
    """
    given = {name: given[name] for name in ("columns", "id", "label") if given.get(name)}
    found = {k: v for k, v in usual.items() if v is not None and k not in given}
    both = {**found, **given}
    if "columns" in found:  # but no feature that is said to be an id or a label
        found["columns"] = [
            n for n in found["columns"] if n not in (both.get("id"), both.get("label"))
        ]
        if path.suffix.lower() == ".npz":  # whose names are those of arrays
            del found["columns"]
    chosen = {k: v if k == "columns" else [v] for k, v in {**found, **given}.items()}
    every = [name for each in chosen.values() for name in each]
    names = field_names(path, every) if found else None
    if names is None:
        return given
    for option in [*found]:
        missing = {*chosen[option]} - {*names}
        if missing and option == "label":
            del found[option]
        elif missing:
            raise ValueError(
                f"{path} has no column {min(missing)!r}, which this workspace has as --{option}: "
                f"it has {names}; give --{option}, or incontrast config --set table.{option}=none"
            )
    return {**found, **given}


def _folder(path: Path, check: bool, strict: bool) -> Source:
    # A TU data set may also lie in ``raw``, or in a folder of its name, below.
    for place in (path, path / "raw", path / path.name, path / path.name / "raw"):
        for file in sorted(place.glob("*_A.txt")):
            name = file.name.removesuffix("_A.txt")
            if (place / f"{name}_graph_indicator.txt").is_file():
                data = tu(place, name)
                return Source(path, "graphs", data.items, labels=data.labels)
    if (path / "manifest.json").is_file() and (shards := sorted(path.glob("[0-9]*.npy"))):
        tables = [read_table(shard) for shard in shards]  # what ``embed`` writes to a folder
        ids = [name for table in tables for name in table.ids or ()]
        rows = np.concatenate([np.asarray(table.rows) for table in tables])
        return Source(path, "vectors", rows, ids=ids if len(ids) == len(rows) else None)
    try:
        files = find_images(path)
    except ValueError as error:
        if text_files(path):
            return Source(path, "texts", *read_texts(path, strict=strict))
        others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        found = f"it has {', '.join(others[:3])}{', …' * (len(others) > 3)}" if others else "empty"
        raise ValueError(
            f"{path} holds neither images, TU graphs nor .txt files ({found}): give a folder of "
            "images or of texts (subfolders are searched), of TU graphs, or a file of items"
        ) from error
    return _images(path, files, check, strict)


def _images(path: Path, files: list[str], check: bool, strict: bool) -> Source:
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


def rows_at_once(domain: Domain) -> int:
    """Items of a chunk."""
    if isinstance(domain, Images):
        return max(1, CHUNK_BYTES // (domain.channels * domain.size**2))
    return CHUNK


def resolve(items: Any, domain: Domain, read: Callable[[Path], Source] | None = None) -> Any:
    """A path as a ``Source`` that the domain takes, labelled items without their labels, what other
    libraries have as items.

    A domain of a user's own gets paths as they are. ``read`` is another way to read a path.
    """
    kind = _kind_of(domain)
    paths = items if isinstance(items, list | tuple) else [items]
    shards = [isinstance(path, str | Path) and Path(path).suffix == ".tar" for path in paths]
    if kind == "images" and shards and all(shards):
        items = TarImages(*paths)
    elif isinstance(items, str | Path) and kind is not None:
        items = read_source(items, check=False) if read is None else read(Path(items))
    elif isinstance(items, DataLoader):
        items = loaded(items)
    elif type(items).__module__.partition(".")[0] == "datasets" and hasattr(items, "column_names"):
        items = Column(items, kind)
    if isinstance(items, Source):
        items.check(domain)
    return items.items if isinstance(items, Labelled) else items


def collect(items: Any, domain: Domain) -> Collection:
    """What the domain makes of items, of labelled items, of a ``Source`` or of a path."""
    found = resolve(items, domain)
    if isinstance(found, Source) and found.skipped:
        one = len(found.skipped) == 1
        count = f"{counted(len(found.skipped))} of {found.title} {'is' if one else 'are'} left out"
        log.warning("%s: %s", count, found.skipped[0].reason)
    return domain.collect(found.items if isinstance(found, Source) else found)


def _kind_of(domain: Domain) -> Kind | None:
    """The kind of data that a domain of ours takes; None for one of a user's own."""
    ours: dict[Kind, type[Domain]] = {
        "images": Images,
        "vectors": Vectors,
        "graphs": Graphs,
        "texts": Text,
    }
    return next((kind for kind, domains in ours.items() if isinstance(domain, domains)), None)
