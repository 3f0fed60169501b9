"""A saved learner is the old one or the new one, whole, whatever happens while it is written."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import incontrast as ic
from incontrast import saving
from incontrast.saving import SETTINGS

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def versions() -> tuple[ic.Learner, ic.Learner]:
    """A learner, and the same after an update."""
    learners = []
    for count in (0, 10):
        learner = ic.Learner(
            ic.Vectors(3, hidden=4, out=2),
            fit_strategy=ic.Retrain(max_epochs=1),
            strategy=ic.ICL(max_epochs=1),
        )
        learner.fit(ROWS[:30])
        if count:
            learner.update(ROWS[30:])
        learners.append(learner)
    return learners[0], learners[1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(learner: ic.Learner, other: ic.Learner) -> bool:
    return (
        learner.version == other.version
        and torch.equal(learner.embed(ROWS), other.embed(ROWS))
        and torch.equal(learner.memory.ids, other.memory.ids)
    )


def test_saving_replaces_a_learner_but_nothing_else(versions: Any, tmp_path: Path) -> None:
    before, after = versions
    before.save(tmp_path / "model")
    first = names(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    after.save(tmp_path / "model")
    assert same(ic.Learner.load(tmp_path / "model"), after)
    second = names(tmp_path / "model")
    assert len(second) == len(first) + 1 == 6
    assert "notes.txt" in second
    assert names(tmp_path) == ["model"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(FileExistsError, match="is not a saved learner"):
        before.save(tmp_path / "photos")
    with pytest.raises(FileExistsError, match="choose an empty or a new folder"):
        before.save(tmp_path / "photos" / "cat.jpg")
    assert names(tmp_path / "photos") == ["cat.jpg"]


def test_files_have_the_permissions_that_the_user_asks_for(versions: Any, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        versions[0].save(tmp_path / "deep" / "model")
    finally:
        os.umask(mask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep" / "model").iterdir()}
    assert modes == {0o640}
    assert stat.S_IMODE((tmp_path / "deep" / "model").stat().st_mode) == 0o750


def test_damaged_folders_are_named(versions: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(FileNotFoundError, match="holds no saved learner"):
        ic.Learner.load(folder)
    versions[0].save(folder)
    settings = folder / SETTINGS
    (weights,) = folder.glob("encoder-*.safetensors")
    good = settings.read_text()

    def refused(text: str, message: str, *, signed: bool = False) -> None:
        if signed:
            content = json.loads(text)
            text = json.dumps(content | {"checksum": saving._checksum(content)})
        settings.write_text(text)
        with pytest.raises(ValueError, match=message):
            ic.Learner.load(folder)
        settings.write_text(good)

    refused(good[: len(good) // 2], r"learner\.json is damaged")
    refused("[" * 100_000, r"learner\.json is damaged")
    refused(json.dumps({**json.loads(good), "format": 2}), "has format 2, .* or fit again")
    refused(good.replace('"seed": 0', '"seed": 1'), "its checksum is wrong")
    less = {name: value for name, value in json.loads(good).items() if name != "seed"}
    refused(json.dumps(less), r"damaged \(KeyError\('seed'\)\)", signed=True)
    other = good.replace('"Vectors"', '"os.system"')
    refused(other, r"unknown domain, 'os\.system'", signed=True)
    wider = good.replace('"hidden": 4', '"hidden": 5')
    refused(wider, "do not fit the domain's encoder: 11 of another shape: ", signed=True)

    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"encoder-\w+\.safetensors is damaged"):
        ic.Learner.load(folder)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"encoder-\w+\.safetensors is missing"):
        ic.Learner.load(folder)


@pytest.mark.parametrize("most", [60, pytest.param(10**6, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_or_harmless(versions: Any, tmp_path: Path, most: int) -> None:
    learner, folder = versions[0], tmp_path / "model"
    learner.save(folder)
    draws = random.Random(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in draws.sample(range(len(whole)), min(most, len(whole))):
            changed = bytearray(whole)
            changed[place] ^= 1 << draws.randrange(8)
            path.write_bytes(changed)
            try:
                loaded = ic.Learner.load(folder)
            except (ValueError, FileNotFoundError) as error:
                assert str(folder) in str(error)  # noqa: PT017
            else:
                assert path.name == SETTINGS
                assert same(loaded, learner)
                assert saving.describe(loaded) == saving.describe(learner)
        path.write_bytes(whole)
    assert same(ic.Learner.load(folder), learner)


class Cut(BaseException):
    """The power fails."""


def test_an_interruption_at_any_moment(
    versions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stops, the folder holds the old or the new learner, and can be saved into."""
    before, after = versions
    calls = 0
    cut: int | None = None

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == cut:
                raise Cut
            return function(*arguments, **settings)

        return call

    for owner, name in ((os, "fsync"), (os, "open"), (Path, "open"), (Path, "replace")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    before.save(tmp_path / "counted")
    calls = 0
    after.save(tmp_path / "counted")
    assert calls > 20
    found = set()
    for moment in range(1, calls + 1):
        folder = tmp_path / f"{moment}"
        for first in (True, False):  # into a new folder, and over a learner
            cut = None
            if not first:
                before.save(folder)
            calls, cut = 0, moment
            with suppress(Cut):
                after.save(folder)
            cut = None
            try:
                loaded = ic.Learner.load(folder)
            except FileNotFoundError:
                assert first
            else:
                found.add((first, loaded.version))
                assert same(loaded, after if loaded.version == 2 else before)
            after.save(folder)
            assert same(ic.Learner.load(folder), after)
            assert len(names(folder)) == 5
            shutil.rmtree(folder)
    assert found == {(False, 1), (False, 2), (True, 2)}


def test_everything_is_on_the_disk_before_it_is_named(
    versions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def synced(handle: int) -> None:
        events.append(("fsync", str(Path(f"/proc/self/fd/{handle}").readlink())))
        fsync(handle)

    def moved(self: Path, target: Path) -> Path:
        events.append(("replace", str(target)))
        assert ("fsync", str(self)) in events
        return replace(self, target)

    def removed(self: Path, missing_ok: bool = False) -> None:
        events.append(("unlink", str(self)))
        unlink(self, missing_ok)

    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell the names of open files")
    folder = tmp_path / "new" / "model"
    versions[0].save(folder)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    monkeypatch.setattr(Path, "unlink", removed)
    versions[1].save(folder)
    kinds = [kind for kind, _ in events]
    settled = events.index(("replace", str(folder / SETTINGS)))
    assert kinds[:settled].count("replace") >= 2  # tensors come first
    assert "unlink" not in kinds[:settled]
    assert "unlink" in kinds
    last = len(events) - 1 - kinds[::-1].index("unlink")
    assert ("fsync", str(folder)) in events[settled : kinds.index("unlink")]
    assert ("fsync", str(folder)) in events[last:]
    events.clear()
    versions[0].save(tmp_path / "deep" / "er" / "model")
    for made in ("deep", "deep/er"):
        assert ("fsync", str((tmp_path / made).parent)) in events
        assert ("fsync", str(tmp_path / made)) in events


LOOP = """
import os, sys, torch, incontrast as ic
learners = [ic.Learner.load(folder) for folder in sys.argv[1:3]]
for _ in sys.stdin:  # a line asks for one more who saves
    if (saver := os.fork()) == 0:
        print(os.getpid(), flush=True)
        while True:
            for learner in learners:
                learner.save(sys.argv[3])
    os.waitpid(saver, 0)
    print("gone", flush=True)
"""


@contextmanager
def saving_again_and_again(parent: subprocess.Popen[str]) -> Iterator[None]:
    """A process that saves the first two learners into the last folder until it is killed."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write("\n")
    parent.stdin.flush()
    saver = int(parent.stdout.readline())
    try:
        yield
    finally:
        os.kill(saver, signal.SIGKILL)
        assert parent.stdout.readline() == "gone\n"


def test_a_killed_process_leaves_a_learner(versions: Any, tmp_path: Path) -> None:
    for number, learner in enumerate(versions):
        learner.save(tmp_path / f"{number}")
    shutil.copytree(tmp_path / "0", tmp_path / "model")
    folders = [str(tmp_path / name) for name in ("0", "1", "model")]
    draws, pipe = random.Random(0), subprocess.PIPE
    command = [sys.executable, "-c", LOOP, *folders]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        for _ in range(4):
            with saving_again_and_again(parent):
                time.sleep(draws.random() * 0.2)
                loaded = ic.Learner.load(folders[2])  # while it is replaced again and again
                assert same(loaded, versions[loaded.version - 1])
            loaded = ic.Learner.load(folders[2])
            assert same(loaded, versions[loaded.version - 1])
    versions[0].save(folders[2])
    assert len(names(tmp_path / "model")) == 5
    assert names(tmp_path) == ["0", "1", "model"]


def test_two_who_save_take_turns(versions: Any, tmp_path: Path) -> None:
    versions[0].save(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as one who is saving
    other = threading.Thread(target=versions[1].save, args=(tmp_path,))
    other.start()
    other.join(0.3)
    assert other.is_alive()
    assert same(ic.Learner.load(tmp_path), versions[0])
    os.close(handle)
    other.join()
    assert same(ic.Learner.load(tmp_path), versions[1])


def test_who_loads_while_it_is_replaced_gets_the_new_one(
    versions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = versions
    before.save(tmp_path)
    read = saving._tensors_of

    def late(file: Path, **how: Any) -> Any:
        monkeypatch.setattr(saving, "_tensors_of", read)
        after.save(tmp_path)  # which removes the file
        return read(file, **how)

    monkeypatch.setattr(saving, "_tensors_of", late)
    assert same(ic.Learner.load(tmp_path), after)


def test_a_module_of_ones_own_is_passed_again_with_the_domain(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    learner = ic.Learner.from_encoder(module, ic.Vectors(3), seen=ROWS)
    learner.save(tmp_path / "model")
    again = ic.Learner.load(tmp_path / "model", domain=ic.Vectors(3, encoder=torch.nn.Linear(3, 2)))
    assert same(learner, again)
    for own, message in (
        ({}, r"a Linear of your own.*Learner\.load\(folder, domain=\.\.\.\).*its encoder=\.\.\."),
        ({"domain": ic.Vectors(3)}, r"pass it again, domain=Vectors\(\.\.\., encoder=\.\.\.\)"),
        (
            {"domain": ic.Vectors(3, encoder=torch.nn.Linear(3, 5))},
            r"2 of another shape: weight is \(2, 3\), the encoder's is \(5, 3\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ic.Learner.load(tmp_path / "model", **own)
