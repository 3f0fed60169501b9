"""Bring a file of vectors into the space of the current version, by mapping and re-embedding.

First a sample of the rows is re-embedded. It corrects the map that updates have fitted, and tells
how much that misses. Then come the other rows, for as long as there is time, those first that would
change most searches. The rest is mapped. All of it waits in a folder beside the file until the file
is replaced as a whole. So an interrupted call can be resumed, and all rows of the file are in one
space at any time.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.compat import Chain, NoAdapter
from incontrast.compat.plan import QUERIES, Expected, Plan, make_plan
from incontrast.data.source import Source
from incontrast.learner import Learner
from incontrast.randomness import generator
from incontrast.text import FEWEST_SEARCHED
from incontrast.training.engine import BATCH_SIZE, embed
from incontrast.workspace import stamps
from incontrast.workspace.files import Damaged, WorkspaceError, locked, read_json, write_json
from incontrast.workspace.shards import Shard, export, finish_exports, read_file, write_array
from incontrast.workspace.workspace import Workspace

SAMPLE = 1000  # rows at most on which the map and the plan are fitted, and
SAMPLED = 0.05  # this share of all at most, if that is enough to tell how precise search is

Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Reembedded:
    """The result of re-embedding, or of planning it."""

    file: Path
    version: int  # in whose space the vectors are, or would be
    rows: int  # of the file
    exact: int  # rows that this version has embedded
    sample: int = 0  # of these, rows on which the map was fitted; re-embedded in any case
    kind: str | None = None  # of the map of the other rows; None if there was nothing to map
    expected: tuple[Expected, ...] = ()  # after shares of the rows, unless it was planned before
    seconds: float = 0.0  # of re-embedding one row


def reembed(
    workspace: Workspace,
    file: Path,
    *,
    plan: bool = False,
    share: float | None = None,
    seconds: float | None = None,
    queries: Path | None = None,
    progress: Progress = None,
    **table: Any,
) -> Reembedded:
    """Bring a file that ``embed`` wrote into the space of the current version.

    A ``plan`` only samples, fits, and says what to expect; the file stays as it is. At most this
    ``share`` of the rows is re-embedded, earlier calls included, for so many ``seconds``.
    ``queries`` are data like those that will be searched for; by default, the items that have been
    learned from since. ``progress`` is called with the number of rows done, and to do. ``table``
    names columns, as in ``read_source``.
    """
    file, start = file.absolute(), time.perf_counter()
    if share is not None and not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is between 0 and 1, got {share:g}")
    if file.suffix not in (".npy", ".parquet"):
        raise ValueError(f"vectors in a .npy or .parquet file are re-embedded, got {file.name!r}")
    with locked(stamps.beside(file, "lock"), "reembed", file):
        finish_exports(file)
        stamp = _checked_stamp(workspace, file)
        version = workspace.serving()
        mapped = "mapped" in stamp or any("embedded_by" in part for part in stamp["sources"])
        if stamp["version"] == version and not mapped:
            return Reembedded(file, version, stamp["rows"], stamp["rows"])
        work = _Work(workspace, file, stamp, version, table)
        fitted = work.fit(queries)
        if not plan:
            rows = work.rows if share is None else round(share * work.rows)
            until = None if seconds is None else start + seconds
            work.embed(max(rows - work.exact, work.sample), until, progress)
            if work.done:
                work.export()
            else:  # earlier calls have re-embedded as much
                shutil.rmtree(work.folder)
        expected = () if fitted is None else fitted.expected
        kind = None if fitted is None else fitted.link.to_new.kind
        exact = work.exact + work.done
        return Reembedded(file, version, work.rows, exact, work.sample, kind, expected, work.pace)


def _checked_stamp(workspace: Workspace, file: Path) -> dict[str, Any]:
    """The stamp of vectors that this workspace has written and that are whole."""
    stamp = stamps.stamp_of(file) if file.exists() else None
    if stamp is None:
        raise WorkspaceError(
            f"{file} was not written by embed, so its encoder is unknown: embed the data again"
        )
    ours = {**stamp, "workspace": workspace.id}
    if workspace.versions.exists(stamp["version"]):
        ours["encoder"] = workspace.encoder_hash(stamp["version"])
    stamps.check_same(file, stamp, ours, "embed the data again")
    if damage := stamps.problems(file):
        raise Damaged(f"{damage[0]}: embed the data again")
    return stamp


class _Work:
    """The work on one file, in a folder beside it; resumes what was begun with the same ones."""

    order: NDArray[np.int64]  # rows to re-embed, the most valuable first
    exact = 0  # rows that earlier exports have re-embedded
    done = 0  # rows of the order that are re-embedded since
    width = 0  # of their vectors
    sample = 0  # of these, rows on which the plan was made
    pace = 0.0  # seconds of re-embedding one row
    mapped = Chain((), 1.0, 1.0)  # takes the rows that are not re-embedded to the new space

    def __init__(
        self,
        workspace: Workspace,
        file: Path,
        stamp: dict[str, Any],
        version: int,
        table: dict[str, Any],
    ) -> None:
        self.workspace, self.file, self.folder = workspace, file, stamps.beside(file, "reembed")
        self.stamp, self.version, self.table = stamp, version, table
        self.rows: int = stamp["rows"]
        self.sampled = min(SAMPLE, max(FEWEST_SEARCHED, round(SAMPLED * self.rows)), self.rows)
        self.stamped = {
            "workspace": workspace.id,
            "version": version,
            "encoder": workspace.encoder_hash(version),
        }
        before = {name: stamp[name] for name in ("version", "encoder", "files")}
        self.about = {**self.stamped, "file": before, "sample": self.sampled}
        begun: dict[str, Any] = {}
        with suppress(Damaged):
            begun = read_json(self.folder / stamps.MANIFEST)
        if begun.get("of") == self.about:
            self.done, self.width = begun.get("done", 0), begun.get("width", 0)
        else:
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir()
        stamps.register(workspace, file)

    @cached_property
    def learner(self) -> Learner:
        return self.workspace.learner(self.version)

    @cached_property
    def sources(self) -> list[Source]:
        sources = []
        for part in self.stamp["sources"]:
            source = self.workspace.read(part["path"], **self.table)
            if source.fingerprint() != part["fingerprint"]:
                raise WorkspaceError(
                    f"{part['path']} has changed since {self.file} was written: embed it again"
                )
            sources.append(source)
        return sources

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(n, 2) the source of each row, and the item's place in it."""
        places = np.empty((self.rows, 2), np.int64)
        names = enumerate(name for shard in read_file(self.file) for name in shard.names)
        row, name = next(names)
        for number, source in enumerate(self.sources):
            for place, other in enumerate(source.names()):  # rows are in the sources' order
                if other == name:
                    places[row] = number, place
                    row, name = next(names, (self.rows, ""))
        if row < self.rows:
            raise WorkspaceError(
                f"{self.file} has a row of {name!r}, which is not in its data: embed them again"
            )
        return places

    def vectors(self) -> Iterator[tuple[slice, Tensor, list[str]]]:
        """The file's rows, some at a time: their places, the vectors, and their items' names."""
        first = 0
        for rows, names, _ in read_file(self.file):
            vectors = torch.from_numpy(np.array(rows, np.float32))
            yield slice(first, first + len(names)), vectors, names
            first += len(names)

    def fit(self, queries: Path | None) -> Plan | None:
        """Decide on the order, and fit a map for the rest.

        None if an earlier call has done so, or if so few rows are left that all are embedded.
        """
        if self.stamp["version"] == self.version:
            if "mapped" in self.stamp:
                self.order = np.load(stamps.order_file(self.file))
            else:
                self.order = self._mapped_by_embed()
            self.exact = self.rows - len(self.order)
            return None
        draws = generator(self.learner.seed, "re-embed", self.version)
        self.sample = self.sampled
        drawn = torch.randperm(self.rows, generator=draws)[: self.sample].sort().values
        self.order = drawn.numpy()
        start = time.perf_counter()
        self.embed(self.sample)
        self.pace = (time.perf_counter() - start) / self.sample
        if self.sample == self.rows:
            return None
        with suppress(NoAdapter):  # then the sample alone has to do
            self.mapped = self.workspace.adapter(self.stamp["version"], self.version)
        known, chosen = self.mapped, torch.zeros(self.rows, dtype=torch.bool)
        chosen[drawn] = True
        before = known(torch.cat([vectors[chosen[where]] for where, vectors, _ in self.vectors()]))
        after = torch.from_numpy(self.embedded[: self.sample].copy())
        spaces = {"old": self.stamp["version"], "new": self.version, "seed": self.learner.seed}
        asked = self._queries(queries)
        plan = make_plan(before, after, **spaces, stored=self.rows, queries=asked)
        self.mapped = known._replace(steps=(*known.steps, plan.link.to_new))

        def chunks() -> Iterator[tuple[Tensor, Tensor]]:
            for _, vectors, _ in self.vectors():
                stored = known(vectors)
                yield stored, plan.link.to_new(stored)

        order = self.folder / "order.npy"
        if not order.exists():  # it must not change: its first rows are re-embedded
            values = plan.values(chunks).numpy()
            values[self._mapped_by_embed()] = np.inf  # a second map would lose more than it tells
            values[self.order] = -np.inf
            rest = np.argsort(-values, kind="stable")[: self.rows - self.sample]
            write_array(order, np.concatenate([self.order, rest]))
        self.order = np.load(order)
        return plan

    def _mapped_by_embed(self) -> NDArray[np.int64]:
        """Rows by another version, which ``embed`` has mapped into the space of the file."""
        others = ["embedded_by" in part for part in self.stamp["sources"]]
        return np.flatnonzero(np.array(others)[self.places[:, 0]])

    def _queries(self, path: Path | None) -> Tensor | None:
        """(m, d) embeddings of what will be searched for, as far as that is known."""
        learner, memory = self.learner, self.learner.memory
        draws = generator(learner.seed, "queries", self.version)
        if path is not None:
            source = self.workspace.read(path, **self.table)
            chosen = torch.randperm(len(source.items), generator=draws)[:QUERIES].sort().values
            return learner.embed(source.take(learner.domain, chosen).items)
        if memory.items is None or not self.workspace.versions.exists(self.stamp["version"]):
            return None
        since = self.workspace.versions.extent(self.stamp["version"]).arrivals
        new = (memory.ids >= since).nonzero()[:, 0]
        chosen = new[torch.randperm(len(new), generator=draws)[:QUERIES]].sort().values
        return learner.embed(memory.items.select(chosen)) if len(chosen) else None

    def embed(self, count: int, until: float | None = None, progress: Progress = None) -> None:
        """Re-embed the first ``count`` rows of the order, as far as they are not."""
        while self.done < count:
            if until is not None and time.perf_counter() > until and self.done >= self.sample:
                break
            rows = self.order[self.done : min(self.done + BATCH_SIZE, count)]
            vectors = self._embedded(rows)
            with (self.folder / "rows").open("r+b" if self.done else "wb") as file:
                file.seek(self.done * vectors[0].nbytes)
                file.write(vectors.tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.done, self.width = self.done + len(rows), vectors.shape[1]
            counts = {"done": self.done, "width": self.width}
            write_json(self.folder / stamps.MANIFEST, {"of": self.about, **counts})
            if progress is not None:
                progress(self.done, count)

    @property
    def embedded(self) -> NDArray[np.float32]:
        """(done, d) the rows that are re-embedded, in their order."""
        return np.memmap(self.folder / "rows", np.float32, "r", shape=(self.done, self.width))

    def _embedded(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, d) unit vectors of these rows' items by the new encoder."""
        learner, places, parts = self.learner, self.places[rows], []
        for number in np.unique(places[:, 0]):
            wanted = torch.from_numpy(np.sort(places[places[:, 0] == number, 1]))
            items = self.sources[number].take(learner.domain, wanted).items
            parts.append(embed(learner.backbone, learner.domain, items, engine=learner.engine))
        by_source = np.lexsort((places[:, 1], places[:, 0]))  # and place in it, as read here
        vectors: NDArray[np.float32] = normalize(torch.cat(parts)).numpy()
        return vectors[np.argsort(by_source)]

    def export(self) -> None:
        """Write the file again: exact rows, and the others mapped."""
        left = self.order[self.done :]
        stamp = {
            **self.stamped,
            "normalized": True,
            "dtype": self.stamp["dtype"],
            "rows": self.rows,
            "columns": self.width,
            "sources": [
                {name: part[name] for name in ("path", "fingerprint")}
                for part in self.stamp["sources"]
            ],
            "complete": True,
        }
        if len(left):
            stamp["mapped"] = {**self._mapped_from(), "rows": len(left)}
            np.save(stamps.order_file(self.folder / self.file.name), left)
        export(self.file, self.folder, self._rows(), stamp)
        if not len(left):
            stamps.order_file(self.file).unlink(missing_ok=True)

    def _mapped_from(self) -> dict[str, Any]:
        """The version whose vectors are mapped; its number is None if it is no longer kept."""
        if "mapped" in self.stamp:
            return dict(self.stamp["mapped"])
        if self.stamp["version"] != self.version:
            return {name: self.stamp[name] for name in ("version", "encoder")}
        sources = self.stamp["sources"]
        encoder = next(part["embedded_by"] for part in sources if "embedded_by" in part)
        numbers = self.workspace.versions.numbers()
        encoders = {self.workspace.encoder_hash(number): number for number in numbers}
        return {"version": encoders.get(encoder), "encoder": encoder}

    def _rows(self) -> Iterator[Shard]:
        """All rows of the new file."""
        exact, place = self.embedded, np.full(self.rows, -1, np.int64)
        place[self.order[: self.done]] = np.arange(self.done)
        for part, vectors, names in self.vectors():
            where = place[part]
            if (where >= 0).all():
                chunk = exact[where]
            else:
                chunk = normalize(self.mapped(vectors)).numpy()
                chunk[where >= 0] = exact[where[where >= 0]]
            yield Shard(chunk.astype(self.stamp["dtype"]), names, [])
