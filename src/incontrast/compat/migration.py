"""An index that moves from one version's space to another's while it serves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from incontrast.compat.chain import Chain
from incontrast.compat.index import FaissIndex, Found, Index, Stamp, batches
from incontrast.files import write_bytes

POINTER = "current.json"
Opened = Callable[[Path, Stamp], Index]
Maps = Callable[[int, int], Chain]


def faiss_index(place: Path, stamp: Stamp) -> FaissIndex:
    """An index in a file of its own."""
    return FaissIndex(place.with_name(f"{place.name}.faiss.npz"), stamp)


class MigratingIndex:
    """Indexes of one or two versions in a folder, one of which serves.

    ``prepare`` begins an index of a new version beside the one that serves. From then on what is
    added goes into both, mapped into the space of each, and ``backfill`` maps what is stored, as
    long as it takes; whatever interrupts it, it resumes. ``cutover`` moves one pointer. The index
    of before stays, and gets what is added, until the next ``prepare``: ``rollback`` moves the
    pointer back.

    Args:
        folder: Where they are; new or as this class left it.
        maps: Gives the map from one version's space into another's: ``Workspace.adapter``.
        first: The stamp of the vectors that come first, for a new folder.
        opened: Opens the index of a stamp at a place, or creates it: a file of FAISS by default.
    """

    def __init__(
        self,
        folder: str | Path,
        maps: Maps,
        *,
        first: Stamp | None = None,
        opened: Opened = faiss_index,
    ) -> None:
        self.folder, self.maps, self.opened = Path(folder), maps, opened
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / POINTER).exists():
            if first is None:
                raise ValueError(f"{folder} has no index yet: say of which version the first is")
            self._point(first, None)
        pointer = json.loads((self.folder / POINTER).read_text())
        self.serving = self._open(Stamp(*pointer["serving"]))
        self.other = None if pointer["other"] is None else self._open(Stamp(*pointer["other"]))
        """The index of the version to come, or of the one before."""

    def _open(self, stamp: Stamp) -> Index:
        return self.opened(self.folder / f"{stamp.version:06d}-{stamp.encoder[:8]}", stamp)

    def _point(self, serving: Stamp, other: Stamp | None) -> None:
        """The one write that decides which index serves."""
        pointer = {"serving": serving, "other": other}
        write_bytes(self.folder / POINTER, json.dumps(pointer).encode())

    def add(self, ids: Sequence[str], vectors: Tensor, version: int) -> None:
        """Add vectors that a version has embedded, to every index in its own space."""
        for index in self._both():
            index.add(ids, self.maps(version, index.stamp.version)(vectors))
            index.flush()

    def delete(self, ids: Iterable[str]) -> None:
        names = list(ids)
        for index in self._both():
            index.delete(names)
            index.flush()

    def _both(self) -> list[Index]:
        return [index for index in (self.serving, self.other) if index is not None]

    def search(self, queries: Tensor, version: int, count: int = 10) -> Found:
        """Search with queries that a version has embedded, in the index that serves."""
        return self.serving.search(self.maps(version, self.serving.stamp.version)(queries), count)

    def prepare(self, stamp: Stamp) -> None:
        """Begin an index of another version; one that was begun with this version stays."""
        if stamp.workspace != self.serving.stamp.workspace:
            raise ValueError("there are no maps between unrelated workspaces: build a new index")
        if stamp == self.serving.stamp:
            raise ValueError(f"the index serves version {stamp.version} already")
        self.maps(self.serving.stamp.version, stamp.version)  # says if there is none
        self._point(self.serving.stamp, stamp)
        self.other = self._open(stamp)

    def missing(self) -> set[str]:
        """Items that the other index lacks."""
        return self.serving.ids() - (set() if self.other is None else self.other.ids())

    def backfill(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Map what only the index that serves has into the other one; the rest is left alone."""
        if self.other is None:
            raise ValueError("there is no index to fill: prepare one of another version first")
        missing = self.missing()
        mapped = self.maps(self.serving.stamp.version, self.other.stamp.version)
        done = 0
        for ids in batches(missing):
            self.other.add(ids, mapped(self.serving.read(ids)))
            self.other.flush()
            done += len(ids)
            if progress is not None:
                progress(done, len(missing))

    def cutover(self) -> None:
        """Let the other index serve; it must have every item."""
        if self.other is None:
            raise ValueError("there is no other index: prepare one of another version first")
        if missing := self.missing():
            raise ValueError(
                f"the index of version {self.other.stamp.version} lacks {len(missing):,} of "
                f"{len(self.serving.ids()):,} items: backfill it first"
            )
        self._point(self.other.stamp, self.serving.stamp)
        self.serving, self.other = self.other, self.serving

    def rollback(self) -> None:
        """Let the index of before serve again."""
        self.cutover()
