"""Items as bytes in one SQLite file, by the numbers of their arrival.

What is looked at for all items at once (keys, sizes, states, hashes) is kept in columns, a few
thousand items to a row, so that a million items open in milliseconds; their contents are a row
each, read when a batch asks for them. Every row has a checksum, which is compared when it is read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from incontrast.memory.sqlite_file import WAIT, StoreBusy, StoreError, connect, translated

__all__ = ["Columns", "Extent", "Store", "content_hash"]

FORMAT = 2
APPLICATION = 0x49434D31  # what SQLite calls application_id: "ICM1"
PAGE = 16384  # bytes: five items of 3 KB to a page
ROWS = 4096  # items to a row of columns

GONE, PRESENT, FORGOTTEN = 0, 1, 2

_TABLES = """
create table items (id integer primary key, checksum integer not null, content blob not null);
create table chunks (
    first integer primary key, checksum integer not null,
    keys blob not null, sizes blob not null, states blob not null, hashes blob not null
);
"""


class Columns(NamedTuple):
    """What is known of every item that arrived, kept or not."""

    keys: NDArray[np.float64]  # (n,)
    sizes: NDArray[np.int64]  # (n,) bytes
    states: NDArray[np.uint8]  # (n,) GONE, PRESENT or FORGOTTEN


class Extent(NamedTuple):
    """What of a store the memory of a learner holds.

    Keys never change, so it follows from a few numbers: the items that had arrived, other than
    those of versions that were rolled back, with keys below the threshold.

    Args:
        arrivals: Ids below this one had been given to items.
        threshold: Keys from here on are not kept.
        skipped: Ranges of ids, from and up to, that were given to items of other versions.
    """

    arrivals: int
    threshold: float
    skipped: tuple[tuple[int, int], ...] = ()

    def holds(self, keys: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(arrivals,) whether an item is kept, from all keys there are."""
        held: NDArray[np.bool_] = (keys[: self.arrivals] < self.threshold) & ~self._skips()
        return held

    def stored(self, columns: Columns, largest: int | None = None) -> NDArray[np.bool_]:
        """(arrivals,) whether an item is kept and not forgotten since.

        Args:
            columns: What is known of the items.
            largest: Bytes that the memory has room for: larger items were never kept.
        """
        stored: NDArray[np.bool_] = (columns.states == PRESENT) & self.holds(columns.keys)
        if largest is not None:
            stored &= columns.sizes <= largest
        return stored

    def forgotten(self, columns: Columns) -> NDArray[np.bool_]:
        """(arrivals,) whether an item was forgotten, or is of another version."""
        forgotten: NDArray[np.bool_] = (columns.states == FORGOTTEN) | self._skips()
        return forgotten

    def _skips(self) -> NDArray[np.bool_]:
        outside = np.zeros(self.arrivals, bool)
        for first, end in self.skipped:
            outside[first:end] = True
        return outside


class _Chunk(NamedTuple):
    """A row of columns."""

    first: int
    keys: NDArray[np.float64]
    sizes: NDArray[np.int64]
    states: NDArray[np.uint8]
    hashes: NDArray[np.void]  # (n,) of 16 bytes

    @property
    def end(self) -> int:
        return self.first + len(self.states)

    def row(self) -> tuple[Any, ...]:
        columns = [column.tobytes() for column in self[1:]]
        return (self.first, _checksum(self.first, *columns), *columns)


def content_hash(content: bytes) -> bytes:
    """16 bytes that tell this content from any other."""
    return hashlib.blake2b(content, digest_size=16).digest()


class Store:
    """A file of items. Make one with ``create`` or ``open``.

    Reads may go on while one process writes; every method that writes is one transaction.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, path: Path) -> Store:
        """A new, empty store."""
        if path.exists():
            raise StoreError(f"{path} exists already")
        with translated(path):
            connection = connect(path, "rwc")
            connection.execute(f"pragma page_size = {PAGE}")
            connection.execute("pragma journal_mode = wal")
            connection.executescript(
                f"begin; {_TABLES} pragma application_id = {APPLICATION}; "
                f"pragma user_version = {FORMAT}; commit;"
            )
        return cls(path, connection)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, still: bool = False) -> Store:
        """A store that is there.

        Args:
            path: Where it is.
            readonly: Whether it is only read.
            still: Nobody writes to it meanwhile, so that it can be read without locks; also from
                another machine, on a shared file system.

        Raises:
            StoreError: It is missing, damaged, or of another format.
        """
        if not path.is_file():
            raise StoreError(f"{path} is missing: restore it from a copy")
        with translated(path):
            connection = connect(path, "ro" if readonly else "rw", still=still)
            found = connection.execute("pragma application_id").fetchone()[0]
            version = connection.execute("pragma user_version").fetchone()[0]
        if found != APPLICATION:
            raise StoreError(f"{path} is not a store of items, or it is damaged")
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, this version of incontrast reads {FORMAT}: "
                "use the version that wrote it"
            )
        return cls(path, connection)

    def close(self) -> None:
        self._connection.close()

    # Writing -------------------------------------------------------------------------------------

    def append(self, first: int, contents: Sequence[bytes], keys: NDArray[np.float64]) -> None:
        """Put items with the ids ``first``, ``first + 1``, … and these (n,) keys at the end."""
        with self._writing() as run:
            run.executemany(
                "insert into items values (?, ?, ?)",
                (
                    (first + number, zlib.crc32(content), content)
                    for number, content in enumerate(contents)
                ),
            )
            for start in range(0, len(contents), ROWS):
                part = contents[start : start + ROWS]
                chunk = _Chunk(
                    first + start,
                    keys[start : start + ROWS].astype("<f8"),
                    np.array([len(content) for content in part], "<i8"),
                    np.full(len(part), PRESENT, np.uint8),
                    np.frombuffer(b"".join(map(content_hash, part)), "V16"),
                )
                run.execute("insert into chunks values (?, ?, ?, ?, ?, ?)", chunk.row())

    def drop_from(self, first: int) -> None:
        """Delete every item from this id on, as if it had never arrived."""
        with self._writing() as run:
            run.execute("delete from items where id >= ?", (first,))
            run.execute("delete from chunks where first >= ?", (first,))

    def remove(self, ids: Iterable[int], *, forgotten: bool = False) -> int:
        """Delete the contents of these items; returns how many there were.

        Args:
            ids: Their ids.
            forgotten: They no longer count as seen either.
        """
        wanted = np.unique(np.fromiter(ids, np.int64))
        removed = 0
        with self._writing() as run:
            for chunk in [chunk for chunk in self._chunks() if len(_inside(wanted, chunk))]:
                inside = _inside(wanted, chunk)
                states, hashes = chunk.states.copy(), chunk.hashes.copy()
                present = inside[states[inside] == PRESENT]
                run.executemany(
                    "delete from items where id = ?", ((int(i + chunk.first),) for i in present)
                )
                removed += len(present)
                states[inside if forgotten else present] = FORGOTTEN if forgotten else GONE
                if forgotten:  # a hash tells whether somebody's item was here: it goes, too
                    hashes[inside] = np.zeros(len(inside), "V16")
                row = chunk._replace(states=states, hashes=hashes).row()
                run.execute("insert or replace into chunks values (?, ?, ?, ?, ?, ?)", row)
        return removed

    def keep_only(self, extents: Iterable[Extent]) -> None:
        """Delete the contents of items that none of these memories holds."""
        keys, _, states = self.columns(self.arrivals())
        needed = np.zeros(len(keys), bool)
        for extent in extents:
            needed[: extent.arrivals] |= extent.holds(keys)
        surplus = ((states == PRESENT) & ~needed).nonzero()[0]
        if len(surplus):
            self.remove(surplus)

    def fold(self, *, wait: float = 0.0) -> bool:
        """Fold the write-ahead log into the file and cut it to length 0, so that it does not grow.

        Args:
            wait: Seconds to wait for readers.

        Returns:
            False if a reader holds on to the log.
        """
        run = self._connection.execute
        with translated(self.path):
            run(f"pragma busy_timeout = {int(1000 * wait)}")
            try:
                busy: int = run("pragma wal_checkpoint(truncate)").fetchone()[0]
            finally:
                run(f"pragma busy_timeout = {int(1000 * WAIT)}")
        return not busy

    def erase(self) -> None:
        """See to it that nothing that was deleted can be found in the files.

        Deleted contents are overwritten with zeros when they are deleted; what is left of them is
        in the log.

        Raises:
            StoreBusy: A reader holds on to the log.
        """
        if not self.fold(wait=WAIT):
            raise StoreBusy(
                f"{self.path}: another process is reading, so that deleted items may still be in "
                "the log; run the command again when it has finished"
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with translated(self.path):
            self._connection.execute("begin immediate")
            try:
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    # Reading -------------------------------------------------------------------------------------

    def arrivals(self) -> int:
        """How many ids have been given to items: the next one's id."""
        with translated(self.path):
            rows = self._connection.execute("select * from chunks order by first desc limit 1")
            return max((self._chunk(row).end for row in rows), default=0)

    def columns(self, count: int) -> Columns:
        """What is known of the first ``count`` items that arrived."""
        chunks: list[_Chunk] = []
        with translated(self.path):
            for chunk in self._chunks():
                if chunk.first >= count:
                    break
                chunks.append(chunk)
        total = chunks[-1].end if chunks else 0
        if total < count:
            raise StoreError(
                f"{self.path} is damaged: it has {total} items where {count} have arrived"
            )
        if not chunks:
            return Columns(np.empty(0), np.empty(0, np.int64), np.empty(0, np.uint8))
        parts = zip(*(chunk[1:4] for chunk in chunks), strict=True)
        return Columns(*(np.concatenate(part)[:count] for part in parts))

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The contents of these items, in this order.

        Raises:
            StoreError: One is not there, or is damaged.
        """
        with translated(self.path):
            rows = self._connection.execute(
                "select id, checksum, content from items "
                "where id in (select value from json_each(?))",
                (json.dumps(ids),),
            ).fetchall()
        found = {row[0]: row for row in rows}
        contents = []
        for item in ids:
            row = found.get(item)
            if row is None and self._gone(item):
                raise StoreBusy(f"item {item} was deleted by another process meanwhile: try again")
            if row is None:
                raise StoreError(f"{self.path} is damaged: it has lost item {item}")
            if not _whole(row):
                raise StoreError(
                    f"{self.path} is damaged: item {item} is not what was stored; forget it "
                    "(incontrast forget), or restore the file from a copy"
                )
            contents.append(row[2])
        return contents

    def _gone(self, item: int) -> bool:
        """Whether an item was deleted, as opposed to lost."""
        with translated(self.path):
            rows = self._connection.execute(
                "select * from chunks where first <= ? order by first desc limit 1", (item,)
            )
            found = [chunk for chunk in map(self._chunk, rows) if item < chunk.end]
        return not found or found[0].states[item - found[0].first] != PRESENT

    def find(self, hashes: Iterable[bytes]) -> NDArray[np.int64]:
        """(n,) ids of the items with these content hashes that are not forgotten."""
        wanted = np.frombuffer(b"".join(hashes), "S16")
        found = [np.empty(0, np.int64)]
        with translated(self.path):
            for chunk in self._chunks():
                match = np.isin(chunk.hashes.view("S16"), wanted) & (chunk.states != FORGOTTEN)
                found.append(chunk.first + match.nonzero()[0])
        return np.concatenate(found)

    def check(self) -> list[str]:
        """Look at every page, row and item; returns what is wrong."""
        try:
            with translated(self.path):
                pages = self._connection.execute("pragma integrity_check").fetchall()
                wrong = [f"{self.path} is damaged: {row[0]}" for row in pages if row[0] != "ok"]
                end = 0
                for chunk in self._chunks():
                    wrong += self._check_items(chunk)
                    end = chunk.end
                beyond = "select count(*) from items where id < 0 or id >= ?"
                if self._connection.execute(beyond, (end,)).fetchone()[0]:
                    wrong.append(f"{self.path} is damaged: it holds items that never arrived")
        except StoreError as error:
            return [str(error)]
        return wrong

    def _check_items(self, chunk: _Chunk) -> Iterator[str]:
        rows = self._connection.execute(
            "select id, checksum, content from items where id >= ? and id < ?",
            (chunk.first, chunk.end),
        )
        there = np.zeros(len(chunk.states), bool)
        for row in rows:
            place = row[0] - chunk.first
            there[place] = True
            known = (int(chunk.sizes[place]), chunk.hashes[place].tobytes())
            if not _whole(row) or (len(row[2]), content_hash(row[2])) != known:
                yield f"{self.path} is damaged: item {row[0]} is not what was stored"
        for place in (there != (chunk.states == PRESENT)).nonzero()[0]:
            what = "lost" if not there[place] else "kept, after it was deleted,"
            yield f"{self.path} is damaged: it has {what} item {chunk.first + int(place)}"

    def _chunks(self) -> Iterator[_Chunk]:
        end = 0
        for row in self._connection.execute("select * from chunks order by first"):
            chunk = self._chunk(row)
            if chunk.first != end:
                raise StoreError(f"{self.path} is damaged: it has lost items {end} and on")
            end = chunk.end
            yield chunk

    def _chunk(self, row: tuple[Any, ...]) -> _Chunk:
        first, checksum, *columns = row
        if not all(isinstance(part, bytes) for part in columns) or checksum != _checksum(
            first, *columns
        ):
            raise StoreError(
                f"{self.path} is damaged: the record of items {first} and on is not what was "
                "written; restore the file from a copy"
            )
        kinds = ("<f8", "<i8", "u1", "V16")
        parts: list[Any] = [np.frombuffer(*part) for part in zip(columns, kinds, strict=True)]
        return _Chunk(first, *parts)


def _checksum(first: int, *columns: bytes) -> int:
    total = zlib.crc32(str(first).encode())
    for column in columns:
        total = zlib.crc32(column, total)
    return total


def _whole(row: tuple[Any, ...]) -> bool:
    """Whether an item is what was stored; a damaged file may hold anything in its place."""
    return isinstance(row[2], bytes) and zlib.crc32(row[2]) == row[1]


def _inside(wanted: NDArray[np.int64], chunk: _Chunk) -> NDArray[np.int64]:
    """The places in a chunk of the ids that are wanted."""
    return wanted[(wanted >= chunk.first) & (wanted < chunk.end)] - chunk.first
