"""Items as bytes in one SQLite file. An item's id is its place in the order of arrival, from 0.

Keys, sizes, states and hashes are columns, with a few thousand items to a row, so that a million
items open in milliseconds. Contents have a row each, which is read when a batch needs it. Every row
has a checksum, which is compared whenever it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

FORMAT = 3
APPLICATION = 0x49434D31  # SQLite's application_id: "ICM1"
PAGE = 16384  # bytes: five items of 3 KB to a page
ROWS = 4096  # items to a row of columns
CACHE = 16  # megabytes
MAPPED = 256  # megabytes of the file that are read without a system call
WAIT = 10.0  # seconds that a writer waits for readers
GONE, PRESENT, FORGOTTEN = 0, 1, 2
HASH = 8  # bytes of a content hash that are stored
ITEM = np.dtype(
    [("key", "<f8"), ("size", "<i8"), ("state", "u1"), ("hash", f"S{HASH}")], align=True
)

Items = NDArray[np.void]
"""(n,) of ``ITEM``: what is known of items without their contents.

An item that is not present has an infinite key and the size 0.
"""

_TABLES = """
create table items (id integer primary key, checksum integer not null, content blob not null);
create table chunks (
    first integer primary key, checksum integer not null,
    keys blob not null, sizes blob not null, states blob not null, hashes blob not null
);
"""


class StoreError(RuntimeError):
    """A store cannot be read or written: it is damaged, of another format, or the disk is full."""


class StoreUnwritable(StoreError):
    """The machine prevents reading or writing: no space, read-only, a bad disk."""


class StoreBusy(StoreError):
    """Another process is using the store."""


def content_hash(content: bytes) -> bytes:
    """16 bytes that identify this content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def short_hashes(hashes: Iterable[bytes]) -> NDArray[np.bytes_]:
    """(n,) the part of content hashes that a store keeps; trailing zeros are ignored.

    Among a million items, two are confused with a probability of 5e-14.
    """
    return np.frombuffer(b"".join(digest[:HASH] for digest in hashes), f"S{HASH}")


def _packed(first: int, items: Items) -> tuple[Any, ...]:
    """A row of the file: keys and sizes of present items, states and hashes of all.

    So a memory of fixed capacity grows by 8 bytes with every item that passes through.
    """
    present = items[items["state"] == PRESENT]
    states = zlib.compress(items["state"].tobytes())
    blobs = [present["key"].tobytes(), present["size"].tobytes(), states, items["hash"].tobytes()]
    return (first, _checksum(first, blobs), *blobs)


def _unpacked(keys: bytes, sizes: bytes, states: bytes, hashes: bytes) -> Items:
    items = np.zeros(len(hashes) // HASH, ITEM)
    items["state"] = np.frombuffer(zlib.decompress(states), "u1")
    items["hash"] = np.frombuffer(hashes, f"S{HASH}")
    present = items["state"] == PRESENT
    items["key"] = np.inf
    items["key"][present] = np.frombuffer(keys, "<f8")
    items["size"][present] = np.frombuffer(sizes, "<i8")
    return items


def _checksum(first: int, blobs: Sequence[bytes]) -> int:
    return zlib.crc32(b"".join([str(first).encode(), *blobs]))


class Extent(NamedTuple):
    """Which items of a store the memory of a learner holds.

    Keys never change, so a few numbers determine it: the memory holds the items that had arrived,
    except those of versions that were rolled back, with keys below the threshold.
    """

    arrivals: int  # items with ids below this one had arrived
    threshold: float  # items with keys from here on are not stored
    skipped: Sequence[Sequence[int]] = ()  # ranges of ids of other versions' items
    elsewhere: int = 0  # items that were seen before the first arrival

    def stored(self, items: Items, largest: int | None = None) -> NDArray[np.bool_]:
        """(arrivals,) whether each of all items is in this memory.

        Items of more than ``largest`` bytes never fit into it.
        """
        items = items[: self.arrivals]
        kept = (items["state"] == PRESENT) & (items["key"] < self.threshold) & ~self._skipped()
        return np.asarray(kept if largest is None else kept & (items["size"] <= largest))

    def forgotten(self, items: Items) -> NDArray[np.bool_]:
        """(arrivals,) whether each of all items was forgotten, or belongs to another version."""
        return np.asarray((items["state"][: self.arrivals] == FORGOTTEN) | self._skipped())

    def _skipped(self) -> NDArray[np.bool_]:
        skipped = np.zeros(self.arrivals, bool)
        for first, end in self.skipped:
            skipped[first:end] = True
        return skipped


class Store:
    """A file of items, made with ``create`` or ``open``.

    Others may read while one process writes; every method that writes is one transaction.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, path: Path) -> Store:
        """A new, empty store."""
        if path.exists():
            raise StoreError(f"{path} exists already")
        with _translated(path):
            connection = _connect(path, "rwc")
            connection.execute(f"pragma page_size = {PAGE}")
            connection.execute("pragma journal_mode = wal")
            connection.executescript(
                f"begin; {_TABLES} pragma application_id = {APPLICATION}; "
                f"pragma user_version = {FORMAT}; commit;"
            )
        return cls(path, connection)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, still: bool = False) -> Store:
        """An existing store.

        ``still``: nobody writes to it meanwhile, so it is read without locks, which shared file
        systems lack.
        """
        if not path.is_file():
            raise StoreError(f"{path} is missing: restore it from a copy")
        with _translated(path):
            connection = _connect(path, "ro" if readonly else "rw", still=still)
            application = connection.execute("pragma application_id").fetchone()[0]
            version = connection.execute("pragma user_version").fetchone()[0]
        if application != APPLICATION:
            raise StoreError(
                f"{path} is not a store of items, or it is damaged: restore it from a copy"
            )
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, not {FORMAT}: use the incontrast that wrote it"
            )
        return cls(path, connection)

    def close(self) -> None:
        self._connection.close()

    # Writing -------------------------------------------------------------------------------------

    def append(self, first: int, contents: Sequence[bytes], keys: NDArray[np.float64]) -> None:
        """Add items with the ids ``first``, ``first + 1``, … and these (n,) keys at the end."""
        with self._writing() as run:
            checksums = map(zlib.crc32, contents)
            rows = zip(count(first), checksums, contents, strict=False)
            run.executemany("insert into items values (?, ?, ?)", rows)
            new = np.empty(len(contents), ITEM)
            new["key"], new["state"] = keys, PRESENT
            new["size"] = [len(content) for content in contents]
            new["hash"] = short_hashes(map(content_hash, contents))
            start, last = self._last()
            if len(last) < ROWS:
                first, new = start, np.concatenate([last, new])
            self._put(first, new)

    def drop_from(self, first: int) -> None:
        """Delete every item from this id on, as if it had never arrived."""
        with self._writing() as run:
            run.execute("delete from items where id >= ?", (first,))
            run.execute("delete from chunks where first >= ?", (first,))
            start, last = self._last()
            self._put(start, last[: first - start])

    def remove(self, ids: Iterable[int], *, forgotten: bool = False) -> int:
        """Delete the contents of these items; returns how many were present.

        ``forgotten`` items no longer count as seen, and files that still contain them do not bring
        them back.
        """
        unwanted = np.unique(np.fromiter(ids, np.int64))
        removed = 0
        with self._writing() as run:
            for first, items in [*self._chunks()]:
                inside = (unwanted >= first) & (unwanted < first + len(items))
                places = unwanted[inside] - first
                if not len(places):
                    continue
                present = places[items["state"][places] == PRESENT]
                run.executemany(
                    "delete from items where id = ?", ((int(place) + first,) for place in present)
                )
                removed += len(present)
                if forgotten:
                    items["state"][places] = FORGOTTEN
                else:
                    items["state"][present] = GONE
                self._put(first, items)
        return removed

    def keep_only(self, extents: Iterable[Extent]) -> None:
        """Delete the contents of items that none of these memories holds."""
        items = self.columns(self.arrivals())
        surplus = items["state"] == PRESENT
        for extent in extents:
            surplus[: extent.arrivals] &= ~extent.stored(items)
        self.remove(surplus.nonzero()[0])

    def _put(self, first: int, items: Items) -> None:
        query = "insert or replace into chunks values (?, ?, ?, ?, ?, ?)"
        for start in range(0, len(items), ROWS):
            row = _packed(first + start, items[start : start + ROWS])
            self._connection.execute(query, row)

    def fold(self, *, wait: float = 0.0) -> bool:
        """Move the write-ahead log into the file; False if a reader keeps it for too long."""
        run = self._connection.execute
        with _translated(self.path):
            run(f"pragma busy_timeout = {int(1000 * wait)}")
            try:
                busy: int = run("pragma wal_checkpoint(truncate)").fetchone()[0]
            finally:
                run(f"pragma busy_timeout = {int(1000 * WAIT)}")
        return not busy

    def erase(self) -> None:
        """Make sure that nothing deleted can be found in the files.

        Contents are overwritten with zeros when they are deleted, but copies stay in the log for
        as long as a reader holds on to it.
        """
        if not self.fold(wait=WAIT):
            raise StoreBusy(
                f"{self.path}: another process is reading, so that deleted items may still be in "
                "the log; run the command again when it has finished"
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _translated(self.path), self._connection:  # which commits or rolls back
            self._connection.execute("begin immediate")
            yield self._connection

    # Reading -------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with _translated(self.path):
            # Not `yield from`: that closes the cursor of a reader who stops halfway, perhaps after
            # the file was closed, which SQLite takes for an error.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    def _chunks(self, which: str = "order by first", *values: int) -> Iterator[tuple[int, Items]]:
        """Rows of columns: the id of the first item, and what is known of the items."""
        for first, checksum, *blobs in self._rows(f"select * from chunks {which}", *values):
            whole = all(isinstance(blob, bytes) for blob in blobs)
            if not whole or checksum != _checksum(first, blobs):
                raise StoreError(
                    f"{self.path} is damaged: the record of items {first} and on is not what was "
                    "written; restore the file from a copy"
                )
            yield first, _unpacked(*blobs)

    def _last(self, before: int = 2**62) -> tuple[int, Items]:
        """The last row of columns that begins before an id; empty if none does."""
        rows = [*self._chunks("where first < ? order by first desc limit 1", before)]
        return rows[0] if rows else (0, np.empty(0, ITEM))

    def arrivals(self) -> int:
        """The number of ids in use: the next item's id."""
        first, items = self._last()
        return first + len(items)

    def columns(self, arrived: int) -> Items:
        """What is known of the first items that arrived, so many of them."""
        parts, end = [np.empty(0, ITEM)], 0
        for first, items in takewhile(lambda chunk: chunk[0] < arrived, self._chunks()):
            if first != end:
                raise StoreError(f"{self.path} is damaged: it has lost items {end} and on")
            parts.append(items)
            end += len(items)
        if end < arrived:
            raise StoreError(f"{self.path} is damaged: it has {end} items where {arrived} arrived")
        return np.concatenate(parts)[:arrived]

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The contents of these items, in this order.

        Raises:
            StoreError: One is missing or damaged.
        """
        query = "select * from items where id in (select value from json_each(?))"
        rows = {row[0]: row for row in self._rows(query, json.dumps(ids))}
        contents = []
        for item in ids:
            row = rows.get(item)
            if row is None and self._deleted(item):
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

    def _deleted(self, item: int) -> bool:
        """Whether an item was deleted, as opposed to lost."""
        first, items = self._last(item + 1)
        return item >= first + len(items) or items["state"][item - first] != PRESENT

    def find(self, hashes: Iterable[bytes]) -> NDArray[np.int64]:
        """(n,) ids of the items with these content hashes that are not forgotten."""
        items = self.columns(self.arrivals())
        same = np.isin(items["hash"], short_hashes(hashes)) & (items["state"] != FORGOTTEN)
        return np.flatnonzero(same)

    def check(self) -> list[str]:
        """Read every page, row and item; returns what is wrong."""
        wrong, strays = [], 0
        try:
            for (page,) in self._rows("pragma integrity_check"):
                if page != "ok":
                    wrong.append(page)
            known = self.columns(self.arrivals())
            there = np.zeros(len(known), bool)
            for row in self._rows("select * from items"):
                item = row[0]
                if not 0 <= item < len(known):
                    strays += 1
                    continue
                there[item] = True
                if not _whole(row) or short_hashes([content_hash(row[2])]) != known["hash"][item]:
                    wrong.append(f"item {item} is not what was stored")
            for item in (there != (known["state"] == PRESENT)).nonzero()[0].tolist():
                what = "kept, after it was deleted," if there[item] else "lost"
                wrong.append(f"it has {what} item {item}")
            if strays:
                wrong.append("it holds items that never arrived")
        except StoreError as error:
            return [str(error)]
        return [f"{self.path} is damaged: {problem}" for problem in wrong]


class KnownHashes:
    """The hashes of what a memory has seen, of some further items, and of all forgotten items."""

    def __init__(self, store: Store, extent: Extent | None, ids: range = range(0)) -> None:
        items = store.columns(store.arrivals())
        hashes, forgotten = items["hash"], items["state"] == FORGOTTEN
        seen = np.zeros(len(items), bool)
        seen[ids.start : ids.stop] = True
        if extent is not None:
            seen[: extent.arrivals] |= ~extent.forgotten(items)
        self._known = np.sort(hashes[seen & ~forgotten])
        # Earlier releases gave discarded items this state, without a hash.
        self._forgotten = np.sort(hashes[forgotten & (hashes != b"")])

    def contains(self, contents: Sequence[bytes]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Two (n,): whether each of these packed items is known; whether it was forgotten."""
        digests = short_hashes(map(content_hash, contents))
        known = _among(digests, self._known)
        return known, _among(digests, self._forgotten) & ~known


def _among(digests: NDArray[np.bytes_], ordered: NDArray[np.bytes_]) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(digests), bool)
    places = np.searchsorted(ordered, digests).clip(max=len(ordered) - 1)
    return np.asarray(ordered[places] == digests)


def _whole(row: tuple[Any, ...]) -> bool:
    """Whether an item is what was stored; a damaged file may hold any type instead."""
    return isinstance(row[2], bytes) and zlib.crc32(row[2]) == row[1]


def _connect(path: Path, mode: str, *, still: bool = False) -> sqlite3.Connection:
    try:
        connection = _opened(path, mode, still)
    except sqlite3.OperationalError as error:
        unwritable = any(word in str(error) for word in ("unable to open", "readonly", "read-only"))
        if mode != "ro" or not unwritable or path.with_name(f"{path.name}-wal").exists():
            raise
        # In a read-only folder, the log's index cannot be created; without a log, the file alone
        # is all there is.
        connection = _opened(path, mode, True)
    if mode != "ro":
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")  # deleted contents become zeros
    connection.execute(f"pragma cache_size = -{CACHE * 1024}")
    connection.execute(f"pragma mmap_size = {MAPPED * 2**20}")
    return connection


def _opened(path: Path, mode: str, immutable: bool) -> sqlite3.Connection:
    address = f"file:{quote(os.fspath(path.absolute()))}?mode={mode}{'&immutable=1' * immutable}"
    # Batches may be read in another thread than the one that opened the store, one at a time.
    connection = sqlite3.connect(
        address, uri=True, isolation_level=None, timeout=WAIT, check_same_thread=False
    )
    connection.execute("select count(*) from sqlite_master").fetchone()
    return connection


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours, which name the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "disk is full" in text:
            message = f"no space left for {path}: nothing was changed; make space and run it again"
        elif "readonly" in text or "read-only" in text:
            message = f"{path} cannot be written: it or its folder is read-only"
        elif "disk I/O error" in text or "unable to open" in text:
            message = f"{path} cannot be read or written ({text}): look at the disk and permissions"
        elif "locked" in text:
            raise StoreBusy(f"{path} is being written by another process: try again") from error
        else:
            raise StoreError(f"{path} is damaged ({text}): restore it from a copy") from error
        raise StoreUnwritable(message) from error
