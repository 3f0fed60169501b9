"""The versions of an encoder, a folder each."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from incontrast.files import flush_files, flush_folder
from incontrast.workspace.errors import Damaged, WorkspaceError
from incontrast.workspace.files import read_json, write_json

WEIGHTS = "encoder.safetensors"
RECORD, MANIFEST, EVALUATION = "version.json", "manifest.json", "evaluation.json"
UNFINISHED = ".unfinished-"


class Versions:
    """Folders ``000001``, ``000002``, …, each complete from the moment it has its name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._records: dict[tuple[int, int, int], dict[str, Any]] = {}

    def folder(self, number: int) -> Path:
        return self.root / f"{number:06d}"

    def exists(self, number: int) -> bool:
        return self.folder(number).is_dir()

    def numbers(self) -> list[int]:
        """The versions that are there, candidates too, in order."""
        return sorted(int(entry.name) for entry in self.root.iterdir() if entry.name.isdecimal())

    def write(self, number: int, save: Callable[[Path], None], record: dict[str, Any]) -> None:
        """Write a version beside the others; until the last line it has no number.

        Args:
            number: Its number.
            save: Writes the learner into an empty folder.
            record: What is to be known about it.
        """
        fresh = self.root / f"{UNFINISHED}{number:06d}"
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir()
        try:
            save(fresh)
            encoder = _hash(fresh / WEIGHTS)
            write_json(fresh / RECORD, {"version": number, "encoder": encoder, **record})
            hashes = {file.name: _hash(file) for file in sorted(fresh.iterdir())}
            write_json(fresh / MANIFEST, {"files": hashes})
            mode = (fresh / RECORD).stat().st_mode
            for file in fresh.iterdir():
                file.chmod(mode)  # not every writer of weights asks for the user's permissions
            flush_files(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fresh.rename(self.folder(number))
        flush_folder(self.root)

    def verify(self, number: int) -> None:
        """Compare every file of a version with what was written.

        Raises:
            Damaged: Names the first file that is missing or changed.
        """
        folder = self.folder(number)
        if not folder.is_dir():
            there = ", ".join(map(str, self.numbers())) or "none"
            raise WorkspaceError(f"there is no version {number}: there are {there}")
        for name, expected in read_json(folder / MANIFEST)["files"].items():
            file = folder / name
            if not file.is_file():
                raise Damaged(f"{file} is missing: go back to another version, or restore it")
            if _hash(file) != expected:
                raise Damaged(
                    f"{file} is damaged (it is not what was written): go back to another version "
                    "(incontrast rollback), or restore it from a copy"
                )

    def record(self, number: int) -> dict[str, Any]:
        """What was written down about a version, once and for all."""
        file = self.folder(number) / RECORD
        found = file.stat() if file.exists() else None
        # Not by number alone: what was never promoted and deleted leaves its number to another.
        key = (number, *((found.st_ino, found.st_mtime_ns) if found else (0, 0)))
        if key not in self._records:
            self._records[key] = read_json(file)
        return self._records[key]

    def evaluation(self, number: int) -> dict[str, Any] | None:
        """How a version was evaluated; None if it was not yet."""
        file = self.folder(number) / EVALUATION
        return read_json(file) if file.exists() else None

    def set_evaluation(self, number: int, evaluation: dict[str, Any]) -> None:
        write_json(self.folder(number) / EVALUATION, evaluation)

    def remove(self, number: int) -> None:
        """Delete a version; halfway through, it has no number any more."""
        doomed = self.root / f"{UNFINISHED}{number:06d}"
        if doomed.exists():
            shutil.rmtree(doomed)
        self.folder(number).rename(doomed)
        flush_folder(self.root)
        shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Delete what an interrupted writing or deleting has left."""
        for entry in self.root.glob(f"{UNFINISHED}*"):
            shutil.rmtree(entry)


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
