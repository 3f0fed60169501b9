"""The versions of an encoder beside each other, and the pointer to the current one."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from incontrast import saving
from incontrast.learner import Learner
from incontrast.memory import Extent
from incontrast.workspace.errors import Damaged, WorkspaceError
from incontrast.workspace.files import flush, flush_folder, read_json, write_json

__all__ = ["Versions"]

RECORD, MANIFEST, EVALUATION = "version.json", "manifest.json", "evaluation.json"
UNFINISHED = ".unfinished-"


class Versions:
    """Folders ``000001``, ``000002``, …, each complete from the moment it has its name.

    Args:
        folder: Where they are.
        pointer: The file that names the current one.
    """

    def __init__(self, folder: Path, pointer: Path) -> None:
        self.root = folder
        self.pointer = pointer

    def folder(self, number: int) -> Path:
        return self.root / f"{number:06d}"

    def numbers(self) -> list[int]:
        """The versions that are there, candidates too, in order."""
        return sorted(int(entry.name) for entry in self.root.iterdir() if entry.name.isdecimal())

    # The pointer ---------------------------------------------------------------------------------

    def current(self) -> int | None:
        """The number of the version that serves; None before the first fit."""
        number = read_json(self.pointer).get("version")
        if number is None:
            return None
        if not isinstance(number, int) or not self.folder(number).is_dir():
            raise Damaged(
                f"{self.pointer} names version {number}, which is not in {self.root}: "
                "incontrast rollback --to N chooses one that is there"
            )
        return number

    def promote(self, number: int | None) -> None:
        """Make a version the current one, all at once; None before the first fit."""
        write_json(self.pointer, {"version": number})

    # One version ---------------------------------------------------------------------------------

    def write(self, number: int, learner: Learner, record: dict[str, Any]) -> None:
        """Write a version beside the others; until the last line it has no number."""
        fresh = self.root / f"{UNFINISHED}{number:06d}"
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir()
        try:
            saving.write(learner, fresh)
            write_json(fresh / RECORD, {"version": number, **record})
            hashes = {file.name: _hash(file) for file in sorted(fresh.iterdir())}
            write_json(fresh / MANIFEST, {"files": hashes})
            for file in fresh.iterdir():
                flush(file)
            flush_folder(fresh)
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
        """What was written down about a version."""
        return read_json(self.folder(number) / RECORD)

    def extent(self, number: int) -> Extent:
        """What of the store the memory of a version holds."""
        memory = self.record(number)["memory"]
        threshold = memory["threshold"]
        return Extent(
            memory["arrivals"],
            float("inf") if threshold is None else threshold,
            tuple((first, end) for first, end in memory.get("skipped", ())),
        )

    def evaluation(self, number: int) -> dict[str, Any] | None:
        """How a version was judged; None if it was not yet."""
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
        for entry in self.root.iterdir():
            if entry.name.startswith(UNFINISHED):
                shutil.rmtree(entry)


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
