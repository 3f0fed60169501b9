"""Opening an SQLite file, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

__all__ = ["WAIT", "StoreBusy", "StoreError", "StoreUnwritable", "connect", "translated"]

CACHE = 16  # megabytes
MAPPED = 256  # megabytes of the file that are read without a call to the system
WAIT = 10.0  # seconds that a writer waits for readers


class StoreError(RuntimeError):
    """A store cannot be read or written: it is damaged, of another format, or the disk is full."""


class StoreUnwritable(StoreError):
    """The machine does not let the store be read or written: no space, read-only, a bad disk."""


class StoreBusy(StoreError):
    """Another process is at the store."""


def connect(path: Path, mode: str, *, still: bool = False) -> sqlite3.Connection:
    address = f"file:{quote(os.fspath(path.absolute()))}?mode={mode}{'&immutable=1' * still}"
    try:
        connection = _opened(address)
        connection.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        unwritable = any(word in str(error) for word in ("unable to open", "readonly", "read-only"))
        if mode != "ro" or not unwritable or path.with_name(f"{path.name}-wal").exists():
            raise
        # In a folder that may not be written to, the log's index cannot be made; without a log,
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
def translated(path: Path) -> Iterator[None]:
    """What goes wrong in SQLite, as an error that names the file and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "disk is full" in text:
            raise StoreUnwritable(
                f"no space left for {path}: nothing was changed; make space and run it again"
            ) from error
        if "readonly" in text or "read-only" in text:
            message = f"{path} cannot be written: it or its folder is read-only"
            raise StoreUnwritable(message) from error
        if "locked" in text:
            raise StoreBusy(f"{path} is being written by another process: try again") from error
        if "disk I/O error" in text or "unable to open" in text:
            message = f"{path} cannot be read or written ({text}): look at the disk and permissions"
            raise StoreUnwritable(message) from error
        raise StoreError(f"{path} is damaged ({text}): restore it from a copy") from error
