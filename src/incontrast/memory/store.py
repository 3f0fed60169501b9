"""Items as bytes in one SQLite file, by the numbers of their arrival.

What is looked at for all items at once (keys, sizes, states, hashes) is kept in columns, a few
thousand items to a row, so that a million items open in milliseconds; their contents are a row
each, read when a batch asks for them. Every row has a checksum, which is compared when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

FORMAT = 3
APPLICATION = 0x49434D31  # what SQLite calls application_id: "ICM1"
PAGE = 16384  # bytes: five items of 3 KB to a page
ROWS = 4096  # items to a row of columns
CACHE = 16  # megabytes
MAPPED = 256  # megabytes of the file that are read without a call to the system
WAIT = 10.0  # seconds that a writer waits for readers
GONE, PRESENT, FORGOTTEN = 0, 1, 2
HASH = 8  # bytes of a content hash that are kept
KINDS = ("<f8", "<i8", "u1", f"S{HASH}")  # of keys, sizes, states, hashes

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
    """The machine does not let the store be read or written: no space, read-only, a bad disk."""


class StoreBusy(StoreError):
    """Another process is at the store."""


def content_hash(content: bytes) -> bytes:
    """16 bytes that tell this content from any other."""
    return hashlib.blake2b(content, digest_size=16).digest()


def short_hashes(hashes: Iterable[bytes]) -> NDArray[np.bytes_]:
    """(n,) what a store keeps of content hashes; trailing zeros do not count.

    Among a million items, another one is taken for one of them with a probability of 5e-14.
    """
    return np.frombuffer(b"".join(each[:HASH] for each in hashes), f"S{HASH}")


class Columns(NamedTuple):
    """What is known of items that arrived one after the other, kept or not.

    A row of the file has keys and sizes of items that are present alone. Of the others it has a
    state and a hash, so that a memory of fixed capacity grows by 8 bytes with every item that
    passes through.
    """

    keys: NDArray[np.float64]  # (n,), infinite where an item is not present
    sizes: NDArray[np.int64]  # (n,) bytes, 0 where an item is not present
    states: NDArray[np.uint8]  # (n,) GONE, PRESENT or FORGOTTEN
    hashes: NDArray[np.bytes_]  # (n,) trailing zeros do not count
    first: int = 0  # the id of the first of them

    @property
    def end(self) -> int:
        """The id after the last item's."""
        return self.first + len(self.states)

    def row(self) -> tuple[Any, ...]:
        """As the file holds it."""
        present = self.states == PRESENT
        kept = (self.keys[present], self.sizes[present], self.states, self.hashes)
        columns = [column.tobytes() for column in kept]
        columns[2] = zlib.compress(columns[2])
        return (self.first, _checksum(self.first, columns), *columns)

    @classmethod
    def of_row(cls, first: int, columns: Sequence[bytes]) -> Columns:
        """What ``row`` gave, once its checksum has been compared."""
        unpacked = [*columns[:2], zlib.decompress(columns[2]), columns[3]]
        *kept, states, hashes = map(np.frombuffer, unpacked, KINDS)
        keys, sizes = np.full(len(states), np.inf), np.zeros(len(states), "<i8")
        keys[states == PRESENT], sizes[states == PRESENT] = kept
        return cls(keys, sizes, states, hashes, first)

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """Of items that follow each other."""
        nothing = [np.empty(0, kind) for kind in KINDS]
        parted = zip(nothing, *(part[:4] for part in parts), strict=True)
        columns: list[Any] = [np.concatenate(column) for column in parted]
        return cls._make([*columns, parts[0].first if parts else 0])

    def part(self, start: int, stop: int) -> Columns:
        """Of some of the items, by their places here."""
        columns: list[Any] = [column[start:stop] for column in self[:4]]
        return Columns._make([*columns, self.first + start])


def _checksum(first: int, columns: Sequence[bytes]) -> int:
    return zlib.crc32(b"".join([str(first).encode(), *columns]))


class Extent(NamedTuple):
    """What of a store the memory of a learner holds.

    Keys never change, so it follows from a few numbers: the items that had arrived, other than
    those of versions that were rolled back, with keys below the threshold.
    """

    arrivals: int  # ids below this one had been given to items
    threshold: float  # keys from here on are not kept
    skipped: Sequence[Sequence[int]] = ()  # ids, from and up to, of items of other versions
    elsewhere: int = 0  # items that were seen before the first arrival

    def stored(self, columns: Columns, largest: int | None = None) -> NDArray[np.bool_]:
        """(arrivals,) whether an item is kept and not forgotten since, from what is known of all.

        Items of more than ``largest`` bytes, which the memory has no room for, were never kept.
        """
        keys, sizes, states, _, _ = columns.part(0, self.arrivals)
        stored = (states == PRESENT) & (keys < self.threshold) & ~self._skips()
        return np.asarray(stored if largest is None else stored & (sizes <= largest))

    def forgotten(self, columns: Columns) -> NDArray[np.bool_]:
        """(arrivals,) whether an item was forgotten, or is of another version."""
        return np.asarray((columns.states[: self.arrivals] == FORGOTTEN) | self._skips())

    def _skips(self) -> NDArray[np.bool_]:
        outside = np.zeros(self.arrivals, bool)
        for first, end in self.skipped:
            outside[first:end] = True
        return outside


class Store:
    """A file of items. Make one with ``create`` or ``open``.

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
        """A store that is there.

        ``still``: nobody writes to it meanwhile, so that it can be read without locks; also from
        another machine, on a shared file system.
        """
        if not path.is_file():
            raise StoreError(f"{path} is missing: restore it from a copy")
        with _translated(path):
            connection = _connect(path, "ro" if readonly else "rw", still=still)
            found = connection.execute("pragma application_id").fetchone()[0]
            version = connection.execute("pragma user_version").fetchone()[0]
        if found != APPLICATION:
            raise StoreError(
                f"{path} is not a store of items, or it is damaged: restore it from a copy"
            )
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
            rows = ((zlib.crc32(content), content) for content in contents)
            run.executemany(
                "insert into items values (?, ?, ?)",
                ((item, *row) for item, row in enumerate(rows, start=first)),
            )
            sizes = np.array([len(content) for content in contents], "<i8")
            states = np.full(len(contents), PRESENT, np.uint8)
            hashes = short_hashes(map(content_hash, contents))
            new = Columns(keys.astype("<f8"), sizes, states, hashes, first)
            last = self._last()
            small = 0 < len(last.states) < ROWS
            self._put(Columns.join([last, new]) if small else new)

    def drop_from(self, first: int) -> None:
        """Delete every item from this id on, as if it had never arrived."""
        with self._writing() as run:
            run.execute("delete from items where id >= ?", (first,))
            run.execute("delete from chunks where first >= ?", (first,))
            last = self._last()
            self._put(last.part(0, first - last.first))

    def remove(
        self, ids: Iterable[int], *, forgotten: bool = False, discarded: bool = False
    ) -> int:
        """Delete the contents of these items; returns how many there were.

        Those that are ``forgotten`` or ``discarded`` no longer count as seen either. Of what was
        forgotten the hash stays, so that files which still have it do not bring it back.
        """
        wanted = np.unique(np.fromiter(ids, np.int64))
        removed = 0
        with self._writing() as run:
            for chunk in [*self._chunks()]:
                inside = wanted[(wanted >= chunk.first) & (wanted < chunk.end)] - chunk.first
                if not len(inside):
                    continue
                states, hashes = chunk.states.copy(), chunk.hashes.copy()
                present = inside[states[inside] == PRESENT]
                run.executemany(
                    "delete from items where id = ?", ((int(i + chunk.first),) for i in present)
                )
                removed += len(present)
                if discarded:  # they may come again, other than what was forgotten before
                    hashes[inside[states[inside] != FORGOTTEN]] = b""
                unseen = forgotten or discarded
                states[inside if unseen else present] = FORGOTTEN if unseen else GONE
                self._put(chunk._replace(states=states, hashes=hashes))
        return removed

    def keep_only(self, extents: Iterable[Extent]) -> None:
        """Delete the contents of items that none of these memories holds."""
        columns = self.columns(self.arrivals())
        surplus = columns.states == PRESENT
        for extent in extents:
            surplus[: extent.arrivals] &= ~extent.stored(columns)
        self.remove(surplus.nonzero()[0])

    def _put(self, columns: Columns) -> None:
        """Write columns of items, so many to a row."""
        query = "insert or replace into chunks values (?, ?, ?, ?, ?, ?)"
        for start in range(0, len(columns.states), ROWS):
            self._connection.execute(query, columns.part(start, start + ROWS).row())

    def fold(self, *, wait: float = 0.0) -> bool:
        """Fold the write-ahead log into the file and cut it to length 0, so that it does not grow.

        Returns False if a reader holds on to the log, for longer than ``wait`` seconds.
        """
        run = self._connection.execute
        with _translated(self.path):
            run(f"pragma busy_timeout = {int(1000 * wait)}")
            try:
                busy: int = run("pragma wal_checkpoint(truncate)").fetchone()[0]
            finally:
                run(f"pragma busy_timeout = {int(1000 * WAIT)}")
        return not busy

    def erase(self) -> None:
        """See to it that nothing that was deleted can be found in the files.

        Deleted contents are overwritten with zeros when they are deleted; what is left of them is
        in the log, until no reader holds on to that.
        """
        if not self.fold(wait=WAIT):
            raise StoreBusy(
                f"{self.path}: another process is reading, so that deleted items may still be in "
                "the log; run the command again when it has finished"
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _translated(self.path):
            self._connection.execute("begin immediate")
            try:
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    # Reading -------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with _translated(self.path):
            # Not `yield from`: that closes the cursor of a reader who stops halfway, perhaps after
            # the file was closed, which SQLite takes for an error.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    def _chunks(self) -> Iterator[Columns]:
        end = 0
        for row in self._rows("select * from chunks order by first"):
            chunk = self._chunk(row)
            if chunk.first != end:
                raise StoreError(f"{self.path} is damaged: it has lost items {end} and on")
            end = chunk.end
            yield chunk

    def _chunk(self, row: tuple[Any, ...]) -> Columns:
        first, checksum, *columns = row
        whole = all(isinstance(column, bytes) for column in columns)
        if not whole or checksum != _checksum(first, columns):
            raise StoreError(
                f"{self.path} is damaged: the record of items {first} and on is not what was "
                "written; restore the file from a copy"
            )
        return Columns.of_row(first, columns)

    def arrivals(self) -> int:
        """How many ids have been given to items: the next one's id."""
        return self._last().end

    def _last(self, before: int = 2**62) -> Columns:
        """The last row of columns, of those that begin before an id; an empty one if none does."""
        query = "select * from chunks where first < ? order by first desc limit 1"
        return Columns.join([self._chunk(row) for row in self._rows(query, before)])

    def columns(self, count: int) -> Columns:
        """What is known of the first ``count`` items that arrived."""
        chunks = takewhile(lambda chunk: chunk.first < count, self._chunks())
        columns = Columns.join([*chunks])
        if columns.end < count:
            raise StoreError(
                f"{self.path} is damaged: it has {columns.end} items where {count} have arrived"
            )
        return columns.part(0, count)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The contents of these items, in this order.

        Raises:
            StoreError: One is not there, or is damaged.
        """
        query = "select * from items where id in (select value from json_each(?))"
        found = {row[0]: row for row in self._rows(query, json.dumps(ids))}
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
        chunk = self._last(item + 1)
        return item >= chunk.end or chunk.states[item - chunk.first] != PRESENT

    def find(self, hashes: Iterable[bytes]) -> NDArray[np.int64]:
        """(n,) ids of the items with these content hashes that are not forgotten."""
        known = self.columns(self.arrivals())
        wanted = np.isin(known.hashes, short_hashes(hashes)) & (known.states != FORGOTTEN)
        return np.flatnonzero(wanted)

    def check(self) -> list[str]:
        """Look at every page, row and item; returns what is wrong."""
        wrong = []
        try:
            for (page,) in self._rows("pragma integrity_check"):
                if page != "ok":
                    wrong.append(f"{self.path} is damaged: {page}")
            end = 0
            for chunk in self._chunks():
                wrong += self._check_items(chunk)
                end = chunk.end
            if any(self._rows("select id from items where id < 0 or id >= ? limit 1", end)):
                wrong.append(f"{self.path} is damaged: it holds items that never arrived")
        except StoreError as error:
            return [str(error)]
        return wrong

    def _check_items(self, chunk: Columns) -> Iterator[str]:
        there = np.zeros(len(chunk.states), bool)
        query = "select * from items where id >= ? and id < ?"
        for row in self._rows(query, chunk.first, chunk.end):
            place = row[0] - chunk.first
            if not 0 <= place < len(there):  # damaged pages give rows that nobody asked for
                yield f"{self.path} is damaged: its items are not in order"
                continue
            there[place] = True
            if not _whole(row) or short_hashes([content_hash(row[2])]) != chunk.hashes[place]:
                yield f"{self.path} is damaged: item {row[0]} is not what was stored"
        for place in (there != (chunk.states == PRESENT)).nonzero()[0]:
            what = "lost" if not there[place] else "kept, after it was deleted,"
            yield f"{self.path} is damaged: it has {what} item {chunk.first + int(place)}"


class KnownHashes:
    """What the memory of a version has seen, items with further ids, and what was forgotten.

    Forgotten is what any version had seen; what was discarded has no hash.
    """

    def __init__(self, store: Store, extent: Extent | None, ids: range = range(0)) -> None:
        every = store.columns(store.arrivals())
        seen, forgotten = np.zeros(len(every.hashes), bool), every.states == FORGOTTEN
        seen[ids.start : ids.stop] = True
        if extent is not None:
            seen[: extent.arrivals] |= ~extent.forgotten(every)
        self._known = np.sort(every.hashes[seen & ~forgotten])
        self._forgotten = np.sort(every.hashes[forgotten & (every.hashes != b"")])

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
    """Whether an item is what was stored; a damaged file may hold anything in its place."""
    return isinstance(row[2], bytes) and zlib.crc32(row[2]) == row[1]


def _connect(path: Path, mode: str, *, still: bool = False) -> sqlite3.Connection:
    address = f"file:{quote(os.fspath(path.absolute()))}?mode={mode}{'&immutable=1' * still}"
    try:
        connection = _opened(address)
        connection.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        unwritable = any(word in str(error) for word in ("unable to open", "readonly", "read-only"))
        if mode != "ro" or not unwritable or path.with_name(f"{path.name}-wal").exists():
            raise
        # In a folder that may not be written to, the log's index cannot be created; without a log,
        # the file by itself is all there is.
        connection = _opened(f"{address}&immutable=1")
        connection.execute("select count(*) from sqlite_master").fetchone()
    if mode != "ro":
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")  # deleted contents become zeros
    connection.execute(f"pragma cache_size = -{CACHE * 1024}")
    connection.execute(f"pragma mmap_size = {MAPPED * 2**20}")
    return connection


def _opened(address: str) -> sqlite3.Connection:
    # Batches may be read in another thread than the one that opened the store, one at a time.
    return sqlite3.connect(
        address, uri=True, isolation_level=None, timeout=WAIT, check_same_thread=False
    )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """What goes wrong in SQLite, as an error that names the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "disk is full" in text:
            what = f"no space left for {path}: nothing was changed; make space and run it again"
        elif "readonly" in text or "read-only" in text:
            what = f"{path} cannot be written: it or its folder is read-only"
        elif "disk I/O error" in text or "unable to open" in text:
            what = f"{path} cannot be read or written ({text}): look at the disk and permissions"
        elif "locked" in text:
            raise StoreBusy(f"{path} is being written by another process: try again") from error
        else:
            raise StoreError(f"{path} is damaged ({text}): restore it from a copy") from error
        raise StoreUnwritable(what) from error
