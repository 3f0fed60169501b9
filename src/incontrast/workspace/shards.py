"""Embeddings of a source as a folder of shards, made by one process or by many.

A shard is a range of the source's items, the same however many processes there are: what is there
already is never computed again. ``00007.npy`` has the rows, ``00007.ids.jsonl`` the name of each
row's item, ``00007.json`` what was left out; the ``.npy`` comes last, and with it the shard is
whole. ``manifest.json`` says what made them, and lists them once all are there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from incontrast.data.sources import Source, rows_at_once
from incontrast.domains.base import Domain
from incontrast.embedding import BATCH_SIZE as BATCH
from incontrast.embedding import embed
from incontrast.learner import Learner
from incontrast.training.engine import Engine
from incontrast.workspace.errors import WorkspaceError
from incontrast.workspace.files import flush_folder, read_json, write_bytes, write_json

__all__ = ["MANIFEST", "Piece", "Shards", "embed_shards", "pieces"]

MANIFEST = "manifest.json"


class Piece(NamedTuple):
    """Embeddings of some items that follow each other in a source."""

    rows: NDArray[Any] | None  # (n, d); None where nothing can be read
    names: list[str]  # one for each row
    skipped: tuple[str, ...]  # why items were left out
    passed: int  # items of the source that this stands for


def pieces(
    learner: Learner,
    source: Source,
    engine: Engine,
    *,
    strict: bool,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Piece]:
    """Embed a source, or a range of it, some items at a time."""
    for chunk in source.chunks(learner.domain, strict=strict, start=start, stop=stop):
        rows = None
        if chunk.names:
            rows = embed(learner.encoder, learner.domain, chunk.items, engine=engine).numpy()
        reasons = tuple(skip.reason for skip in chunk.skipped)
        yield Piece(rows, chunk.names, reasons, chunk.passed)


@dataclass(frozen=True)
class Shards:
    """A folder of shards.

    Args:
        folder: Where they are.
        items: Items of the source.
        size: Items of a shard; the last one may have fewer.
    """

    folder: Path
    items: int
    size: int

    def __len__(self) -> int:
        return math.ceil(self.items / self.size)

    def bounds(self, number: int) -> tuple[int, int]:
        """The items of a shard."""
        return number * self.size, min((number + 1) * self.size, self.items)

    def file(self, number: int, suffix: str = ".npy") -> Path:
        return self.folder / f"{number:05d}{suffix}"

    def missing(self) -> list[int]:
        """The shards that are not there yet."""
        return [number for number in range(len(self)) if not self.file(number).exists()]

    def write(self, number: int, piece: Piece) -> None:
        """Put a shard into the folder; until the last line it is not there."""
        rows = np.empty((0, 0), np.float32) if piece.rows is None else piece.rows
        names = "".join(f"{json.dumps(name)}\n" for name in piece.names)
        about = {"rows": len(rows), "passed": piece.passed, "skipped": list(piece.skipped)}
        write_bytes(self.file(number, ".ids.jsonl"), names.encode())
        write_json(self.file(number, ".json"), about)
        beside = self.folder / f".{number:05d}.{os.getpid()}.npy"
        with beside.open("wb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.file(number))
        flush_folder(self.folder)

    def read(self, start: int = 0) -> Iterator[Piece]:
        """What is in the shards from an item on, in the order of the source."""
        for number in range(start // self.size, len(self)):
            about = read_json(self.file(number, ".json"))
            rows = np.load(self.file(number)) if about["rows"] else None
            lines = self.file(number, ".ids.jsonl").read_text(encoding="utf-8").splitlines()
            names = [json.loads(line) for line in lines]
            yield Piece(rows, names, tuple(about["skipped"]), about["passed"])

    def listed(self) -> list[dict[str, Any]]:
        """The shards, as the manifest lists them."""
        entries = []
        for number in range(len(self)):
            rows = read_json(self.file(number, ".json"))["rows"]
            entries.append(
                {"file": self.file(number).name, "first": self.bounds(number)[0], "rows": rows}
            )
        return entries


def embed_shards(
    learner: Learner,
    source: Source,
    folder: Path,
    about: dict[str, Any],
    *,
    strict: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Shards:
    """Embed a source into a folder of shards, each by one of the processes; all call this.

    Args:
        learner: Whose encoder; its engine tells the processes.
        source: What to embed.
        folder: Where to; made if it is not there.
        about: What the embeddings are of (workspace, version, source); shards that are there must
            be of the same.
        strict: Refuse files that cannot be read instead of leaving them out.
        overwrite: Begin anew whatever is there.
        progress: Called with the items done and the items there are.
    """
    engine = learner.engine
    shards = Shards(folder, len(source), _shard_rows(learner.domain))
    manifest = {**about, "items": shards.items, "size": shards.size}
    missing: list[int] = []
    with engine.error_barrier("begin to embed"):
        if engine.rank == 0:
            _begin(shards, manifest, overwrite)
            missing = shards.missing()
    missing = engine.broadcast(missing)
    alone = Engine(engine.device, engine.precision)
    for start in range(0, len(missing), engine.processes):
        # In rounds, so that a process that fails or is lost is known of after one shard.
        with engine.error_barrier("embed its items"):
            place = start + engine.rank
            if place < len(missing):
                first, stop = shards.bounds(missing[place])
                for piece in pieces(learner, source, alone, strict=strict, start=first, stop=stop):
                    shards.write(missing[place], piece)
        if progress is not None:
            left = sum(stop - first for first, stop in map(shards.bounds, missing[place + 1 :]))
            progress(shards.items - left, shards.items)
    with engine.error_barrier("finish embedding"):
        if engine.rank == 0:
            listed = shards.listed()
            rows = sum(entry["rows"] for entry in listed)
            complete = {**manifest, "complete": True, "rows": rows, "shards": listed}
            write_json(folder / MANIFEST, complete)
    return shards


def _shard_rows(domain: Domain) -> int:
    """A quarter of a chunk, where that leaves the batches in it as they are; else a whole one."""
    rows = rows_at_once(domain)
    return rows if rows % (4 * BATCH) else rows // 4


def _begin(shards: Shards, manifest: dict[str, Any], overwrite: bool) -> None:
    folder = shards.folder
    there = read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else None
    if there is None and folder.exists() and any(folder.iterdir()):
        raise WorkspaceError(f"{folder} holds something else than shards: choose another folder")
    if there is not None and overwrite:
        for file in folder.iterdir():
            if file.name != MANIFEST:  # last, and replaced: without it these are no shards
                file.unlink()
        there = None
    if there is None:
        folder.mkdir(exist_ok=True)
        write_json(folder / MANIFEST, {**manifest, "complete": False, "rows": 0})
        return
    for name, value in manifest.items():
        if there.get(name) != value:
            raise WorkspaceError(
                f"{folder} holds shards of another {name} ({there.get(name)}, these would be of "
                f"{value}): choose another folder, or overwrite it"
            )
