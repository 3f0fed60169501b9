"""``incontrast embed`` and ``incontrast drift``: the encoder applied to data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from incontrast.cli.command import Answer
from incontrast.cli.exit_codes import Exit
from incontrast.cli.output import counted, note_skipped, speaks, stderr
from incontrast.cli.processes import opened
from incontrast.cli.progress import counting_bar
from incontrast.cli.reading import read
from incontrast.data import Source
from incontrast.domains.base import Collection, Domain
from incontrast.memory import Store
from incontrast.workspace import Workspace
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.ingest import KnownHashes, NewData

__all__ = ["drift", "embed"]


def embed(
    *,
    data: Path,
    to: Path,
    workspace: Path,
    columns: str | None,
    id: str | None,
    label: str | None,
    **options: Any,
) -> Answer | None:
    """Write the embeddings of data to a file."""
    space, engine = opened(workspace)
    with engine.error_barrier("read the data"):
        source = read(data, {"columns": columns, "id": id, "label": label})
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
    *,
    data: Path,
    workspace: Path,
    significance: float,
    fail_on_drift: bool,
    strict: bool,
    **table: str | None,
) -> Answer:
    """Compare new data with old ones."""
    space, _ = opened(workspace)
    version = space.current  # another may be promoted meanwhile
    learner = space.learner(version)
    source = read(data, table)
    source.check(learner.domain)
    if source.kind == "images":
        source = read(data, table, check=True, strict=strict)  # finds out which can be read
        note_skipped([skip.reason for skip in source.skipped])
    new, known = _unknown(space, version, source, learner.domain)
    if len(new) == 0:
        nothing = {"drifted": False, "advice": "nothing to do", "known": known, "version": version}
        line = f"Nothing new: all {known:,} items have been ingested already. No update is needed."
        return Answer(nothing, [line])
    found = learner.drift(new, significance=significance)
    lines = [str(found)]
    if known:
        lines.append(f"{counted(known, 'item')} had been ingested before, and were left out.")
    value = {
        **{name: _plain(figure) for name, figure in vars(found).items()},
        "drifted": found.drifted,
        "advice": found.advice,
        "version": version,
        "known": known,
    }
    return Answer(value, lines, Exit.DRIFT if found.drifted and fail_on_drift else Exit.DONE)


def _unknown(
    space: Workspace, version: int | None, source: Source, domain: Domain
) -> tuple[Collection, int]:
    """The items that an update would ingest, and the number of those that it would leave out."""
    extent = None if version is None else space.extent(version)
    with closing(Store.open(space.store_file, readonly=True)) as store:
        known = KnownHashes(store, extent)
    parts = [known.contains(contents) for contents in NewData(source, domain).packed()]
    seen = torch.from_numpy(np.concatenate(parts))
    items = domain.collect(source.items)
    return items.select((~seen).nonzero()[:, 0]), int(seen.sum())


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
