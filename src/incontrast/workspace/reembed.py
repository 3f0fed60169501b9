"""A file of vectors brought into the space of the current version: mapped, and in part re-embedded.

First a sample of its rows is re-embedded; on it the map that updates have fitted is corrected, and
what it misses is measured. Then come the other rows, as many as there is time for: those first with
which most searches would change. The rest is mapped. All of it waits in a folder beside the file,
in parts that are whole or not there, until one move replaces the file: whatever interrupts it, the
same call resumes, and the file is in one space.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from incontrast.workspace.files import Damaged, WorkspaceError, guarded, read_json, write_json
from incontrast.workspace.shards import (
    Shard,
    export,
    finish_exports,
    read_file,
    workplace,
    write_array,
)
from incontrast.workspace.stamps import MANIFEST, problems, register, stamp_of
from incontrast.workspace.workspace import Workspace

SAMPLE = 1000  # rows at most on which the map and the plan are fitted, and
SAMPLED = 0.05  # this share of all at most, if that is enough to tell how precise search is


@dataclass(frozen=True)
class Reembedded:
    """What came of it.

    Args:
        file: The vectors.
        version: Whose space they are in, or would be.
        rows: Of the file.
        exact: Rows that this version has embedded.
        sample: Of them, those on which the map was fitted: they are re-embedded whatever the share.
        kind: The map of the others; None where there was nothing to map.
        expected: Recall and precision after shares of the rows, on the sample; none if it was
            planned before, or if the sample is all rows, of which none has to be mapped.
        seconds: Of re-embedding one row.
    """

    file: Path
    version: int
    rows: int
    exact: int
    sample: int = 0
    kind: str | None = None
    expected: tuple[Expected, ...] = ()
    seconds: float = 0.0


def reembed(
    workspace: Workspace,
    file: Path,
    *,
    plan: bool = False,
    share: float | None = None,
    seconds: float | None = None,
    queries: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    **table: Any,
) -> Reembedded:
    """Bring a file that ``embed`` wrote into the space of the current version.

    Args:
        workspace: Whose encoder.
        file: ``.npy`` or ``.parquet``. Where the data are is in its stamp.
        plan: Only sample, fit, and say what to expect; the file stays as it is.
        share: Of the rows that are to be re-embedded, altogether; the sample counts.
        seconds: To re-embed for, if that is less.
        queries: Data like those that will be searched for. If None, the items that have been
            learned from since the vectors were embedded stand for them.
        progress: Called with the rows done and the rows to do.
        table: Columns of tables, as in ``read_source``.

    Raises:
        WorkspaceError: The file is of another workspace or an unknown encoder, or its data have
            changed.
    """
    file, start = file.absolute(), time.perf_counter()
    if share is not None and not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is between 0 and 1, got {share:g}")
    with guarded(file):
        folder = workplace(file, "reembed")
        finish_exports(file)
        stamp = _checked_stamp(workspace, file)
        version = workspace.serving()
        mapped = "mapped" in stamp or any("embedded_by" in part for part in stamp["sources"])
        if stamp["version"] == version and not mapped:
            return Reembedded(file, version, stamp["rows"], stamp["rows"])
        work = _Work(workspace, file, folder, stamp, version, queries, table)
        work.begin()
        fitted = work.fit()
        if not plan:
            most = work.rows if share is None else round(share * work.rows)
            until = None if seconds is None else start + seconds
            work.embed(max(most - work.begun, work.sample), until, progress)
            if work.done:
                work.export()
            else:  # earlier calls have re-embedded as much
                shutil.rmtree(folder)
        expected = () if fitted is None else fitted.expected
        kind = None if fitted is None else fitted.link.to_new.kind
        exact = work.begun + work.done
        return Reembedded(file, version, work.rows, exact, work.sample, kind, expected, work.pace)


def _checked_stamp(workspace: Workspace, file: Path) -> dict[str, Any]:
    """The stamp of vectors that this workspace has written and that are whole."""
    if file.suffix not in (".npy", ".parquet"):
        raise ValueError(f"vectors in a .npy or .parquet file are re-embedded, got {file.name!r}")
    stamp = stamp_of(file) if file.exists() else None
    if stamp is None:
        raise WorkspaceError(
            f"{file} was not written by embed, so nobody knows which encoder its vectors are of: "
            "embed the data with incontrast embed"
        )
    if stamp["workspace"] != workspace.id:
        raise WorkspaceError(
            f"{file} holds embeddings of another workspace: there are maps between versions of one "
            "encoder, and none between unrelated ones"
        )
    known = workspace.versions.exists(stamp["version"])
    if known and workspace.encoder_hash(stamp["version"]) != stamp["encoder"]:
        raise WorkspaceError(
            f"{file} holds embeddings of an unknown encoder: version {stamp['version']} has other "
            "weights; embed the data again"
        )
    if damage := problems(file):
        raise Damaged(f"{damage[0]}: embed the data again")
    return stamp


@dataclass
class _Work:
    """What is done with one file, in a folder beside it; arguments as in ``reembed``."""

    workspace: Workspace
    file: Path
    folder: Path
    stamp: dict[str, Any]
    version: int
    queries: Path | None
    table: dict[str, Any]
    order: NDArray[np.int64] = field(init=False)
    """Rows to re-embed, the first first."""
    begun: int = 0  # rows that were re-embedded by earlier calls, and are in the file
    done: int = 0  # rows of the order that are re-embedded
    sample: int = 0  # of them, those on which the plan was made
    pace: float = 0.0  # seconds of re-embedding one row

    def __post_init__(self) -> None:
        self.rows: int = self.stamp["rows"]
        self.mapped = Chain((), 1.0, 1.0)  # takes the rows that are not re-embedded to the space
        self.sampled = min(SAMPLE, max(FEWEST_SEARCHED, round(SAMPLED * self.rows)), self.rows)
        self.about = {
            "workspace": self.workspace.id,
            "file": {name: self.stamp[name] for name in ("version", "encoder", "files")},
            "version": self.version,
            "encoder": self.workspace.encoder_hash(self.version),
            "sample": self.sampled,
        }

    def begin(self) -> None:
        """Resume what was begun with this file and this version; drop anything else."""
        try:
            same = read_json(self.folder / MANIFEST)["of"] == self.about
        except Damaged:
            same = False
        if not same:
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir()
            write_json(self.folder / MANIFEST, {"of": self.about})
        register(self.workspace, self.file)

    @cached_property
    def learner(self) -> Learner:
        return self.workspace.learner(self.version)

    @cached_property
    def sources(self) -> list[Source]:
        found = []
        for part in self.stamp["sources"]:
            source = self.workspace.read(part["path"], **self.table)
            if source.fingerprint() != part["fingerprint"]:
                raise WorkspaceError(
                    f"{part['path']} has changed since {self.file} was written, so nobody knows "
                    "which row is of which item: embed it again"
                )
            found.append(source)
        return found

    def stored(self) -> Iterator[tuple[slice, Tensor, list[str]]]:
        """The file's rows, some at a time: which they are, the vectors, and their items' names."""
        first = 0
        for vectors, names, _ in read_file(self.file):
            yield slice(first, first + len(names)), _single(vectors), names
            first += len(names)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(n, 2) for each row, which source it is of and which item there."""
        found = np.empty((self.rows, 2), np.int64)
        names = enumerate(name for _, _, names in self.stored() for name in names)
        row, wanted = next(names)
        for number, source in enumerate(self.sources):
            for place, name in enumerate(source.names()):  # rows are in the sources' order
                if name == wanted:
                    found[row] = number, place
                    row, wanted = next(names, (self.rows, ""))
        if row < self.rows:
            raise WorkspaceError(
                f"{self.file} has a row of {wanted!r}, which is not in its data: embed them again"
            )
        return found

    def fit(self) -> Plan | None:
        """Find out in which order, and how the rest is mapped.

        None if that is known already, or if there are so few rows that all of them are embedded.
        """
        if self.stamp["version"] == self.version:
            if "mapped" in self.stamp:  # an earlier call has planned and mapped
                self.order = np.load(_order_file(self.file))
            else:
                self.order = self._mapped_by_embed()
            self.begun = self.rows - len(self.order)
            return None
        draws = generator(self.learner.seed, "re-embed", self.version)
        self.sample = self.sampled
        drawn = torch.randperm(self.rows, generator=draws)[: self.sample]
        self.order = drawn.sort().values.numpy()
        start = time.perf_counter()
        self.embed(self.sample, None, None)
        self.pace = (time.perf_counter() - start) / self.sample
        if self.sample == self.rows:
            return None
        with suppress(NoAdapter):  # then the sample alone has to do
            self.mapped = self.workspace.adapter(self.stamp["version"], self.version)
        known, chosen = self.mapped, torch.zeros(self.rows, dtype=torch.bool)
        chosen[drawn] = True
        before = known(torch.cat([rows[chosen[where]] for where, rows, _ in self.stored()]))
        after = torch.from_numpy(np.concatenate([*self.parts()]))
        spaces = {"old": self.stamp["version"], "new": self.version, "seed": self.learner.seed}
        plan = make_plan(before, after, **spaces, stored=self.rows, queries=self._asked())
        self.mapped = known._replace(steps=(*known.steps, plan.link.to_new))
        order = self.folder / "order.npy"
        if not order.exists():

            def chunks() -> Iterator[tuple[Tensor, Tensor]]:
                for _, rows, _ in self.stored():
                    vectors = known(rows)
                    yield vectors, plan.link.to_new(vectors)

            values = plan.values(chunks).numpy()
            values[self._mapped_by_embed()] = np.inf  # a second map would lose more than it tells
            values[drawn.numpy()] = -np.inf
            best = np.argsort(-values, kind="stable")[: self.rows - len(drawn)]
            whole = np.concatenate([self.order, best])
            write_array(order, whole)  # for good: parts are of its rows
        self.order = np.load(order)
        return plan

    def _mapped_by_embed(self) -> NDArray[np.int64]:
        """Rows by another version, which ``embed`` has mapped into the space of the file."""
        others = ["embedded_by" in part for part in self.stamp["sources"]]
        return np.flatnonzero(np.array(others)[self.places[:, 0]])

    def _asked(self) -> Tensor | None:
        """(m, d) embeddings of what will be searched for, as far as that is known."""
        learner, memory = self.learner, self.learner.memory
        draws = generator(learner.seed, "queries", self.version)
        if self.queries is not None:
            source = self.workspace.read(self.queries, **self.table)
            chosen = torch.randperm(len(source.items), generator=draws)[:QUERIES].sort().values
            return learner.embed(source.take(learner.domain, chosen).items)
        if memory.items is None or not self.workspace.versions.exists(self.stamp["version"]):
            return None
        since = self.workspace.versions.extent(self.stamp["version"]).arrivals
        fresh = (memory.ids >= since).nonzero()[:, 0]
        chosen = fresh[torch.randperm(len(fresh), generator=draws)[:QUERIES]].sort().values
        return learner.embed(memory.items.select(chosen)) if len(chosen) else None

    def embed(
        self, count: int, until: float | None, progress: Callable[[int, int], None] | None
    ) -> None:
        """Re-embed so many rows of the order, part by part; parts that are there stay."""
        for first in range(0, count, BATCH_SIZE):
            if until is not None and time.perf_counter() > until and first >= self.sample:
                break
            rows = self.order[first : min(first + BATCH_SIZE, count)]
            part = self._part(first)
            if not (part.exists() and len(np.load(part, mmap_mode="r")) >= len(rows)):
                write_array(part, self._embedded(rows))
            self.done = first + len(rows)
            if progress is not None:
                progress(self.done, count)

    def _part(self, first: int) -> Path:
        return self.folder / f"part-{first:09d}.npy"

    def parts(self) -> Iterator[NDArray[np.float32]]:
        """The rows that are re-embedded, in their order."""
        for first in range(0, self.done, BATCH_SIZE):
            yield np.load(self._part(first))[: self.done - first]

    def _embedded(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, d) unit vectors of these rows' items by the new encoder."""
        learner, places, parts = self.learner, self.places[rows], []
        for number in np.unique(places[:, 0]):
            wanted = torch.from_numpy(np.sort(places[places[:, 0] == number, 1]))
            items = self.sources[number].take(learner.domain, wanted).items
            parts.append(embed(learner.backbone, learner.domain, items, engine=learner.engine))
        by_source = np.lexsort((places[:, 1], places[:, 0]))  # and place in it, as read here
        found: NDArray[np.float32] = normalize(torch.cat(parts)).numpy()
        return found[np.argsort(by_source)]

    def export(self) -> None:
        """Write the file again: exact rows, and the others mapped."""
        left = self.order[self.done :]
        first = next(self.parts(), None)
        columns = self.stamp["columns"] if first is None else first.shape[1]
        stamp = {
            **{name: self.about[name] for name in ("workspace", "version", "encoder")},
            "normalized": True,
            "dtype": self.stamp["dtype"],
            "rows": self.rows,
            "columns": columns,
            "sources": [
                {name: part[name] for name in ("path", "fingerprint")}
                for part in self.stamp["sources"]
            ],
            "complete": True,
        }
        beside: Sequence[Path] = ()
        if len(left):
            stamp["mapped"] = {**self._mapped_from(), "rows": len(left)}
            beside = [self.folder / _order_file(self.file).name]
            np.save(beside[0], left)
        export(self.file, self.folder, self.read(columns), stamp, beside=beside)
        if not len(left):
            _order_file(self.file).unlink(missing_ok=True)

    def _mapped_from(self) -> dict[str, Any]:
        """The version whose vectors are mapped; its number is None if it is no longer kept."""
        if "mapped" in self.stamp:
            return dict(self.stamp["mapped"])
        if self.stamp["version"] != self.version:
            return {name: self.stamp[name] for name in ("version", "encoder")}
        sources = self.stamp["sources"]
        encoder = next(part["embedded_by"] for part in sources if "embedded_by" in part)
        kept = self.workspace.versions.numbers()
        numbers = {self.workspace.encoder_hash(number): number for number in kept}
        return {"version": numbers.get(encoder), "encoder": encoder}

    def read(self, columns: int) -> Iterator[Shard]:
        """The rows as they are to be."""
        shape = (max(self.done, 1), columns)
        exact = np.lib.format.open_memmap(self.folder / "exact.npy", "w+", np.float32, shape)
        for number, rows in enumerate(self.parts()):
            exact[number * BATCH_SIZE : number * BATCH_SIZE + len(rows)] = rows
        place = np.full(self.rows, -1, np.int64)
        place[self.order[: self.done]] = np.arange(self.done)
        for part, vectors, names in self.stored():
            where = place[part]
            if (where >= 0).all():
                chunk = exact[where]
            else:
                chunk = normalize(self.mapped(vectors)).numpy()
                chunk[where >= 0] = exact[where[where >= 0]]
            yield Shard(chunk.astype(self.stamp["dtype"]), names, [])


def _single(rows: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(rows, np.float32))


def _order_file(file: Path) -> Path:
    """Where the rows of a file are that are mapped, in the order in which to re-embed them."""
    return file.with_name(f"{file.name}.order.npy")
