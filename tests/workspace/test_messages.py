"""What a user sees after each fault is what the documentation says, with the exit code it says."""

from __future__ import annotations

import errno
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from incontrast import Images, Learner, Workspace
from incontrast.memory.store import Store
from incontrast.workspace import evaluation
from incontrast.workspace.files import Journal, locked
from tests.documents import text
from tests.workspace.test_faults import flip, run

Seen = tuple[int, str]
Scenario = Callable[[Workspace, Path, pytest.MonkeyPatch], Seen]


def interrupted(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with patch.context() as patched:
        patched.setattr(Learner, "update", interrupt)
        return run(space, "update", later)


def killed(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    interrupted(space, later, patch)
    return run(space, "status")


def rolled_back(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    run(space, "rollback")
    return run(space, "rollback")


def full(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with patch.context() as patched:
        patched.setattr(Journal, "add", fail)
        return run(space, "update", later)


def full_store(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    opened = Store.open.__func__  # type: ignore[attr-defined]

    def small(cls, path, **options):
        store = opened(cls, path, **options)
        store._connection.execute("pragma max_page_count = 1")  # as many as there are
        return store

    patch.setattr(Store, "open", classmethod(small))
    np.save(later, np.random.default_rng(0).normal(size=(3000, 8)))
    return run(space, "update", later)


def read_only(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    opened = Path.open

    def reading(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wa+"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, mode, *arguments, **options)

    with patch.context() as patched:
        patched.setattr(Path, "open", reading)
        return run(space, "forget", 1)


def busy(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    with locked(space.lock_file, "update"):
        return run(space, "forget", 1)


def weights(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    flip(space.versions.folder(2) / "encoder.safetensors", 500)
    return run(space, "update", later)


def state(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    space.state_file.write_text("{")
    return run(space, "status")


def settings(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    (space.folder / "workspace.json").unlink()
    return run(space, "status")


def changed(space: Workspace, change: str) -> None:
    with sqlite3.connect(space.store_file) as database:
        database.execute(change)
    database.close()


def item(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    changed(space, "update items set content = zeroblob(30) where id = 3")
    return run(space, "update", later)


def records(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    changed(space, "update chunks set hashes = zeroblob(8)")
    assert run(space, "embed", later, later.with_name("e.npy"))[0] == 0
    return run(space, "update", later)


def journal(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    flip(space.journal.path, 20)
    return run(space, "status", "--check")


def embeddings(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    run(space, "embed", later, later.with_name("e.npy"))
    flip(later.with_name("e.npy"), 200)
    return run(space, "embed", later, later.with_name("e.npy"))


def other_encoder(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    run(space, "embed", later, later.with_name("e.npy"))
    run(space, "rollback")
    return run(space, "embed", later, later.with_name("e.npy"), "--append")


def refused(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    patch.setattr(evaluation, "failed_checks", lambda **_: ["it is Monday"])
    return run(space, "update", later)


def other_data(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    interrupted(space, later, patch)
    np.save(later, np.zeros((5, 8)))
    return run(space, "update", later)


def other_kind(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    shutil.copyfile(later, later.with_name("photo.png"))
    return run(space, "update", later.with_name("photo.png"))


def unreadable(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    photos = later.with_name("photos")
    photos.mkdir()
    Image.new("RGB", (8, 8)).save(photos / "a.png")
    images = Workspace.create(later.with_name("images"), Learner(Images(8, encoder="small")))
    (photos / "a.png").write_bytes((photos / "a.png").read_bytes()[:40])
    return run(images, "fit", photos)


def elsewhere(space: Workspace, later: Path, patch: pytest.MonkeyPatch) -> Seen:
    shutil.rmtree(space.folder)
    return run(space, "status")


SCENARIOS: list[Scenario] = [
    *(
        killed,
        interrupted,
        rolled_back,
        full,
        full_store,
        read_only,
        busy,
        weights,
        state,
        settings,
    ),
    *(item, records, journal, embeddings, other_encoder, refused, other_data, other_kind),
    *(unreadable, elsewhere),
]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text("docs/how-to/when-something-fails.md").splitlines()
    if line.startswith("| ") and line.count("|") == 5
][1:]


@pytest.mark.parametrize(
    ("scenario", "row"),
    [*zip(SCENARIOS, ROWS, strict=True)],
    ids=[scenario.__name__ for scenario in SCENARIOS],
)
def test_users_see_what_is_documented(
    space: Workspace, later: Path, monkeypatch, scenario: Scenario, row: list[str]
) -> None:
    _, sentence, _, code = row
    ended, seen = scenario(space, later, monkeypatch)
    pattern = ".*".join(map(re.escape, sentence.strip("`").split("…")))
    assert re.search(pattern, " ".join(seen.split())), seen
    assert ended == int(code)
