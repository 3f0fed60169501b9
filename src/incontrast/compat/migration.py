"""An index that moves from one version's space to another's while it serves."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from torch import Tensor

from incontrast.compat.index import (
    BATCH,
    FaissIndex,
    Found,
    Index,
    LanceIndex,
    Stamp,
    batches,
    unit_rows,
)
from incontrast.compat.link import Chain
from incontrast.files import alone_in, write_bytes

POINTER = "current.json"
Opened = Callable[[Path, Stamp], Index]
Maps = Callable[[int, int], Chain]


def faiss_index(place: Path, stamp: Stamp) -> FaissIndex:
    """An index in one file."""
    return FaissIndex(place.with_name(f"{place.name}.faiss.npz"), stamp)


BACKENDS: dict[str, Opened] = {"FaissIndex": faiss_index, "LanceIndex": LanceIndex}


@dataclass(frozen=True)
class _Pointer:
    """Which indexes a folder has; replacing its file completes a change."""

    backend: str  # class of the indexes
    serving: Stamp
    other: Stamp | None = None
    filled: bool = False  # whether the serving index has been written
    number: int = 0  # of changes
    pending: Sequence[str] = ()  # items of an unfinished change

    @classmethod
    def read(cls, folder: Path) -> Self:
        file = folder / POINTER
        if not file.exists():
            raise ValueError(f"{folder} has no index yet: say of which version the first is")
        pointer = cls(**json.loads(file.read_text()))
        other = None if pointer.other is None else Stamp(*pointer.other)
        return replace(pointer, serving=Stamp(*pointer.serving), other=other)

    def write(self, folder: Path) -> None:
        write_bytes(folder / POINTER, json.dumps(asdict(self)).encode())

    def open(self, folder: Path, stamp: Stamp, opened: Opened | None) -> Index:
        """Open or create the index of a stamp."""
        if opened is None and self.backend not in BACKENDS:
            raise ValueError(f"{folder} is a {self.backend}: say with opened= how to open it")
        place = _place(folder, stamp)
        index = (opened or BACKENDS[self.backend])(place, stamp)
        if type(index).__name__ != self.backend:
            raise ValueError(f"{folder} is a {self.backend}, and was opened as {type(index)}")
        if stamp == self.serving and self.filled and not index.exists():
            missing = f"the vectors of version {stamp.version} are not at {place} any more"
            raise FileNotFoundError(f"{missing}: restore a copy, or build an index elsewhere")
        return index


def _place(folder: Path, stamp: Stamp) -> Path:
    return folder / f"{stamp.version:06d}-{stamp.encoder[:8]}"


def serving_place(folder: Path) -> Path:
    """The path that the files of the serving index begin with."""
    return _place(folder, _Pointer.read(folder).serving)


def open_serving(folder: Path) -> Index:
    """The serving index, for searches only."""
    pointer = _Pointer.read(folder)
    return pointer.open(folder, pointer.serving, None)


class MigratingIndex:
    """One or two indexes in a folder, of different versions, one of which serves.

    ``prepare`` begins the index of a new version beside the serving one. From then on, vectors are
    added to both, mapped into the space of each. ``backfill`` maps what is stored; if it is
    interrupted, the next call resumes. ``cutover`` moves one pointer. The former index stays up to
    date until the next ``prepare``, so that ``rollback`` can move the pointer back.

    Several processes may change the same folder, one at a time: each change starts from what the
    others have left. A search sees what this object has read or changed last.

    Args:
        folder: New, or as this class left it.
        maps: Returns the map from one version's space into another's: ``Workspace.adapter``.
        first: The stamp of the first vectors, for a new folder.
        opened: Opens or creates the index of a stamp at a place; by default a FAISS file in a new
            folder, else the same kind as before.
    """

    serving: Index
    other: Index | None
    """The index of the next version, or of the former one."""

    def __init__(
        self,
        folder: str | Path,
        maps: Maps,
        *,
        first: Stamp | None = None,
        opened: Opened | None = None,
    ) -> None:
        self.folder, self.maps, self._opened = Path(folder), maps, opened
        self._number = -1  # of the last change that the indexes in memory have
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(self.folder):
            if first is not None and not (self.folder / POINTER).exists():
                index = (opened or faiss_index)(_place(self.folder, first), first)
                _Pointer(type(index).__name__, first).write(self.folder)
            self._read()

    def _read(self) -> _Pointer:
        """Open what others have changed, and revert an interrupted change."""
        pointer = _Pointer.read(self.folder)
        if pointer.number != self._number or pointer.pending:
            self.serving = self._open(pointer, pointer.serving)
            self.other = None if pointer.other is None else self._open(pointer, pointer.other)
            if pointer.pending and self.other is not None:
                self.other.delete(pointer.pending)  # backfill copies them from the serving index
                self.other.flush()
            if pointer.pending:
                pointer = replace(pointer, number=pointer.number + 1, pending=())
                pointer.write(self.folder)
            self._number = pointer.number
        return pointer

    def _open(self, pointer: _Pointer, stamp: Stamp) -> Index:
        return pointer.open(self.folder, stamp, self._opened)

    @contextmanager
    def _changing(self) -> Iterator[_Pointer]:
        """Lock the folder for a change, which is complete once the new pointer is written."""
        with alone_in(self.folder):
            pointer = self._read()
            self._number = -1  # until the end, the disk may differ from what is in memory
            yield pointer
            replace(
                pointer,
                serving=self.serving.stamp,
                other=None if self.other is None else self.other.stamp,
                filled=self.serving.exists(),
                number=pointer.number + 1,
            ).write(self.folder)
            self._number = pointer.number + 1

    def add(self, ids: Sequence[str], vectors: Tensor, version: int) -> None:
        """Add vectors that a version has embedded, to each index in its own space."""
        with self._changing() as pointer:
            mapped = [self.maps(version, index.stamp.version)(vectors) for index in self._both()]
            for rows in mapped:
                unit_rows(ids, rows)  # report errors before anything changes
            replace(pointer, pending=list(ids)).write(self.folder)
            for index, rows in zip(self._both(), mapped, strict=True):
                index.add(ids, rows)
                index.flush()

    def delete(self, ids: Iterable[str]) -> None:
        names = list(ids)
        with self._changing() as pointer:
            replace(pointer, pending=names).write(self.folder)
            for index in self._both():
                index.delete(names)
                index.flush()

    def _both(self) -> list[Index]:
        return [index for index in (self.serving, self.other) if index is not None]

    def search(self, queries: Tensor, version: int, count: int = 10) -> Found:
        """Search the serving index with queries that a version has embedded."""
        return self.serving.search(self.maps(version, self.serving.stamp.version)(queries), count)

    def prepare(self, stamp: Stamp) -> None:
        """Begin the index of another version; if it was begun before, continue with that."""
        with self._changing() as pointer:
            if stamp.workspace != self.serving.stamp.workspace:
                raise ValueError("unrelated workspaces have no maps: build a new index")
            if stamp == self.serving.stamp:
                raise ValueError(f"the index serves version {stamp.version} already")
            self.maps(self.serving.stamp.version, stamp.version)  # raises if there is none
            if stamp == pointer.other:
                return
            self.other = self._open(pointer, stamp)
            self.other.delete(self.other.ids())  # left from earlier: it may be out of date
            self.other.flush()
            if pointer.other is not None:
                self._remove(pointer.other)

    def _remove(self, stamp: Stamp) -> None:
        for path in self.folder.glob(f"{_place(self.folder, stamp).name}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def missing(self) -> set[str]:
        """Items that the other index lacks."""
        return self.serving.ids() - (set() if self.other is None else self.other.ids())

    def _prepared(self) -> Index:
        if self.other is None:
            raise ValueError("there is no other index: prepare one of another version first")
        return self.other

    def backfill(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Map what the other index lacks from the serving one."""
        done, left = 0, 1
        while left:
            with self._changing():
                other, missing = self._prepared(), sorted(self.missing())
                # As many as it has already, since each step writes the whole file of an index.
                step = missing[: max(BATCH, len(other.ids()))]
                mapped = self.maps(self.serving.stamp.version, other.stamp.version)
                for ids in batches(step):
                    other.add(ids, mapped(self.serving.read(ids)))
                other.flush()
            done, left = done + len(step), len(missing) - len(step)
            if progress is not None:
                progress(done, done + left)

    def cutover(self) -> None:
        """Let the other index serve; it must have every item."""
        with self._changing():
            other = self._prepared()
            missing, total = len(self.missing()), len(self.serving.ids())
            if missing:
                version = other.stamp.version
                raise ValueError(
                    f"version {version} lacks {missing:,} of {total:,} items: backfill it first"
                )
            other.delete(other.ids() - self.serving.ids())
            other.flush()
            self.serving, self.other = other, self.serving

    def rollback(self) -> None:
        """Let the former index serve again."""
        self.cutover()
