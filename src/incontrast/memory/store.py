"""Items as bytes in one SQLite file, by the numbers of their arrival.

What is looked at for all items at once (keys, sizes, whether they are still there) is kept in
columns, a few thousand items to a row, so that a million items open in milliseconds; their contents
are a row each, read when a batch asks for them.
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
import torch
from numpy.typing import NDArray
from torch import Tensor

from incontrast.memory.sqlite_file import WAIT, StoreBusy, StoreError, connect, translated

__all__ = ["Columns", "Store", "content_hash"]

FORMAT = 1
APPLICATION = 0x49434D31  # what SQLite calls application_id: "ICM1"
PAGE = 16384  # bytes: five items of 3 KB to a page
ROWS = 4096  # items to a row of columns

GONE, PRESENT, FORGOTTEN = 0, 1, 2

_TABLES = """
create table items (id integer primary key, checksum integer not null, content blob not null);
create table chunks (
    first integer primary key, count integer not null,
    keys blob not null, sizes blob not null, states blob not null, hashes blob not null
);
create table notes (name text primary key, value text not null);
"""


class Columns(NamedTuple):
    """What is known of every item that arrived, kept or not."""

    keys: Tensor  # (n,) float64
    sizes: Tensor  # (n,) int64, bytes
    states: Tensor  # (n,) uint8: GONE, PRESENT or FORGOTTEN


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
            raise StoreError(f"{path} is no store of items, or it is damaged")
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, this version of incontrast knows {FORMAT}: "
                "use the version that wrote it, or a newer one"
            )
        return cls(path, connection)

    def close(self) -> None:
        self._connection.close()

    # Writing -------------------------------------------------------------------------------------

    def append(self, first: int, contents: Sequence[bytes]) -> None:
        """Put items with the ids ``first``, ``first + 1``, … at the end; their keys are 0."""
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
                run.execute(
                    "insert into chunks values (?, ?, ?, ?, ?, ?)",
                    (
                        first + start,
                        len(part),
                        bytes(8 * len(part)),
                        np.array([len(content) for content in part], "<i8").tobytes(),
                        bytes([PRESENT]) * len(part),
                        b"".join(map(content_hash, part)),
                    ),
                )

    def complete(self, first: int, keys: Tensor, note: tuple[str, Any]) -> None:
        """Give the items from ``first`` on their keys, and write a note, both or neither."""
        with self._writing() as run:
            rows = run.execute("select first, count from chunks where first >= ?", (first,))
            for start, count in rows.fetchall():
                part = keys[start - first : start - first + count].numpy().astype("<f8")
                run.execute("update chunks set keys = ? where first = ?", (part.tobytes(), start))
            run.execute("insert or replace into notes values (?, ?)", (note[0], _json(note[1])))

    def drop_from(self, first: int) -> int:
        """Delete every item from this id on, as if it had never arrived; returns how many."""
        with self._writing() as run:
            dropped = run.execute("delete from items where id >= ?", (first,)).rowcount
            run.execute("delete from chunks where first >= ?", (first,))
        return dropped

    def remove(self, ids: Tensor, *, forgotten: bool = False) -> int:
        """Delete the contents of these items; returns how many there were.

        Args:
            ids: (n,) their ids.
            forgotten: They no longer count as seen either.
        """
        wanted = torch.unique(ids).numpy()
        removed = 0
        with self._writing() as run:
            for first, count, states in self._chunks("states"):
                inside = wanted[(wanted >= first) & (wanted < first + count)] - first
                if len(inside) == 0:
                    continue
                known = np.frombuffer(states, np.uint8).copy()
                present = inside[known[inside] == PRESENT]
                for item in (present + first).tolist():
                    run.execute("delete from items where id = ?", (item,))
                removed += len(present)
                known[inside if forgotten else present] = FORGOTTEN if forgotten else GONE
                row: list[Any] = [known.tobytes(), first]
                run.execute("update chunks set states = ? where first = ?", row)
                if forgotten:
                    self._blank_hashes(run, first, inside)
        return removed

    def _blank_hashes(self, run: sqlite3.Connection, first: int, inside: NDArray[np.int64]) -> None:
        # A hash tells whether somebody's item was here: it goes with the item.
        row = run.execute("select hashes from chunks where first = ?", (first,)).fetchone()
        hashes = np.frombuffer(row[0], np.uint8).reshape(-1, 16).copy()
        hashes[inside] = 0
        run.execute("update chunks set hashes = ? where first = ?", (hashes.tobytes(), first))

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

    def set_note(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name; None deletes it."""
        with self._writing() as run:
            if value is None:
                run.execute("delete from notes where name = ?", (name,))
            else:
                run.execute("insert or replace into notes values (?, ?)", (name, _json(value)))

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

    def note(self, name: str) -> Any:
        """The value under a name, or None."""
        with translated(self.path):
            row = self._connection.execute("select value from notes where name = ?", (name,))
            found = row.fetchone()
        return None if found is None else json.loads(found[0])

    def arrivals(self) -> int:
        """How many ids have been given to items: the next one's id."""
        with translated(self.path):
            row = self._connection.execute("select max(first + count) from chunks").fetchone()
        return row[0] or 0

    def columns(self, count: int) -> Columns:
        """What is known of the first ``count`` items that arrived."""
        keys, sizes, states, total = [], [], [], 0
        with translated(self.path):
            for first, rows, key, size, state in self._chunks("keys, sizes, states"):
                if first >= count:
                    break
                if first != total or not len(state) == len(key) // 8 == len(size) // 8 == rows:
                    raise StoreError(f"{self.path} is damaged: items {total} and on do not add up")
                keys.append(np.frombuffer(key, "<f8"))
                sizes.append(np.frombuffer(size, "<i8"))
                states.append(np.frombuffer(state, np.uint8))
                total += rows
        if total < count:
            raise StoreError(
                f"{self.path} is damaged: it knows {total} items where {count} have arrived"
            )
        return Columns(*(_joined(part, count) for part in (keys, sizes, states)))

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
            if zlib.crc32(row[2]) != row[1]:
                raise StoreError(
                    f"{self.path} is damaged: item {item} is not what was stored; forget it "
                    "(incontrast forget), or restore the file from a copy"
                )
            contents.append(row[2])
        return contents

    def _gone(self, item: int) -> bool:
        """Whether an item was deleted, as opposed to lost."""
        with translated(self.path):
            row = self._connection.execute(
                "select first, states from chunks where first <= ? order by first desc limit 1",
                (item,),
            ).fetchone()
        return row is None or item - row[0] >= len(row[1]) or row[1][item - row[0]] != PRESENT

    def find(self, hashes: Iterable[bytes]) -> Tensor:
        """(n,) ids of the items with these content hashes that are not forgotten."""
        wanted = np.frombuffer(b"".join(hashes), "S16")
        found = [np.empty(0, np.int64)]
        with translated(self.path):
            for first, _, states, known in self._chunks("states, hashes"):
                match = np.isin(np.frombuffer(known, "S16"), wanted)
                match &= np.frombuffer(states, np.uint8) != FORGOTTEN
                found.append(first + match.nonzero()[0])
        return torch.from_numpy(np.concatenate(found))

    def check(self) -> list[str]:
        """Look at every page and every item; returns what is wrong."""
        try:
            with translated(self.path):
                wrong = [
                    row[0]
                    for row in self._connection.execute("pragma quick_check")
                    if row[0] != "ok"
                ]
                for item, checksum, content in self._connection.execute(
                    "select id, checksum, content from items"
                ):
                    if zlib.crc32(content) != checksum:
                        wrong.append(f"{self.path} is damaged: item {item} is not what was stored")
        except StoreError as error:
            return [str(error)]
        return wrong

    def _chunks(self, columns: str) -> Iterator[tuple[Any, ...]]:
        names = "first, count, " if not columns.startswith("first") else ""
        return iter(self._connection.execute(f"select {names}{columns} from chunks order by first"))


def _joined(parts: list[NDArray[Any]], count: int) -> Tensor:
    if not parts:
        return torch.empty(0)
    whole = np.concatenate(parts)[:count]
    return torch.from_numpy(whole)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
