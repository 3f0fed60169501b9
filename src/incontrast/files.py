"""Files that are whole or not there: written beside, flushed to the disk, then moved into place."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file; whoever reads sees the old or the new, also after a power cut."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, whose names reach the disk; it may be there already."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        flush(folder.parent)


def check_outside(path: Path) -> None:
    """Refuse a place in a workspace, whichever: its files are its own."""
    target = path.resolve()
    for folder in (target, *target.parents):
        if (folder / "workspace.json").is_file() and (folder / "versions").is_dir():
            raise ValueError(f"{path} is in the workspace {folder}: choose a place outside of it")


def flush_files(folder: Path) -> None:
    """See to it that the files in a folder have reached the disk, and their names."""
    for path in folder.iterdir():
        flush(path)
    flush(folder)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While nobody else who asks for it works in a folder; waits until they have finished."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed, by whatever ends the process
        yield
    finally:
        os.close(handle)


def flush(path: Path) -> None:
    """See to it that a file, or the names in a folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
