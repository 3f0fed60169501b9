"""Embeddings in files: complete, resumable, and never of two versions."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from incontrast import ICL, Learner, Retrain, Vectors, Workspace, WorkspaceError
from incontrast.data import read_source
from incontrast.data.source import Source
from incontrast.workspace import Busy
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.shards import Shard, Shards
from incontrast.workspace.stamps import outputs, stamp_of
from incontrast.workspace.status import status_of


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    learner = Learner(
        Vectors(8, hidden=16, out=4),
        fit_strategy=Retrain(max_epochs=1),
        strategy=ICL(max_epochs=1, epoch_steps=1),
    )
    created = Workspace.create(tmp_path_factory.mktemp("fitted") / "space", learner)
    created.fit(blobs(40))
    return created.folder


@pytest.fixture
def workspace(fitted: Path, copy_of) -> Workspace:
    return copy_of(fitted)


@pytest.fixture
def source(tmp_path: Path, blobs, monkeypatch) -> Source:
    monkeypatch.setattr("incontrast.data.source.CHUNK", 8)
    np.save(tmp_path / "rows.npy", blobs(30, seed=3).numpy())
    return read_source(tmp_path / "rows.npy")


class Stop(Exception):
    pass


def stop_after(count: int):
    def progress(done: int, total: int) -> None:
        if done >= count:
            raise Stop

    return progress


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_an_interrupted_run_is_resumed(
    workspace: Workspace, source: Source, tmp_path: Path, kind: str
) -> None:
    whole, parts = tmp_path / f"whole.{kind}", tmp_path / f"parts.{kind}"
    embed_source(workspace, source, whole)
    for count in (8, 24):
        with pytest.raises(Stop):
            embed_source(workspace, source, parts, progress=stop_after(count))
        assert not parts.exists()  # whole, or not there
    done = embed_source(workspace, source, parts)
    assert (done.rows, done.added, done.version) == (30, 6, 1)
    assert read(parts)[0] == [str(number) for number in range(30)]
    for first, second in zip(read(parts), read(whole), strict=True):
        assert np.array_equal(first, second)
    learner = workspace.learner(memory=False)
    assert np.allclose(read(whole)[1], learner.embed(source.items).numpy(), atol=1e-6)
    leftovers = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert leftovers == []


def read(file: Path) -> tuple[list[str], np.ndarray]:
    if file.suffix == ".npy":
        lines = file.with_name(f"{file.stem}.ids.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], np.load(file)
    from pyarrow.parquet import read_table

    table = read_table(file)
    about = json.loads(table.schema.metadata[b"incontrast"])
    assert about["version"] == 1
    return table["id"].to_pylist(), np.stack(table["embedding"].to_numpy())


def test_more_rows_without_ids_are_appended_though_one_is_left_out(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    file, rows = tmp_path / "file.npy", blobs(12, seed=4).numpy()
    before = embed_source(workspace, source, file).rows
    rows[3, 0] = np.nan
    np.save(tmp_path / "more.npy", rows)
    embed_source(workspace, read_source(tmp_path / "more.npy"), file, append=True)
    assert len(np.load(file)) == before + 11


def test_a_name_that_two_items_have_is_refused(workspace: Workspace, tmp_path: Path, blobs) -> None:
    lines = [
        ",".join(map(str, [name, *row]))
        for name, row in zip("abcb", blobs(4).tolist(), strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["customer,a,b,c,d,e,f,g,h", *lines]))
    source = read_source(tmp_path / "t.csv", id="customer")
    with pytest.raises(ValueError, match=r"t\.csv has 2 items called 'b': give unique names"):
        embed_source(workspace, source, tmp_path / "file.npy")
    assert not (tmp_path / "file.npy").exists()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_what_was_embedded_of_two_sources_is_a_source(
    workspace: Workspace, tmp_path: Path, kind: str, blobs
) -> None:
    """Rows of both have their numbers as names."""
    file = tmp_path / f"file.{kind}"
    for number, count in enumerate((5, 3)):
        np.save(tmp_path / f"{number}.npy", blobs(count, seed=number).numpy())
        source = read_source(tmp_path / f"{number}.npy")
        embed_source(workspace, source, file, append=bool(number))
    again = read_source(file)
    assert again.names() == [str(row) for row in range(8)]
    learner = Learner(Vectors(again.items.shape[1]), fit_strategy=Retrain(max_epochs=1))
    other = Workspace.create(tmp_path / "other", learner)
    other.fit(again)
    assert embed_source(other, again, tmp_path / "again.npy").rows == 8


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_more_data_by_the_same_version(
    workspace: Workspace, source: Source, tmp_path: Path, kind: str, blobs
) -> None:
    file = tmp_path / f"file.{kind}"
    embed_source(workspace, source, file)
    first = read(file)[1]
    np.save(tmp_path / "more.npy", blobs(12, seed=4).numpy())
    more = read_source(tmp_path / "more.npy")
    with pytest.raises(WorkspaceError, match="holds embeddings of other data by the same version"):
        embed_source(workspace, more, file)
    with pytest.raises(Stop):
        embed_source(workspace, more, file, append=True, progress=stop_after(8))
    np.save(tmp_path / "other.npy", blobs(12, seed=5).numpy())
    with pytest.raises(WorkspaceError, match="is unfinished, with embeddings of"):
        embed_source(workspace, read_source(tmp_path / "other.npy"), file)
    assert embed_source(workspace, source, file).added == 0  # they are there, whatever is added
    done = embed_source(workspace, more, file)
    assert done.rows == 42
    ids, rows = read(file)
    assert np.array_equal(rows[:30], first)
    assert ids[30:] == [str(number) for number in range(12)]
    again = embed_source(workspace, more, file)
    assert (again.rows, again.added) == (42, 0)


def test_versions_are_never_mixed(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    file = tmp_path / "file.npy"
    embed_source(workspace, source, file)
    assert outputs(workspace) == [file]
    workspace.update(blobs(10, seed=5), force=True)
    for options in ({}, {"append": True}):
        with pytest.raises(WorkspaceError, match="of version 1, these would be of version 2"):
            embed_source(workspace, source, file, **options)
    assert embed_source(workspace, source, file, version=1).added == 0
    done = embed_source(workspace, source, file, overwrite=True)
    assert (done.version, done.rows) == (2, 30)
    assert stamp_of(file)["workspace"] == workspace.id


def test_files_of_others_are_left_alone(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    file = tmp_path / "mine.npy"
    np.save(file, np.zeros(3))
    with pytest.raises(WorkspaceError, match=r"mine\.npy was not written by embed: choose"):
        embed_source(workspace, source, file)
    other = Workspace.create(tmp_path / "other", workspace.template())
    other.fit(blobs(40))
    embed_source(other, source, tmp_path / "theirs.npy")
    with pytest.raises(WorkspaceError, match="embeddings of another workspace"):
        embed_source(workspace, source, tmp_path / "theirs.npy")
    with pytest.raises(ValueError, match=r"to \.npy, to \.parquet or to a folder, got 'a\.txt'"):
        embed_source(workspace, source, tmp_path / "a.txt")
    with pytest.raises(ValueError, match="there is no folder"):
        embed_source(workspace, source, tmp_path / "missing" / "a.npy")


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_file_stays_as_it_is_until_the_new_one_is_complete(
    workspace: Workspace, source: Source, tmp_path: Path, kind: str, blobs
) -> None:
    file = tmp_path / f"file.{kind}"
    embed_source(workspace, source, file)
    before = file.read_bytes()
    workspace.update(blobs(10, seed=5), force=True)
    with pytest.raises(Stop):
        embed_source(workspace, source, file, overwrite=True, progress=stop_after(8))
    assert file.read_bytes() == before
    assert stamp_of(file)["version"] == 1
    done = embed_source(workspace, source, file, overwrite=True)
    assert (done.rows, done.added, stamp_of(file)["version"]) == (30, 22, 2)
    assert file.read_bytes() != before


@pytest.mark.parametrize("kind", ["npy", "parquet"])
@pytest.mark.parametrize("moved", [0, 1, 2])
def test_an_export_that_was_interrupted_is_finished(
    workspace: Workspace, source: Source, tmp_path: Path, monkeypatch, kind: str, moved: int, blobs
) -> None:
    """Whichever of its files have been moved into place, rows are appended once."""
    file = tmp_path / f"file.{kind}"
    embed_source(workspace, source, file)
    np.save(tmp_path / "more.npy", blobs(12, seed=4).numpy())
    replace, count = Path.replace, 0

    def stumble(path: Path, target: Path) -> Path:
        nonlocal count
        if path.parent.name.endswith(".shards") and path.name == Path(target).name:
            if count == moved:
                raise Stop
            count += 1
        return replace(path, target)

    more = read_source(tmp_path / "more.npy")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stumble)
        with suppress(Stop):
            embed_source(workspace, more, file, append=True)
    assert embed_source(workspace, more, file).rows == 42
    ids, rows = read(file)
    assert (len(ids), len(rows)) == (42, 42)
    assert not list(tmp_path.glob(".*"))


def test_shards_of_another_version_are_replaced(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    folder = tmp_path / "shards"
    embed_source(workspace, source, folder)
    first = np.load(folder / "00003.npy")
    workspace.update(blobs(10, seed=5), force=True)
    with pytest.raises(Stop):
        embed_source(workspace, source, folder, overwrite=True, progress=stop_after(8))
    with pytest.raises(WorkspaceError, match="of version 2, these would be of version 1"):
        embed_source(workspace, source, folder, version=1)
    assert embed_source(workspace, source, folder).rows == 30  # resumed: nothing of before is left
    assert not np.array_equal(np.load(folder / "00003.npy"), first)
    rows = np.concatenate([np.load(folder / shard["file"]) for shard in stamp_of(folder)["shards"]])
    expected = workspace.learner(memory=False).embed(source.items).numpy()
    assert np.allclose(rows, expected, atol=1e-6)


def test_one_process_at_a_time_writes_a_file(
    workspace: Workspace, source: Source, tmp_path: Path
) -> None:
    file = tmp_path / "file.npy"

    def progress(done: int, total: int) -> None:
        with pytest.raises(Busy, match=r"file\.npy is being written by process \d+ on"):
            embed_source(workspace, source, file)

    assert embed_source(workspace, source, file, progress=progress).rows == 30
    assert np.load(file).shape == (30, 4)


def test_files_of_two_kinds_beside_each_other(
    workspace: Workspace, source: Source, tmp_path: Path
) -> None:
    embed_source(workspace, source, tmp_path / "e.npy")
    embed_source(workspace, source, tmp_path / "e.parquet")
    assert len(read(tmp_path / "e.npy")[0]) == 30


def test_the_stamp_names_the_version_that_embedded(
    workspace: Workspace, source: Source, tmp_path: Path, blobs, monkeypatch
) -> None:
    load = Workspace.learner

    def meanwhile(self, *arguments, **options):
        loaded = load(self, *arguments, **options)
        monkeypatch.setattr(Workspace, "learner", load)
        self.update(blobs(10, seed=5), force=True)
        return loaded

    first = workspace.learner(memory=False).embed(source.items).numpy()
    monkeypatch.setattr(Workspace, "learner", meanwhile)
    assert embed_source(workspace, source, tmp_path / "e.npy").version == 1
    assert np.allclose(np.load(tmp_path / "e.npy"), first, atol=1e-6)


def test_folders_of_shards_are_listed(workspace: Workspace, source: Source, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        embed_source(workspace, source, tmp_path / "shards", progress=stop_after(0))
    assert [part["complete"] for part in status_of(workspace)["embeddings"]] == [False]
    embed_source(workspace, source, tmp_path / "shards")
    assert outputs(workspace) == [tmp_path / "shards"]
    about = status_of(workspace)["embeddings"]
    assert [(part["version"], part["rows"], part["complete"]) for part in about] == [(1, 30, True)]
    with (workspace.folder / "outputs.jsonl").open("a") as listed:
        listed.write('{"torn')
    embed_source(workspace, source, tmp_path / "e.npy")
    assert outputs(workspace) == [tmp_path / "shards", tmp_path / "e.npy"]
    (tmp_path / "e.npy.json").write_text("{")  # damage there does not spread
    assert len(status_of(workspace)["embeddings"]) == 1
    assert embed_source(workspace, source, tmp_path / "e.npy", overwrite=True).rows == 30


@pytest.mark.parametrize("name", ["e.npy", "e.parquet", "shards"])
def test_nothing_that_can_be_read(workspace: Workspace, tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.csv").write_text("1,2,3,4,5,6,7,8\n")
    source = read_source(tmp_path / "bad.csv", check=False)
    nothing = Shard(np.empty((0, 0), np.float32), [], ["bad.csv: it is bad"])
    for _ in range(2):
        with (
            patch.object(Shards, "_embedded", lambda *_: nothing),
            pytest.raises(ValueError, match=r"nothing in .* can be read; the first: bad\.csv"),
        ):
            embed_source(workspace, source, tmp_path / name)


def test_a_version_of_the_same_number_with_other_weights_is_another(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    """As after restoring a backup, and another update."""
    shutil.copytree(workspace.folder, tmp_path / "backup")
    workspace.update(blobs(10, seed=5), force=True)
    for name in ("e.npy", "e.parquet", "shards"):
        embed_source(workspace, source, tmp_path / name)
    outputs_file = workspace.folder / "outputs.jsonl"
    shutil.copy(outputs_file, tmp_path / "backup")
    shutil.rmtree(workspace.folder)
    (tmp_path / "backup").rename(workspace.folder)
    restored = Workspace.open(workspace.folder)
    restored.update(blobs(10, seed=6), force=True)
    assert restored.current == 2
    assert not any(output["current"] for output in status_of(restored)["embeddings"])
    for name in ("e.npy", "e.parquet", "shards"):
        for append in (False, True) if name != "shards" else (False,):
            with pytest.raises(WorkspaceError, match="another version 2, with other weights"):
                embed_source(restored, source, tmp_path / name, append=append)
        assert embed_source(restored, source, tmp_path / name, overwrite=True).added == 30
    assert all(output["current"] for output in status_of(restored)["embeddings"])


@pytest.mark.parametrize("name", ["e.npy", "e.parquet", "shards"])
@pytest.mark.parametrize("how", ["truncated", "changed", "missing"])
def test_embeddings_that_were_changed_are_not_up_to_date(
    workspace: Workspace, source: Source, tmp_path: Path, name: str, how: str
) -> None:
    file = tmp_path / name
    embed_source(workspace, source, file)
    assert workspace.check() == []
    part = file / "00001.npy" if name == "shards" else file
    content = part.read_bytes()
    if how == "truncated":
        part.write_bytes(content[:-5])
    elif how == "changed":
        part.write_bytes(content[:-5] + b"wrong")
    else:
        part.unlink()
    if how == "missing" and file == part:  # nothing that could be lost
        assert embed_source(workspace, source, file).added == 30
        return
    assert len(workspace.check()) == 1
    with pytest.raises(WorkspaceError, match=r"is missing|is not what was written"):
        embed_source(workspace, source, file)
    embed_source(workspace, source, file, overwrite=True)
    assert part.read_bytes() == content
    assert workspace.check() == []


def test_embeddings_never_replace_what_they_did_not_write(
    workspace: Workspace, source: Source, tmp_path: Path
) -> None:
    version = workspace.versions.folder(1)
    for place in (version, version / "encoder.npy", workspace.folder, tmp_path):
        with pytest.raises(ValueError, match="is in the workspace"):
            embed_source(workspace, source, place, overwrite=True)
    for place in (source.path, tmp_path / "link.npy"):
        if place != source.path:
            place.symlink_to(source.path)
        with pytest.raises(ValueError, match="is where the data are"):
            embed_source(workspace, source, place, overwrite=True)
    (tmp_path / "x.ids.jsonl").write_text("somebody's")
    with pytest.raises(WorkspaceError, match=r"x\.ids\.jsonl was not written by embed"):
        embed_source(workspace, source, tmp_path / "x.npy", overwrite=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "00000.npy").write_text("somebody's")
    with pytest.raises(WorkspaceError, match=r"00000\.npy was not written by embed"):
        embed_source(workspace, source, tmp_path / "folder", overwrite=True)
    embed_source(workspace, source, tmp_path / "shards")
    (tmp_path / "shards" / "notes.txt").write_text("mine")
    embed_source(workspace, source, tmp_path / "shards", overwrite=True)
    assert (tmp_path / "shards" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "folder" / "00000.npy").read_text() == "somebody's"
    assert (tmp_path / "x.ids.jsonl").read_text() == "somebody's"


def test_shards_of_a_larger_source_do_not_stay(
    workspace: Workspace, source: Source, tmp_path: Path, blobs
) -> None:
    folder = tmp_path / "shards"
    embed_source(workspace, source, folder)
    np.save(tmp_path / "few.npy", blobs(10, seed=4).numpy())
    embed_source(workspace, read_source(tmp_path / "few.npy"), folder, overwrite=True)
    assert sorted(path.name for path in folder.glob("*.npy")) == ["00000.npy", "00001.npy"]
    assert workspace.check() == []


def test_a_folder_that_was_hardly_begun(
    workspace: Workspace, source: Source, tmp_path: Path
) -> None:
    """Killed in its first write: what that has left is nobody else's."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / ".manifest.json.123").write_text("{")
    embed_source(workspace, source, tmp_path / "shards")
    assert not [*(tmp_path / "shards").glob(".*")]


@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "x"])
def test_unit_vectors_of_half_precision_are_told_and_read_back(tmp_path: Path, name: str) -> None:
    lines = [f"row {number},{number}.5,{number % 3}" for number in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["name,a,b", *lines]))
    learner = Learner(Vectors(2), fit_strategy=Retrain(max_epochs=1))
    space = Workspace.create(tmp_path / "named", learner)
    source = read_source(tmp_path / "rows.csv", id="name")
    space.fit(source, force=True)
    file = tmp_path / name
    embed_source(space, source, file, normalized=True, dtype="float16")
    stamp = stamp_of(file)
    assert stamp is not None
    assert (stamp["normalized"], stamp["dtype"]) == (True, "float16")
    found = read_source(file)
    assert found.kind == "vectors"
    assert list(found.ids or ()) == [f"row {number}" for number in range(20)]
    rows = np.asarray(found.items, np.float32)
    unit = torch.nn.functional.normalize(space.learner().embed(source))
    assert np.abs(rows - unit.numpy()).max() < 1e-3
    with pytest.raises(WorkspaceError, match="unit length"):
        embed_source(space, source, file, dtype="float16")
