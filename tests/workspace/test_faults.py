"""What a disk, another process or bad luck do to a workspace is named, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from incontrast import (
    Learner,
    Retrain,
    TensorCollection,
    Vectors,
    Workspace,
    WorkspaceError,
    saving,
)
from incontrast.cli.app import app
from incontrast.cli.command import Exit
from incontrast.memory.store import Store, StoreError, StoreUnwritable
from incontrast.workspace import Busy, Damaged
from incontrast.workspace.files import FORMAT, holder, locked, sealed
from incontrast.workspace.state import StateMachine


def run(space: Workspace, *arguments: object) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    words = [*map(str, arguments), "-w", str(space.folder)]
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x10
    file.write_bytes(content)


# Damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["encoder.safetensors", "learner.json", "version.json"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_version_is_named_and_another_serves(
    space: Workspace, later: Path, name: str, how: str
) -> None:
    file = space.versions.folder(2) / name
    if how == "flipped":
        flip(file, file.stat().st_size // 2)
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-7])
    else:
        file.unlink()
    with pytest.raises(Damaged, match=name):
        space.learner()
    for command in (("update", later), ("embed", later, later.with_name("e.npy"))):
        code, shown = run(space, *command)
        assert (code, name in shown) == (Exit.DAMAGED, True)
    code, shown = run(space, "status", "--check")
    assert code == Exit.DAMAGED
    assert name in shown
    assert run(space, "rollback", "--to", 1)[0] == 0
    assert space.learner().version == 1
    assert run(space, "update", later, "--force")[0] == 0
    assert run(space, "rollback")[0] == 0
    assert run(space, "forget", 1)[0] == 0


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_damaged_state_is_named_and_can_be_set_again(space: Workspace, how: str) -> None:
    state = space.state_file
    if how == "flipped":
        flip(state, state.read_text().index(": 2,") + 2)
    else:
        state.write_bytes(state.read_bytes()[:10])
    with pytest.raises(Damaged, match=r"state\.json is damaged"):
        _ = space.current
    assert run(space, "status")[0] == Exit.DAMAGED
    assert run(space, "rollback", "--to", 2)[0] == 0
    assert space.current == 2
    assert space.check() == []


def test_a_damaged_state_in_the_middle_of_an_update(
    space: Workspace, later: Path, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            Learner, "update", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert run(space, "update", later)[0] == Exit.INTERRUPTED
    space.state_file.write_bytes(b"{")
    assert run(space, "update", later)[0] == Exit.DAMAGED
    assert run(space, "rollback", "--to", 2)[0] == 0
    assert current_is_untouched(space)


def test_a_missing_state_is_damage(space: Workspace, later: Path) -> None:
    space.state_file.unlink()
    for command in (("update", later), ("fit", later), ("status",), ("embed", later, "e.npy")):
        code, shown = run(space, *command)
        assert (code, "state.json is missing" in shown) == (Exit.DAMAGED, True)
    assert len(space.check()) == 1
    assert run(space, "rollback", "--to", 2)[0] == 0
    assert current_is_untouched(space)


def test_a_state_that_names_no_version(space: Workspace) -> None:
    shutil.rmtree(space.versions.folder(2))
    with pytest.raises(Damaged, match=r"names version 2, which is not in .*rollback --to N"):
        space.learner()


def test_a_damaged_journal_loses_one_line_and_stops_nothing(space: Workspace, later: Path) -> None:
    journal = space.journal.path
    lines = journal.read_bytes().splitlines(keepends=True)
    flip(journal, len(lines[0]) + 20)
    with journal.open("ab") as file:
        file.write(b'{"torn": ')
    count = len(lines)
    assert [isinstance(each, Damaged) for each in space.journal.records()].index(True) == 1
    code, shown = run(space, "log")
    assert code == 0
    assert "journal.jsonl, line 2 is damaged" in shown
    assert run(space, "status", "--check")[0] == Exit.DAMAGED
    assert run(space, "update", later, "--force")[0] == 0
    assert space.journal.events()[-1]["step"] == "promote"
    assert len(space.journal.events()) == count - 1 + 4


@pytest.mark.parametrize("lines", [slice(0, -2), slice(3, None)])
def test_a_shortened_journal_is_damage(space: Workspace, lines: slice) -> None:
    whole = space.journal.path.read_bytes().splitlines(keepends=True)
    space.journal.path.write_bytes(b"".join(whole[lines]))
    code, shown = run(space, "status", "--check")
    assert code == Exit.DAMAGED
    assert "it has lost" in shown


@pytest.fixture
def shortened(space: Workspace, monkeypatch) -> Workspace:
    """A workspace whose journal has grown beyond what is kept of it."""
    monkeypatch.setattr("incontrast.workspace.files.EVENTS", 4)
    monkeypatch.setattr("incontrast.workspace.files.SHORTENED", 3)
    for item in range(3):
        space.forget([item])
    return space


def test_a_long_journal_is_summed_up(shortened: Workspace) -> None:
    summary, *recent = shortened.journal.events()
    assert [event["number"] for event in recent] == [12, 13, 14, 15]
    assert (summary["number"], sum(summary["steps"].values())) == (11, 11)
    assert (summary["steps"]["init"], summary["steps"]["promote"]) == (1, 2)
    assert "11 events since" in run(shortened, "log")[1]
    assert shortened.check() == []


def test_the_history_is_that_of_all_versions(space: Workspace, shortened: Workspace) -> None:
    """Also once the summary was summed up itself."""
    for item in (3, 4, 5, 6):
        shortened.forget([item])
    summary = shortened.journal.events()[0]
    assert summary["number"] > 11
    assert not any("version" in event for event in shortened.journal.events()[1:])
    found = json.loads(run(shortened, "history", "--json")[1])["versions"]
    assert [(line["version"], line["standing"]) for line in found] == [
        (1, "promoted"),
        (2, "current"),
    ]
    for line in found:
        record = shortened.versions.record(line["version"])
        after = record["outcome"]["loss"]["after"]
        assert line["items"] == record["data"]["items"]
        assert line["seconds"] == record["outcome"]["seconds"]
        assert line["figures"]["loss, new"] == after["new"]
        assert line["figures"]["loss, old"] == after["old"]


def test_what_was_lost_of_a_journal_is_not_summed_up(shortened: Workspace) -> None:
    lines = shortened.journal.path.read_bytes().splitlines(keepends=True)
    shortened.journal.path.write_bytes(b"".join([lines[0], *lines[2:]]))
    shortened.forget([3])
    shortened.forget([4])
    assert len(shortened.journal.events()) == 4 + 4
    assert "it has lost 1 line" in run(shortened, "status", "--check")[1]


def test_a_lock_that_is_a_link_is_not_followed(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("somebody's")
    space.lock_file.unlink(missing_ok=True)
    space.lock_file.symlink_to(tmp_path / "precious")
    with pytest.raises(Damaged, match="lock is a link, which a lock is never"):
        space.forget([1])
    assert (tmp_path / "precious").read_text() == "somebody's"


def test_links_to_other_places_are_not_followed(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    page, notes = tmp_path / "others" / "page.html", tmp_path / "others" / "notes"
    page.write_text("somebody's")
    notes.write_text("somebody's, without an end of line")
    run(space, "report")
    (space.reports / "mine.html").write_text("mine")
    space.forget([1])
    assert [path.name for path in space.reports.iterdir()] == ["mine.html"]
    shutil.rmtree(space.reports)
    space.reports.symlink_to(tmp_path / "others")
    for command in (("report",), ("history",), ("forget", 2)):
        code, shown = run(space, *command)
        assert code == Exit.DAMAGED
        assert "reports is a link, which a folder of reports is never: delete it" in shown
    assert "forgotten" not in run(space, "status")[1]
    space.reports.unlink()
    journal = space.journal.path
    journal.rename(tmp_path / "journal")
    journal.symlink_to(notes)
    assert "which a journal is never" in run(space, "forget", 2)[1]
    journal.unlink()
    (tmp_path / "journal").rename(journal)
    assert run(space, "forget", 2)[0] == 0
    assert page.read_text() == "somebody's"
    assert notes.read_text() == "somebody's, without an end of line"
    assert space.check() == []


def test_all_files_have_the_permissions_that_a_user_asks_for(space: Workspace, blobs) -> None:
    space.update(blobs(20, seed=2), force=True)
    umask = os.umask(0)
    os.umask(umask)
    modes = {oct(path.stat().st_mode & 0o777) for path in space.folder.rglob("*") if path.is_file()}
    assert modes == {oct(0o666 & ~umask)}


def test_a_damaged_database_is_named(space: Workspace, later: Path) -> None:
    whole = space.store_file.read_bytes()
    space.store_file.write_bytes(b"x" * 100 + whole[100:])
    for command in (("update", later), ("status", "--check"), ("drift", later)):
        code, shown = run(space, *command)
        assert code == Exit.DAMAGED
        assert "memory.sqlite is damaged" in shown or "memory.sqlite is not a store" in shown
    space.store_file.write_bytes(whole[: len(whole) // 2])
    assert run(space, "update", later)[0] == Exit.DAMAGED
    # Embedding needs no old items, so the current version still serves.
    assert run(space, "embed", later, later.with_name("e.npy"))[0] == 0
    space.store_file.unlink()
    assert "is missing: restore it" in run(space, "update", later)[1]
    space.store_file.write_bytes(whole)
    assert run(space, "update", later, "--force")[0] == 0


def test_a_damaged_item_is_named_and_can_be_forgotten(space: Workspace, later: Path) -> None:
    content = space.learner().memory.items.store.read([7])[0]
    flip(space.store_file, space.store_file.read_bytes().index(content) + len(content) - 2)
    assert "item 7 is not what was stored" in run(space, "status", "--check")[1]
    code, shown = run(space, "update", later)
    assert code == Exit.DAMAGED
    assert "item 7" in shown
    run(space, "update", "--discard")
    assert run(space, "forget", 7)[0] == 0
    assert run(space, "update", later, "--force")[0] == 0


@pytest.mark.parametrize("name", ["workspace.json", "state.json", "versions/000002/version.json"])
def test_a_newer_format_is_refused(space: Workspace, name: str) -> None:
    file = space.folder / name
    body = json.loads(file.read_text())
    del body["checksum"]
    newer = {**body, "format": FORMAT + 1}
    text = json.dumps(sealed(newer))
    file.write_text(text)
    if name.startswith("versions"):
        with pytest.raises(Damaged, match="has format 4 of a newer incontrast"):
            space.versions.record(2)
    else:
        with pytest.raises(Damaged, match="has format 4 of a newer incontrast"):
            _ = Workspace.open(space.folder).current
        assert run(space, "status")[0] == Exit.DAMAGED


def test_a_workspace_without_its_settings(space: Workspace) -> None:
    (space.folder / "workspace.json").unlink()
    with pytest.raises(Damaged, match=r"workspace\.json is missing"):
        Workspace.open(space.folder)


def test_a_rollback_run_again_says_so(space: Workspace) -> None:
    assert run(space, "rollback") == (0, "Version 1 is the current one.\n")
    code, shown = run(space, "rollback")
    assert code == 0
    assert "Version 1 is the current one already: the last update was rolled back" in shown
    assert "--to N goes to another (kept: 1, 2)" in shown


# What others have written ------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    names = ("memory.sqlite", "lock", "outputs.jsonl", "version-", "history")  # as they may change
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if not path.name.startswith(names)}


def test_nothing_is_written_into_a_workspace(
    space: Workspace, created: Path, later: Path, tmp_path: Path
) -> None:
    """Neither into its own nor into another one."""
    other = Workspace.open(shutil.copytree(created, tmp_path / "other"))
    (tmp_path / "link").symlink_to(other.folder / "versions")
    before = contents(space.folder), contents(other.folder)
    for place in (space, other):
        version = place.versions.folder(2)
        for command in (
            ("embed", later, version, "--overwrite"),
            ("embed", later, place.folder / "rows.npy", "--overwrite"),
            ("embed", later, tmp_path / "link" / "rows.npy", "--overwrite"),
            ("export", version / "encoder.safetensors"),
            ("report", "--to", place.folder / "page.html"),
            ("history", "--to", version / "page.html"),
        ):
            code, shown = run(space, *command)
            assert (code, "choose a place outside of it" in shown) == (Exit.DATA, True), shown
        with pytest.raises(ValueError, match="is in the workspace"):
            space.learner().save(version)
    assert (contents(space.folder), contents(other.folder)) == before
    assert other.check() == []


def test_pages_and_embeddings_leave_the_files_of_others_alone(
    space: Workspace, later: Path, tmp_path: Path
) -> None:
    data = later.read_bytes()
    for command in ("report", "history"):
        code, shown = run(space, command, "--to", later)
        assert (code, "a page is written to .html" in shown) == (Exit.DATA, True)
    assert later.read_bytes() == data
    shutil.copytree(space.versions.folder(2), tmp_path / "copy")  # which has a manifest, too
    beside = tmp_path / ".e.npy.shards"
    beside.mkdir()
    (beside / "mine").touch()
    run(space, "embed", later, tmp_path / "shards")
    (tmp_path / "shards" / "00007.npy").write_text("mine")
    for target in ("copy", "e.npy", "shards"):
        code, shown = run(space, "embed", later, tmp_path / target, "--overwrite")
        assert (code, "was not written by embed: choose another name" in shown) == (
            Exit.STATE,
            True,
        )
    assert (tmp_path / "shards" / "00007.npy").read_text() == "mine"
    assert (beside / "mine").exists()
    assert (tmp_path / "copy" / "version.json").exists()


@pytest.mark.parametrize("name", ["00000.json", "manifest.json"])
def test_every_file_of_shards_is_checked(space: Workspace, later: Path, name: str) -> None:
    shards = later.with_name("shards")
    run(space, "embed", later, shards)
    assert run(space, "status", "--check")[0] == 0
    flip(shards / name, 30)
    assert run(space, "status", "--check")[0] == Exit.DAMAGED
    code, shown = run(space, "embed", later, shards)
    assert code in (Exit.DAMAGED, Exit.STATE)
    assert "embed with --overwrite" in shown
    assert run(space, "embed", later, shards, "--overwrite")[0] == 0
    assert space.check() == []


def test_a_package_that_is_missing_is_named(space: Workspace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, shown = run(space, "export", tmp_path / "encoder.onnx")
    assert code == Exit.MACHINE
    assert 'ONNX needs onnxscript: pip install "incontrast[onnx]"' in shown
    assert list(tmp_path.glob("*.onnx*")) == []


# Others ------------------------------------------------------------------------------------------


def test_two_writers(space: Workspace, later: Path) -> None:
    with locked(space.lock_file, "update"):
        assert f"process {os.getpid()} on" in (holder(space.lock_file) or "")
        with pytest.raises(Busy, match=rf"written by process {os.getpid()} on .* \(update, since"):
            space.forget([1])
        for command in (("update", later), ("rollback",), ("forget", 1)):
            code, shown = run(space, *command)
            assert code == Exit.BUSY
            assert "wait until it has finished, or stop it" in shown
        # Readers are not disturbed.
        assert f"being written by process {os.getpid()}" in run(space, "status")[1]
        assert run(space, "embed", later, later.with_name("e.npy"))[0] == 0
        assert run(space, "drift", later)[0] == 0
    assert holder(space.lock_file) is None
    assert not space.lock_file.exists()
    assert run(space, "rollback")[0] == 0


def test_a_lock_that_was_deleted_while_somebody_waited_for_it_is_none(tmp_path: Path) -> None:
    file, inside, most = tmp_path / "lock", [], []

    def hold() -> None:
        for _ in range(20):
            with suppress(Busy), locked(file, "test"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert not file.exists()


def test_a_lock_ends_with_its_process(space: Workspace) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from incontrast.workspace.files import locked\n"
        "with locked(Path(sys.argv[1]), 'update'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(space.lock_file)], check=False)
    assert done.returncode == -9
    assert space.lock_file.read_text() != ""
    assert holder(space.lock_file) is None
    space.forget([1])


def test_readers_read_while_an_update_runs(space: Workspace, blobs) -> None:
    embedded = []

    def look(progress) -> None:
        reader = Workspace.open(space.folder)
        embedded.append(reader.learner().embed(blobs(4)))
        assert reader.learner().memory.seen == 60
        assert reader.current == 2

    space.update(blobs(20, seed=2), callbacks=[look], force=True)
    assert len(embedded) >= 2
    assert all(torch.equal(embedded[0], other) for other in embedded)


def test_two_processes_cannot_create_one_workspace(tmp_path: Path) -> None:
    folder = tmp_path / "space"
    (folder / "versions").mkdir(parents=True)
    (folder / ".creating").touch()
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1))
    with locked(folder / "lock", "init"), pytest.raises(Busy, match="init, since"):
        Workspace.create(folder, learner)
    first = Workspace.create(folder, learner)
    with pytest.raises(WorkspaceError, match="is a workspace already"):
        Workspace.create(folder, learner)
    assert Workspace.open(folder).id == first.id


# The machine -------------------------------------------------------------------------------------


def current_is_untouched(space: Workspace) -> bool:
    return space.check() == [] and space.current == 2 and len(space.learner().memory) == 60


def test_no_space_for_the_items(space: Workspace, later: Path, monkeypatch) -> None:
    opened = Store.open.__func__

    def small(cls, path, *, readonly=False):
        store = opened(cls, path, readonly=readonly)
        store._connection.execute("pragma max_page_count = 1")  # as many as there are
        return store

    monkeypatch.setattr(Store, "open", classmethod(small))
    big = later.with_name("big.npy")
    np.save(big, np.random.default_rng(0).normal(size=(3000, 8)))
    code, shown = run(space, "update", big)
    assert code == Exit.MACHINE
    assert "no space left for" in shown
    monkeypatch.undo()
    assert current_is_untouched(space)
    assert run(space, "update", later, "--force")[0] == 0
    assert len(space.learner().memory) == 80


@pytest.mark.parametrize("where", ["weights", "record", "state", "journal"])
def test_no_space_for_a_file(space: Workspace, later: Path, monkeypatch, where: str) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*arguments: object, **options: object) -> None:
        raise full

    if where == "weights":
        monkeypatch.setattr(saving, "save_file", fail)
    elif where == "record":
        monkeypatch.setattr("incontrast.workspace.files.write_json", fail)
    elif where == "state":
        monkeypatch.setattr(StateMachine, "promote", fail)
    else:
        monkeypatch.setattr(type(space.journal), "add", fail)
    code, shown = run(space, "update", later, "--force")
    assert code == Exit.MACHINE
    assert "No space left on device" in shown
    assert "what was complete is kept; run the same command again" in shown
    monkeypatch.undo()
    assert current_is_untouched(space)
    assert run(space, "update", later, "--force")[0] == 0
    assert space.current == 3
    assert len(space.learner().memory) == 80


def test_an_interrupted_update_is_resumed(
    space: Workspace, later: Path, monkeypatch, created: Path
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "update", interrupt)
        code, shown = run(space, "update", later)
    assert code == Exit.INTERRUPTED
    assert "interrupted: what was complete is kept; run the same command again" in shown
    assert current_is_untouched(space)
    assert "to be trained" in run(space, "status")[1]
    # Other data have to wait until this is finished or dropped.
    other = later.with_name("other.npy")
    np.save(other, np.zeros((5, 8)))
    code, shown = run(space, "update", other)
    assert code == Exit.STATE
    assert f"incontrast update -w {space.folder} resumes it" in shown
    assert run(space, "update", "--force")[0] == 0
    undisturbed = Workspace.open(shutil.copytree(created, later.parent / "undisturbed"))
    run(undisturbed, "update", later, "--force")
    files = (each.versions.folder(3) / "encoder.safetensors" for each in (space, undisturbed))
    first, second = (file.read_bytes() for file in files)
    assert first == second


def test_a_folder_that_may_only_be_read(space: Workspace, later: Path, monkeypatch) -> None:
    """A user who may read but not write; for root there is none, so the answer is imitated."""
    path_open = Path.open

    def read_only(self: Path, mode: str = "r", *arguments: object, **options: object):
        if self.is_relative_to(space.folder) and set(mode) & set("wa+"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return path_open(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", read_only)
    for command in (("update", later), ("rollback",), ("forget", 1)):
        code, shown = run(space, *command)
        assert code == Exit.MACHINE
        assert "cannot be written (Permission denied)" in shown
    assert run(space, "status")[0] == 0
    assert run(space, "drift", later)[0] == 0
    assert run(space, "embed", later, later.with_name("e.npy"))[0] == 0


def test_a_database_in_a_folder_that_may_only_be_read(space: Workspace) -> None:
    with pytest.raises(StoreUnwritable, match="cannot be written"):
        Store.open(space.store_file, readonly=True).remove([1])
    with pytest.raises(StoreError):
        Store.open(space.folder / "missing.sqlite", readonly=True)


# Data --------------------------------------------------------------------------------------------


def test_bad_data_end_with_a_sentence(space: Workspace, tmp_path: Path, later: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    shutil.copyfile(later, tmp_path / "photos" / "not really.png")
    np.save(tmp_path / "wide.npy", np.zeros((4, 9)))
    for data, message in (
        ("empty", "holds neither images, TU graphs nor"),
        ("photos", "holds images, but vectors are expected here"),
        ("wide.npy", "has 9 columns of numbers, but 8 are expected"),
        ("missing", "does not exist"),
    ):
        for command in ("update", "drift"):
            code, shown = run(space, command, tmp_path / data)
            assert code == Exit.DATA, shown
            assert message in shown
    assert current_is_untouched(space)


def test_an_archive_is_never_unpacked_outside_its_folder(space: Workspace, tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    np.save(tmp_path / "array.npy", np.ones((40, 8)))
    with zipfile.ZipFile(inside / "rows.npz", "w") as archive:
        archive.write(tmp_path / "array.npy", "../../escaped.npy")
    run(space, "drift", inside / "rows.npz")
    assert not (tmp_path / "escaped.npy").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["array.npy", "deep", "space"]


def test_suggested_commands_name_the_workspace(space: Workspace, monkeypatch) -> None:
    code, shown = run(space, "rollback", "--to", 1)
    code, shown = run(space, "rollback")
    assert code == Exit.STATE
    run(space, "rollback", "--to", 2)
    run(space, "rollback")
    assert f"incontrast rollback -w {space.folder} --to N" in run(space, "rollback")[1]
    space.state_file.write_text("{")
    assert f"incontrast rollback -w {space.folder} --to N" in run(space, "status")[1]
    monkeypatch.chdir(space.folder)
    for arguments in ([], ["-w", "."]):
        shown = CliRunner().invoke(app, ["status", *arguments]).output
        assert "with incontrast rollback --to N" in shown


def test_files_of_what_was_forgotten_do_not_bring_it_back(
    space: Workspace, later: Path, tmp_path: Path
) -> None:
    """Also where it came with an earlier version than the one that learned from the same data."""
    both = tmp_path / "both.npy"
    np.save(both, np.concatenate([np.load(later), np.load(later)[:5] + 1]))
    for data in (later, both):
        assert run(space, "update", data, "--force")[0] == 0
    first = space.versions.record(3)["first"]
    assert "leave the same content out from now on" in run(space, "forget", first)[1]
    for command, says in (("update", "Nothing to do"), ("drift", "Nothing new: all 25 items")):
        shown = run(space, command, both)[1]
        assert says in shown
        assert "1 forgotten item was left out" in shown
    assert space.update(np.load(both)[:1], force=True, again=True).items == 1


def test_new_items_that_are_all_the_same_are_pointed_out(space: Workspace, later: Path) -> None:
    np.save(later, np.ones((15, 8), np.float32))
    code, shown = run(space, "update", later, "--force")
    assert (code, "all 15 new items are the same: is that so?" in shown) == (0, True)


def test_no_items_of_ones_own_domain(space: Workspace) -> None:
    class Own(Vectors):
        def collect(self, items):
            return TensorCollection(torch.zeros(0, 8))

    with pytest.raises(ValueError, match="nothing in data in memory can be read"):
        Workspace.open(space.folder, domain=Own(8, hidden=16, out=8)).update([])
    assert current_is_untouched(space)


def test_before_the_first_fit_commands_say_how_to_do_it(tmp_path: Path, later) -> None:
    space = Workspace.create(tmp_path / "new", Learner(Vectors(8)))
    for command in (("status",), ("update", later), ("fit",)):
        assert f"incontrast fit DATA -w {space.folder}" in run(space, *command)[1]


def test_a_first_fit_that_fails_leaves_nothing(tmp_path: Path, blobs, monkeypatch) -> None:
    workspace = Workspace.create(
        tmp_path / "space", Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1))
    )
    with pytest.raises(ValueError, match="at least 2 items"):
        workspace.fit(blobs(1))
    with pytest.raises(WorkspaceError, match="there is no unfinished fit: give some data"):
        workspace.fit()
    assert workspace.fit(blobs(30)).version == 1
