"""What a power cut may find: a name only ever leads to contents that have reached the disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from incontrast import ICL, Learner, Retrain, Vectors, Workspace
from incontrast.data import read_source
from incontrast.workspace.embeddings import embed_source


class Trace:
    """The calls that make files durable, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Path, Path | None]] = []
        fsync, rename, replace = os.fsync, os.rename, os.replace

        def synced(handle: int) -> None:
            self.calls.append(("fsync", Path(f"/proc/self/fd/{handle}").readlink(), None))
            fsync(handle)

        def moved(move, source, target) -> None:
            inside = [*Path(source).rglob("*")] if Path(source).is_dir() else [Path(source)]
            unsynced = [path for path in inside if ("fsync", path, None) not in self.calls]
            goes = Path(target).name.startswith(".unfinished")  # it is about to be deleted
            assert goes or not unsynced, (
                f"{source} was renamed before its contents were on the disk"
            )
            self.calls.append(("rename", Path(source), Path(target)))
            move(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "rename", lambda *paths: moved(rename, *paths))
        monkeypatch.setattr(os, "replace", lambda *paths: moved(replace, *paths))

    def renamed(self) -> list[Path]:
        return [target for call, _, target in self.calls if call == "rename" and target is not None]

    def check(self) -> None:
        """Each new name is on the disk before the state says so, and in the end."""
        for place, (call, _, target) in enumerate(self.calls):
            if call != "rename" or target is None:
                continue
            later = self.calls[place + 1 :]
            states = [
                after
                for after, (_, _, name) in enumerate(later)
                if name and name.name == "state.json"
            ]
            until = later[: states[0]] if states and target.name != "state.json" else later
            assert ("fsync", target.parent, None) in until, f"the name of {target} may be lost"


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    learner = Learner(
        Vectors(8, hidden=16, out=4),
        fit_strategy=Retrain(max_epochs=1),
        strategy=ICL(max_epochs=1, epoch_steps=1),
    )
    created = Workspace.create(tmp_path_factory.mktemp("updated") / "space", learner, keep=2)
    created.fit(blobs(40))
    created.update(blobs(10, seed=1), force=True)
    return created.folder


@pytest.fixture
def workspace(updated: Path, copy_of) -> Workspace:
    return copy_of(updated)


def test_an_update_is_durable_before_it_counts(workspace: Workspace, blobs, monkeypatch) -> None:
    trace = Trace(monkeypatch)
    workspace.update(blobs(20, seed=2), force=True)
    trace.check()
    renamed = trace.renamed()
    version = renamed.index(workspace.versions.folder(3))
    states = [place for place, target in enumerate(renamed) if target == workspace.state_file]
    assert [place > version for place in states] == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("work", ["forget", "rollback"])
def test_taking_back_is_durable(workspace: Workspace, monkeypatch, work: str) -> None:
    trace = Trace(monkeypatch)
    getattr(workspace, work)(*([[3]] if work == "forget" else []))
    trace.check()
    assert trace.renamed().count(workspace.state_file) == 2


@pytest.mark.parametrize("name", ["e.npy", "e.parquet", "shards"])
def test_embeddings_are_durable_before_they_are_complete(
    workspace: Workspace, tmp_path: Path, monkeypatch, name: str, blobs
) -> None:
    np.save(tmp_path / "rows.npy", blobs(30, seed=3).numpy())
    source = read_source(tmp_path / "rows.npy")
    trace = Trace(monkeypatch)
    embed_source(workspace, source, tmp_path / name)
    trace.check()
    stamp = tmp_path / ("shards/manifest.json" if name == "shards" else f"{name}.json")
    assert trace.renamed()[-1] == stamp  # what says that they are complete comes last
