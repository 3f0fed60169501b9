"""The items of a path, of any kind."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from incontrast.domains.base import Collection, Domain, Kind
from incontrast.domains.graphs.domain import Graphs
from incontrast.domains.images.collection import ImageCollection
from incontrast.domains.images.domain import Images, Network
from incontrast.domains.images.files import Skipped, decode, printable, typical_image
from incontrast.domains.text.domain import Network as TextNetwork
from incontrast.domains.text.domain import Text
from incontrast.domains.vectors import Vectors
from incontrast.import_path import ImportPath
from incontrast.streams import pick

CHUNK_BYTES = 8 * 2**20  # of pixels in a chunk
CHUNK = 4096  # items of other kinds in a chunk


class Chunk(NamedTuple):
    """Some items of a source, in memory."""

    items: Collection
    names: list[str]  # one for each item
    skipped: tuple[Skipped, ...]  # items that cannot be read, which are left out


@dataclass(frozen=True, eq=False)
class Source:
    """The items of a path.

    Args:
        path: The absolute path.
        kind: The kind of the items.
        items: What ``Domain.collect`` takes: paths of images, rows of numbers, graphs, texts.
        skipped: What cannot be read, and why; it is not among the items.
        ids: The name of each item, if the data have names.
        labels: The label of each item, if the data have labels.
        columns: The names of a table's features, if it has names.
    """

    path: Path
    kind: Kind
    items: Any
    skipped: tuple[Skipped, ...] = ()
    ids: Sequence[str] | None = None
    labels: NDArray[Any] | None = None
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels; of images, the subfolders if every image is in one."""
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
        """The path as text that is valid UTF-8."""
        return printable(str(self.path))

    def domain(
        self,
        *,
        size: int | None = None,
        channels: int | None = None,
        encoder: Network | TextNetwork | ImportPath | None = None,
    ) -> Domain:
        """A domain for these items.

        Args:
            size: Side of images in pixels; by default that of a typical image, 224 at most.
            channels: Channels of images, 1 or 3; by default 1 if typical images are all grey.
            encoder: As in the domain; for images up to 32 pixels, the default is ``"small"``.
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
        """Refuse a domain of another kind of data, or of vectors of another width."""
        if domain.kind not in (None, self.kind):
            raise ValueError(f"{self.path} holds {self.kind}, but {domain.kind} are expected here")
        if isinstance(domain, Vectors) and self.items.shape[1] != domain.dim:
            raise ValueError(
                f"{self.path} has {self.items.shape[1]} columns of numbers, but {domain.dim} are "
                "expected here: choose with columns, id and label"
            )

    def chunks(
        self, domain: Domain, *, strict: bool = False, start: int = 0, stop: int | None = None
    ) -> Iterator[Chunk]:
        """The items from ``start`` to ``stop``, a few megabytes at a time; images are decoded.

        What cannot be read is left out, or refused if ``strict``.
        """
        self.check(domain)
        if strict and self.skipped:
            raise ValueError(self.skipped[0].reason)
        rows = rows_at_once(domain)
        stop = len(self) if stop is None else min(stop, len(self))
        for begin in range(start, stop, rows):
            yield self.take(domain, torch.arange(begin, min(begin + rows, stop)), strict=strict)

    def take(self, domain: Domain, indices: torch.Tensor, *, strict: bool = True) -> Chunk:
        """The items at these places; what cannot be read is refused if ``strict``."""
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
        """The names of the items at these places; of all if None."""
        places = range(len(self)) if places is None else places
        if self.kind != "images":
            return [str(place if self.ids is None else self.ids[place]) for place in places]
        folder = self.path if self.path.is_dir() else self.path.parent
        names = [os.path.relpath(self.items[place], folder) for place in places]
        return printable("\0".join(names)).split("\0") if names else []  # no name holds a zero

    def fingerprint(self) -> str:
        """A hash that changes when a file is added, removed or written to."""
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


def rows_at_once(domain: Domain) -> int:
    """Items of a chunk."""
    if isinstance(domain, Images):
        return max(1, CHUNK_BYTES // (domain.channels * domain.size**2))
    return CHUNK


def text_files(folder: Path) -> list[Path]:
    """The ``.txt`` files in a folder and below it."""
    return sorted(file for file in folder.rglob("*.txt") if file.is_file())
