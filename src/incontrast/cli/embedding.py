"""``incontrast embed`` and ``incontrast drift``: the encoder applied to data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from incontrast.cli.command import Answer
from incontrast.cli.exit_codes import Exit
from incontrast.cli.output import note_skipped, speaks, stderr
from incontrast.cli.processes import opened
from incontrast.cli.progress import counting_bar
from incontrast.data import Source, read_source
from incontrast.domains.base import Domain
from incontrast.memory import Store
from incontrast.workspace import Workspace
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.ingest import NewData

__all__ = ["drift", "embed"]


def embed(*, data: Path, to: Path, workspace: Path, **options: Any) -> Answer | None:
    """Write the embeddings of data to a file."""
    space, engine = opened(workspace)
    with engine.error_barrier("read the data"):
        source = read_source(data, check=False)
    with counting_bar(stderr(), "embed") as progress:
        done = embed_source(space, source, to, progress=progress, **options)
    if not speaks():
        return None
    note_skipped(done.skipped)
    rows = f"{done.rows:,} embeddings of version {done.version}"
    line = f"{done.file} is up to date: {rows}"
    if done.added or done.skipped:
        line = f"{done.file}: {rows}, {done.added:,} of them new"
    return Answer(vars(done), [line])


def drift(
    *, data: Path, workspace: Path, significance: float, fail_on_drift: bool, strict: bool
) -> Answer:
    """Compare new data with old ones."""
    space, _ = opened(workspace)
    version = space.current  # another may be promoted meanwhile
    learner = space.learner(version)
    source = read_source(data, check=False)
    source.check(learner.domain)
    if source.kind == "images":
        source = read_source(data, strict=strict)  # finds out which can be read
        note_skipped([skip.reason for skip in source.skipped])
    found = learner.drift(source.items, significance=significance)
    known = 0.0 if version is None else _known(space, version, source, learner.domain)
    lines = [str(found)]
    if known > 0.5:
        lines.append(
            f"But {known:.0%} of the items looked at have been ingested already: this compares "
            "data that the encoder has learned from with themselves."
        )
    value = {
        **{name: _plain(figure) for name, figure in vars(found).items()},
        "drifted": found.drifted,
        "advice": found.advice,
        "version": version,
        "known": known,
    }
    return Answer(value, lines, Exit.DRIFT if found.drifted and fail_on_drift else Exit.DONE)


def _known(space: Workspace, version: int, source: Source, domain: Domain) -> float:
    """The share of items, of the first some, that a version has learned from."""
    extent = space.extent(version)
    digests = set(next(NewData(source, domain).hashes(), []))
    with closing(Store.open(space.store_file, readonly=True)) as store:
        found = store.find(digests)
        forgotten = extent.forgotten(store.columns(extent.arrivals))
    known = ~forgotten[found[found < extent.arrivals]]
    return min(1.0, int(known.sum()) / max(1, len(digests)))


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
