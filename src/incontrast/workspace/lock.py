"""One writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incontrast.workspace.errors import Busy

__all__ = ["holder", "locked"]


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock while the block runs. The system lets go of it when the process ends.

    Raises:
        Busy: Another process holds it; names it.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(
                f"{path.parent} is being written by {holder(path) or 'another process'}: "
                "wait until it has finished, or stop it"
            ) from error
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


def holder(path: Path) -> str | None:
    """Who holds the lock, in words; None if nobody does. Looking takes no lock."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["host"] == socket.gethostname():
            os.kill(about["pid"], 0)  # raises if there is no such process any more
    except PermissionError:
        pass  # it is there, and somebody else's
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return f"process {about['pid']} on {about['host']} ({about['doing']}, since {about['since']})"
