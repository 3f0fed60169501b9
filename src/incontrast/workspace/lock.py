"""One writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from incontrast.workspace.errors import Busy, Damaged

LOOKS = 5  # attempts to take a lock


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock while the block runs. The system lets go of it when the process ends.

    Raises:
        Busy: Another process holds it; names it.
    """
    if path.is_symlink():
        raise Damaged(f"{path} is a link, which a lock is never: delete it")
    with path.open("a+", encoding="utf-8") as file:
        _hold(file, path.parent, lambda: holder(path))
        file.truncate(0)
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "doing": what,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        file.write(json.dumps(about))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Let one process at a time at a file, by a lock beside it that goes when it is let go of.

    Raises:
        Busy: Another process is at it.
    """
    beside = path.with_name(f".{path.name}.lock")
    while True:
        with beside.open("a") as file:
            _hold(file, path)
            try:
                if os.fstat(file.fileno()).st_ino != beside.stat().st_ino:
                    continue  # it was deleted, and created again, before it was locked here
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                beside.unlink()
            return


def _hold(file: IO[Any], what: Path, by: Callable[[], str | None] = lambda: None) -> None:
    """Take the lock of an open file, which goes when the file is closed.

    Args:
        file: Its file.
        what: What it guards, for the message.
        by: Says who holds it.

    Raises:
        Busy: Another process holds it.
    """
    for attempt in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if attempt + 1 < LOOKS:
                time.sleep(0.02)  # somebody may just be looking
                continue
            raise Busy(
                f"{what} is being written by {by() or 'another process'}: "
                "wait until it has finished, or stop it"
            ) from error


def holder(path: Path) -> str | None:
    """Who holds the lock, in words; None if nobody does."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the file is closed
                return None
            except BlockingIOError:
                about = json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "another process"
    return f"process {about['pid']} on {about['host']} ({about['doing']}, since {about['since']})"
