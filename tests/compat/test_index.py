"""Indexes: the same answers from FAISS, LanceDB and a plain product; migration without a gap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from incontrast.compat import chain, fit_link
from incontrast.compat.index import FaissIndex, Index, LanceIndex, Stamp
from incontrast.compat.migration import MigratingIndex, faiss_index, open_serving

ONE, TWO = Stamp("w", 1, "a" * 32), Stamp("w", 2, "b" * 32)


def vectors(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 8, generator=Generator().manual_seed(seed))


TURN = torch.linalg.qr(vectors(8, 7)).Q
LINKS = [fit_link(vectors(200), vectors(200) @ TURN, old=1, new=2, seed=0)]


def maps(source: int, target: int):
    return chain(LINKS, source, target)


def names(count: int, first: int = 0) -> list[str]:
    return [f"it'em {number}" for number in range(first, first + count)]


def faiss_at(place: Path, stamp: Stamp) -> Index:
    return FaissIndex(place, stamp)


def lance_at(place: Path, stamp: Stamp) -> Index:
    pytest.importorskip("lancedb")
    return LanceIndex(place, stamp)


Opened = Callable[[Path, Stamp], Index]
both = pytest.mark.parametrize("opened", [faiss_at, lance_at])


@both
def test_an_index_finds_what_a_product_finds(opened: Opened, tmp_path: Path) -> None:
    index, stored, queries = opened(tmp_path / "index", ONE), vectors(50), vectors(5, 1)
    assert index.search(queries).ids == [[]] * 5
    index.add(names(30), 3 * stored[:30])
    index.add(names(20, 30), stored[30:])
    index.flush()
    index = opened(tmp_path / "index", ONE)  # as another process opens it
    cosines = normalize(queries) @ normalize(stored).T
    expected = cosines.topk(10, dim=1)
    found = index.search(queries)
    assert found.ids == [[names(50)[place] for place in row] for row in expected.indices.tolist()]
    assert torch.allclose(torch.tensor(found.cosines), expected.values, atol=1e-5)
    first = found.ids[0][0]
    index.delete([first, "unknown"])
    assert first not in index.search(queries).ids[0]
    other = names(50)[0] if first != names(50)[0] else names(50)[1]
    index.add([other], queries[:1])  # replaced
    assert index.search(queries[:1], 1).ids == [[other]]
    assert index.ids() == set(names(50)) - {first}
    assert torch.allclose(index.read([other]), normalize(queries[:1]), atol=1e-6)


@both
def test_vectors_of_numpy_are_taken(opened: Opened, tmp_path: Path) -> None:
    index = opened(tmp_path / "index", ONE)
    index.add(names(3), vectors(3).numpy())
    assert torch.allclose(index.read(names(3)), normalize(vectors(3)), atol=1e-6)


@both
def test_vectors_that_do_not_fit_are_refused(opened: Opened, tmp_path: Path) -> None:
    index = opened(tmp_path / "index", ONE)
    index.add(names(3), vectors(3))
    index.flush()
    with pytest.raises(ValueError, match="index has 8 dimensions, vectors 4: map them"):
        index.add(names(1), torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"2 items need \(2, d\) vectors, got \(3, 8\)"):
        index.add(names(2), vectors(3))
    with pytest.raises(ValueError, match="got several of 'twice'"):
        index.add(["once", "twice", "twice"], vectors(3))
    assert set(index.search(vectors(1)).ids[0]) == set(names(3))
    with pytest.raises(ValueError, match="must be finite"):
        index.add(names(1), torch.full((1, 8), float("nan")))
    with pytest.raises(ValueError, match=r"version 1 \(encoder aaaaaaaa\), not of version 2"):
        opened(tmp_path / "index", TWO)


@both
def test_a_migration_serves_all_along(opened: Opened, tmp_path: Path) -> None:
    stored, later, queries = vectors(60), vectors(10, 2), vectors(5, 1)
    index = MigratingIndex(tmp_path, maps, first=ONE, opened=opened)
    index.add(names(60), stored, 1)
    before = index.search(queries, 1).ids
    index.prepare(TWO)
    assert index.search(queries @ TURN, 2).ids == before  # new queries, old index
    index.add(names(10, 60), later @ TURN, 2)  # into both
    with pytest.raises(ValueError, match="version 2 lacks 60 of 70 items: backfill it first"):
        index.cutover()
    expected = index.search(queries, 1).ids
    index.backfill()
    index.cutover()
    index = MigratingIndex(tmp_path, maps, opened=opened)  # as another process opens it
    assert index.serving.stamp == TWO
    assert index.search(queries @ TURN, 2).ids == expected
    assert index.search(queries, 1).ids == expected  # an old client
    index.add(["late"], queries[:1] @ TURN, 2)
    index.delete(names(1))
    index.rollback()
    assert index.serving.stamp == ONE
    assert index.search(queries[:1], 1, 1).ids == [["late"]]
    assert names(1)[0] not in index.serving.ids()


def test_a_cutover_leaves_out_what_the_serving_index_no_longer_has(
    half_migrated: MigratingIndex,
) -> None:
    half_migrated.serving.delete(names(1))  # and not from the other: killed between the two
    half_migrated.cutover()
    assert half_migrated.serving.stamp == TWO
    assert set(half_migrated.serving.ids()) == set(names(4, first=1))


def test_what_cannot_be_migrated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="say of which version the first is"):
        MigratingIndex(tmp_path, maps)
    index = MigratingIndex(tmp_path, maps, first=ONE)
    for call in (index.backfill, index.cutover):
        with pytest.raises(ValueError, match="prepare one of another version first"):
            call()
    with pytest.raises(ValueError, match="unrelated workspaces"):
        index.prepare(Stamp("other", 2, "b" * 32))
    with pytest.raises(ValueError, match="no map from the space of version 1 to that of version 5"):
        index.prepare(Stamp("w", 5, "c" * 32))
    with pytest.raises(ValueError, match="serves version 1 already"):
        index.prepare(ONE)


THREE = Stamp("w", 3, "c" * 32)
LINKS.append(fit_link(vectors(200) @ TURN, vectors(200), old=2, new=3, seed=0))


@pytest.fixture
def half_migrated(tmp_path: Path) -> MigratingIndex:
    """Five items of version 1, in the index of version 2 too."""
    index = MigratingIndex(tmp_path, maps, first=ONE)
    index.add(names(5), vectors(5), 1)
    index.prepare(TWO)
    index.backfill()
    return index


def test_what_several_processes_change_is_kept(tmp_path: Path) -> None:
    server = MigratingIndex(tmp_path, maps, first=ONE)
    server.add(names(5), vectors(5), 1)
    job = MigratingIndex(tmp_path, maps)
    job.prepare(TWO)
    job.backfill()
    server.add(["n"], vectors(1, 3), 1)  # it was opened before there was another index
    server.delete(names(1))
    job.backfill()
    job.cutover()
    server.add(["m"], vectors(1, 4), 1)
    for index in (server, MigratingIndex(tmp_path, maps)):
        assert index.serving.stamp == TWO
        assert index.other is not None
        assert index.serving.ids() == index.other.ids() == {*names(4, 1), "n", "m"}


def test_a_change_waits_for_another_one(tmp_path: Path) -> None:
    second = MigratingIndex(tmp_path, maps, first=ONE)
    thread = threading.Thread(target=second.add, args=(["second"], vectors(1, 2), 1))

    def interrupted(source: int, target: int):
        thread.start()
        thread.join(0.2)  # if it did not wait, it would be through
        return maps(source, target)

    MigratingIndex(tmp_path, interrupted).add(["first"], vectors(1), 1)
    thread.join()
    assert MigratingIndex(tmp_path, maps).serving.ids() == {"first", "second"}


class Killed(Exception):
    pass


@pytest.mark.parametrize("change", ["delete", "replace"])
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_change_that_is_interrupted_leaves_no_difference(
    half_migrated: MigratingIndex, monkeypatch, change: str, written: int
) -> None:
    """Whichever of the two files have been written."""
    index, name, flush, count = half_migrated, names(1), FaissIndex.flush, 0

    def stumble(self: FaissIndex) -> None:
        nonlocal count
        if count == written:
            raise Killed
        count += 1
        flush(self)

    with monkeypatch.context() as patch:
        patch.setattr(FaissIndex, "flush", stumble)
        with suppress(Killed):
            index.delete(name) if change == "delete" else index.add(name, vectors(1, 9), 1)
            assert written == 2
    index = MigratingIndex(index.folder, maps)
    index.backfill()
    index.cutover()
    assert index.other is not None
    assert index.serving.ids() == index.other.ids()
    assert (name[0] in index.serving.ids()) == (change == "replace" or written == 0)
    everything = sorted(index.serving.ids())
    mapped = maps(1, 2)(index.other.read(everything))
    assert torch.allclose(index.serving.read(everything), mapped, atol=1e-5)


def test_a_bad_argument_changes_nothing(half_migrated: MigratingIndex) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        half_migrated.add(names(1), torch.full((1, 8), float("nan")), 1)
    half_migrated.cutover()
    assert half_migrated.serving.ids() == set(names(5))


def test_an_index_that_was_dropped_does_not_come_back(half_migrated: MigratingIndex) -> None:
    index, (a, b) = half_migrated, names(2)
    old = index.folder / "000002-bbbbbbbb.faiss.npz"
    stale = old.read_bytes()
    index.prepare(THREE)
    assert not old.exists()
    index.backfill()
    index.delete([a])
    index.add([b], vectors(1, 9), 1)
    old.write_bytes(stale)  # as if it could not have been deleted
    index.prepare(TWO)
    assert index.missing() == set(names(4, 1))
    index.backfill()
    index.cutover()
    assert index.serving.ids() == set(names(4, 1))
    assert torch.allclose(index.serving.read([b]), maps(1, 2)(vectors(1, 9)), atol=1e-5)


def test_vectors_that_are_gone_are_missed(half_migrated: MigratingIndex) -> None:
    folder = half_migrated.folder
    (folder / "000002-bbbbbbbb.faiss.npz").unlink()  # nothing depends on it yet
    assert MigratingIndex(folder, maps).missing() == set(names(5))
    (folder / "000001-aaaaaaaa.faiss.npz").unlink()
    for call in (lambda: MigratingIndex(folder, maps), lambda: open_serving(folder)):
        with pytest.raises(FileNotFoundError, match="vectors of version 1 are not at"):
            call()


def test_the_folder_says_how_it_is_opened(tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    index = MigratingIndex(tmp_path, maps, first=ONE, opened=LanceIndex)
    index.add(names(5), vectors(5), 1)
    served = open_serving(tmp_path)
    assert isinstance(served, LanceIndex)
    index.add(["late"], vectors(1, 9), 1)
    assert served.search(vectors(1, 9), 1).ids == [["late"]]  # without opening it again
    with pytest.raises(ValueError, match="is a LanceIndex"):
        MigratingIndex(tmp_path, maps, opened=faiss_index)


def test_backfill_writes_the_file_a_few_times(half_migrated: MigratingIndex, monkeypatch) -> None:
    for module in ("index", "migration"):
        monkeypatch.setattr(f"incontrast.compat.{module}.BATCH", 10)
    index, steps = half_migrated, []
    index.add(names(640), vectors(640), 1)
    index.prepare(THREE)
    index.backfill(lambda done, total: steps.append((done, total)))
    assert steps == [(10 * 2**step, 640) for step in range(7)]


CHILD = """
import sys
from pathlib import Path
import incontrast.compat.index as module
from incontrast.compat import migration
from test_index import TWO, maps
module.BATCH = migration.BATCH = 10
index = migration.MigratingIndex(sys.argv[1], maps)
print("open", flush=True)
index.prepare(TWO) if index.serving.stamp != TWO else None
index.backfill(lambda done, total: print(done, flush=True))
index.cutover() if index.serving.stamp != TWO else None
print("over", flush=True)
"""


@pytest.mark.slow
def test_kills_during_backfill_and_cutover(tmp_path: Path) -> None:
    stored, queries = vectors(300), vectors(5, 1)
    index = MigratingIndex(tmp_path, maps, first=ONE)
    index.add(names(300), stored, 1)
    expected = index.search(queries, 1).ids
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    for lines in (1, 3, 6, 12, 30, 31, 32):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert child.stdout is not None
        for _ in range(lines):
            if not child.stdout.readline():
                break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        served = MigratingIndex(tmp_path, maps)
        assert served.search(queries @ TURN, 2).ids == expected
    index = MigratingIndex(tmp_path, maps)
    if index.serving.stamp != TWO:
        index.backfill()
        index.cutover()
    assert index.search(queries, 1).ids == expected
