"""A learner in a folder: versions, memory, going back, forgetting."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

from incontrast import (
    ICL,
    FineTune,
    Fixed,
    Images,
    Learned,
    Learner,
    Queue,
    Reservoir,
    Retrain,
    Vectors,
    Workspace,
    WorkspaceError,
)
from incontrast.data import read_source
from incontrast.memory.store import Store, StoreError, content_hash
from incontrast.training.loop import TrainingDiverged
from incontrast.workspace import Damaged, Unfinished
from incontrast.workspace.files import Journal, Versions, _checksum, holder
from incontrast.workspace.state import StateMachine
from incontrast.workspace.status import status_of, unfinished
from incontrast.workspace.update import Update

QUICK = ICL(max_epochs=1, epoch_steps=2)


def learner(**options) -> Learner:
    options = {"fit_strategy": Retrain(max_epochs=2), "strategy": QUICK, "seed": 0} | options
    return Learner(Vectors(8, hidden=16, out=8), **options)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    created = Workspace.create(tmp_path_factory.mktemp("fitted") / "space", learner())
    assert created.fit(blobs(60)).promoted
    return created.folder


@pytest.fixture
def workspace(fitted: Path, copy_of) -> Workspace:
    """Fitted on 60 rows."""
    return copy_of(fitted)


@pytest.fixture(scope="module")
def with_refused(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    fitted = learner(fit_strategy=Retrain(max_epochs=20))
    folder = tmp_path_factory.mktemp("refused") / "space"
    created = Workspace.create(folder, fitted, tolerance=0.0)
    created.fit(blobs(60))
    bad = FineTune(max_epochs=30, lr=Fixed(3e-2), ema_decay=0.0)
    assert not created.update(blobs(40, shift=30.0, seed=1), strategy=bad).promoted
    return folder


@pytest.fixture
def refused(with_refused: Path, copy_of) -> Workspace:
    """With a candidate that has forgotten the old items, whatever part of its change is kept."""
    return copy_of(with_refused)


def weights(workspace: Workspace, version: int | None = None) -> dict[str, torch.Tensor]:
    return workspace.learner(version, memory=False).encoder.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_workspace_learns_what_a_learner_learns(workspace: Workspace, blobs) -> None:
    plain = learner()
    plain.fit(blobs(60))
    assert same(weights(workspace), plain.encoder.state_dict())
    step = workspace.update(blobs(20, shift=1.0, seed=1))
    outcome = plain.update(blobs(20, shift=1.0, seed=1))
    assert same(weights(workspace), plain.encoder.state_dict())
    assert step.outcome["loss"]["after"]["old"] == outcome.loss_old.after
    assert (step.version, step.promoted, step.items, workspace.current) == (2, True, 20, 2)
    again = Workspace.open(workspace.folder).learner()
    assert torch.equal(again.memory.ids, plain.memory.ids)
    assert again.memory.seen == 80
    rows = torch.arange(80)
    assert torch.equal(again.memory.items.take(rows), plain.memory.items.take(rows))
    assert again.domain == plain.domain
    # And a learner that was taken out can be updated by itself.
    again.update(blobs(10, seed=3).double().numpy(), strategy=FineTune(max_epochs=1))
    assert workspace.current == 2


def test_learned_rates_are_carried_from_version_to_version(tmp_path: Path, blobs) -> None:
    strategy = ICL(max_epochs=2, lr=Learned())
    workspace = Workspace.create(tmp_path / "space", learner(strategy=strategy))
    plain = learner(strategy=strategy)
    workspace.fit(blobs(60))
    plain.fit(blobs(60))
    for seed in (1, 2):
        workspace.update(blobs(20, seed=seed), force=True)
        plain.update(blobs(20, seed=seed))
    assert plain.schedule_state
    assert same(plain.schedule_state, workspace.learner().schedule_state)
    assert same(plain.encoder.state_dict(), weights(workspace))


@pytest.mark.parametrize("policy", [Reservoir(items=25), Queue(items=25)])
def test_a_limited_memory_on_disk(tmp_path: Path, blobs, policy) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=policy), keep=2)
    plain = learner(memory=policy)
    workspace.fit(blobs(60))
    plain.fit(blobs(60))
    for seed in (1, 2, 3):
        workspace.update(blobs(20, seed=seed), force=True)
        plain.update(blobs(20, seed=seed))
        memory = workspace.learner().memory
        assert torch.equal(memory.ids, plain.memory.ids)
        assert (memory.seen, memory.threshold) == (plain.memory.seen, plain.memory.threshold)
    assert same(weights(workspace), plain.encoder.state_dict())
    with workspace.writing("test") as machine:
        stored = int((machine.store.columns(120)["state"] == 1).sum())
    assert stored < 60  # items that neither of the two versions kept needs are gone


def test_only_so_many_versions_are_kept(tmp_path: Path, blobs) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(), keep=2)
    workspace.fit(blobs(60))
    workspace.reports.mkdir()
    for seed in (1, 2, 3):
        workspace.report_file(seed).touch()
        workspace.update(blobs(10, seed=seed))
    assert workspace.versions.numbers() == [3, 4]
    assert [page.name for page in workspace.reports.iterdir()] == ["version-3.html"]
    with pytest.raises(WorkspaceError, match="there is no version 1: there are 3, 4"):
        workspace.rollback(to=1)


def test_going_back_and_forth(workspace: Workspace, blobs) -> None:
    first = weights(workspace)
    workspace.update(blobs(20, seed=1))
    second = weights(workspace)
    assert workspace.rollback() == 1
    assert same(weights(workspace), first)
    assert workspace.learner().memory.seen == 60
    assert workspace.rollback() == 1
    assert workspace.rollback(to=1) == 1
    with pytest.raises(WorkspaceError, match="no earlier version"):
        workspace.rollback()
    assert workspace.rollback(to=2) == 2
    assert same(weights(workspace), second)
    workspace.rollback()
    # For what comes next, the data of the version that was rolled back never happened.
    step = workspace.update(blobs(20, seed=1))
    assert step.version == 3
    assert same(weights(workspace), second)
    assert workspace.learner().memory.seen == 80
    assert workspace.learner().memory.ids.tolist() == [*range(60), *range(80, 100)]
    steps = [event["step"] for event in workspace.journal.events()]
    assert steps.count("rollback") == 4
    # But it is still there, with its items.
    assert workspace.rollback(to=2) == 2
    assert same(weights(workspace), second)
    assert workspace.learner().memory.ids.tolist() == [*range(80)]
    assert workspace.rollback(to=3) == 3
    assert workspace.rollback() == 1


@pytest.mark.parametrize("policy", [Reservoir(items=30), Queue(items=30)])
def test_after_going_back_an_update_is_what_it_would_have_been(
    tmp_path: Path, blobs, policy
) -> None:
    def created(name: str) -> Workspace:
        created = Workspace.create(tmp_path / name, learner(memory=policy))
        created.fit(blobs(60))
        return created

    straight, astray = created("straight"), created("astray")
    for seed in (5, 6):
        astray.update(blobs(15, seed=seed))
    astray.rollback(to=1)
    for seed in (1, 2):
        for workspace in (straight, astray):
            workspace.update(blobs(20, seed=seed))
        assert same(weights(astray), weights(straight))
        kept = [workspace.learner().memory for workspace in (straight, astray)]
        assert kept[0].seen == kept[1].seen
        everything = torch.arange(30)
        assert torch.equal(kept[0].items.take(everything), kept[1].items.take(everything))


def test_an_update_that_fails_after_going_back_loses_no_version(
    workspace: Workspace, blobs
) -> None:
    workspace.update(blobs(20, seed=1))
    second = weights(workspace)
    workspace.rollback()
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=2), callbacks=[stopped])
    workspace.discard()
    with pytest.raises(ValueError, match=r"got \(20, 3\)"):
        workspace.update(torch.zeros(20, 3))
    assert workspace.versions.numbers() == [1, 2]
    workspace.rollback(to=2)
    assert same(weights(workspace), second)
    assert workspace.check() == []


def test_the_way_back_is_kept_whatever_its_age(tmp_path: Path, blobs) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=Reservoir(items=30)), keep=3)
    workspace.fit(blobs(60))
    for seed in (1, 2):
        workspace.update(blobs(10, seed=seed))
    workspace.rollback(to=1)
    workspace.update(blobs(10, seed=3))
    assert workspace.versions.numbers() == [1, 3, 4]
    assert workspace.rollback() == 1
    assert len(workspace.learner().memory) == 30
    assert workspace.check() == []


def test_the_same_data_twice_are_ingested_once(workspace: Workspace, blobs) -> None:
    workspace.update(blobs(20, seed=1))
    step = workspace.update(blobs(20, seed=1))
    assert (step.version, step.repeated) == (2, True)
    assert workspace.update(blobs(20, seed=1), again=True).version == 3


def test_older_data_are_known_and_what_was_forgotten_is_left_out(
    workspace: Workspace, blobs
) -> None:
    rows = blobs(20, seed=1)
    workspace.update(rows)
    workspace.update(blobs(20, seed=2))
    again = workspace.update(rows)
    assert (again.repeated, again.version) == (True, 2)
    workspace.forget([65])
    assert workspace.learner().memory.seen == 99
    said: list[str] = []
    assert workspace.update(rows, notify=said.append).repeated
    assert said == ["1 forgotten item was left out (--again ingests all items)"]
    step = workspace.update(torch.cat([rows, blobs(5, seed=3)]), notify=said.append)
    assert (step.items, step.known, "; 1 forgotten item was left out" in said[1]) == (5, 19, True)
    assert workspace.update(rows[5:6], again=True).items == 1
    assert workspace.update(torch.cat([rows, blobs(6, seed=4)])).known == 20


def test_discarded_items_may_come_again_and_forgotten_ones_may_not(
    refused: Workspace, blobs
) -> None:
    refused.forget([60])
    refused.discard()
    assert refused.update(blobs(40, shift=30.0, seed=1), force=True).items == 39


def test_what_is_discarded_or_resumed_is_said(refused: Workspace, blobs) -> None:
    sentences: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        refused.update(
            blobs(20, seed=2), discard=True, callbacks=[stopped], notify=sentences.append
        )
    assert sentences[0] == "data in memory was unfinished or refused, and is discarded"
    refused.update(notify=sentences.append)
    assert any(text.startswith("resuming with data in memory and the") for text in sentences)


@pytest.mark.parametrize("error", [ValueError, KeyError, TrainingDiverged, KeyboardInterrupt])
def test_a_callback_that_raises_loses_nothing(workspace: Workspace, blobs, error) -> None:
    rows = blobs(20, seed=1)

    def fail(progress: object) -> None:
        raise error("of the callback")

    with pytest.raises(error, match="of the callback"):
        workspace.update(rows, callbacks=[fail])
    assert unfinished(workspace) == "an update with data in memory, to be trained"
    sentences: list[str] = []
    assert workspace.update(notify=sentences.append).promoted
    assert not any("ingested" in sentence for sentence in sentences)
    assert workspace.learner().memory.seen == 80


def test_items_stay_when_training_diverges(workspace: Workspace, blobs, monkeypatch) -> None:
    def fail(*_, **__) -> None:
        raise TrainingDiverged("the loss is not finite")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", fail)
        with pytest.raises(TrainingDiverged):
            workspace.update(blobs(20, seed=1), strategy=FineTune(max_epochs=1))
    assert "training diverged: the loss is not finite" in unfinished(workspace)
    cut(monkeypatch, StateMachine, "evaluated")  # once the version is written
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(10, seed=2))
    step = workspace.update()
    assert (step.items, step.promoted, step.outcome["strategy"]) == (30, True, "ICL")
    assert workspace.check() == []


def test_what_diverged_is_tried_again_by_the_last_plan(
    workspace: Workspace, blobs, monkeypatch
) -> None:
    """Also if the second try was interrupted, and is resumed with no plan."""
    with monkeypatch.context() as patch:

        def fail(*_, **__) -> None:
            raise TrainingDiverged("the loss is not finite")

        patch.setattr(Learner, "update", fail)
        with pytest.raises(TrainingDiverged):
            workspace.update(blobs(20, seed=1))
    with pytest.raises(KeyboardInterrupt):
        workspace.update(strategy=FineTune(max_epochs=1), callbacks=[stopped])
    step = workspace.update(force=True)
    assert (step.version, step.items, step.outcome["strategy"]) == (2, 20, "FineTune")
    assert workspace.check() == []


def test_an_encoder_is_read_once_in_an_update(workspace: Workspace, blobs, monkeypatch) -> None:
    verified, verify = [], Versions.verify
    monkeypatch.setattr(
        Versions, "verify", lambda self, number: (verified.append(number), verify(self, number))
    )
    workspace.update(blobs(20, seed=1))
    assert verified == [1]


@pytest.mark.parametrize("name", ["workspace.json", "memory.sqlite"])
def test_a_workspace_of_an_earlier_format_is_refused(workspace: Workspace, name: str) -> None:
    if name == "workspace.json":
        body = {**json.loads((workspace.folder / name).read_text()), "format": 1}
        del body["checksum"]
        body["checksum"] = _checksum(body)
        (workspace.folder / name).write_text(json.dumps(body))
        advice = r"format 1 of an earlier incontrast.*create a new workspace \(incontrast init\)"
        with pytest.raises(Damaged, match=advice):
            Workspace.open(workspace.folder)
        return
    with sqlite3.connect(workspace.folder / name) as database:
        database.execute("pragma user_version = 1")
    database.close()
    with pytest.raises(StoreError, match=r"has format 1, .* use the incontrast that wrote it"):
        workspace.learner()


def test_a_workspace_is_read_without_torch(workspace: Workspace, blobs) -> None:
    workspace.update(blobs(20, seed=1))
    code = (
        "import sys; from incontrast.workspace import Workspace\n"
        "from incontrast.text import sentence\n"
        "from incontrast.workspace.status import status_of\n"
        "space = Workspace.open(sys.argv[1])\n"
        "assert status_of(space)['seen'] == 80\n"
        "assert [sentence(event) for event in space.journal.events()]\n"
        "assert space.rollback() == 1 and space.forget([3]) == 1\n"
        "assert status_of(space)['kept'] == status_of(space)['seen'] == 59\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(workspace.folder)], check=True)


def test_only_the_lock_says_who_writes(workspace: Workspace) -> None:
    about = {"pid": os.getpid(), "host": "elsewhere", "doing": "update", "since": "ever"}
    workspace.lock_file.write_text(json.dumps(about))  # as a killed writer leaves it
    assert holder(workspace.lock_file) is None
    with workspace.writing("test"):
        assert f"process {os.getpid()} on" in holder(workspace.lock_file)
    assert holder(workspace.lock_file) is None


def test_a_candidate_that_forgets_is_kept_beside(refused: Workspace, blobs) -> None:
    assert refused.current == 1
    assert refused.learner().memory.seen == 60
    with pytest.raises(Unfinished, match="version 2 was never promoted"):
        refused.rollback(to=2)
    # Asked again it says why; forced, it is promoted without another training.
    step = refused.update()
    assert not step.promoted
    assert "the loss of old items rose from" in step.failed_checks[0]
    forced = refused.update(blobs(40, shift=30.0, seed=1), force=True)
    assert forced.promoted
    assert forced.outcome == step.outcome
    assert refused.current == 2
    assert refused.learner().memory.seen == 100
    promoted = refused.journal.events()[-1]
    assert promoted["step"] == "promote"
    assert promoted["despite"] == list(step.failed_checks)


def test_refused_items_are_taken_along(refused: Workspace, blobs) -> None:
    """Until somebody discards them on purpose."""
    refused.report_file(2).parent.mkdir()
    refused.report_file(2).touch()
    sentences: list[str] = []
    step = refused.update(blobs(20, seed=2), force=True, notify=sentences.append)
    assert "40 items of data in memory were refused before, and are taken along" in sentences[0]
    assert (step.version, step.promoted, step.items) == (3, True, 60)
    memory = refused.learner().memory
    assert memory.seen == 120
    assert torch.equal(memory.items.take(torch.arange(60, 100)), blobs(40, shift=30.0, seed=1))
    assert refused.versions.numbers() == [1, 3]
    assert not refused.report_file(2).exists()
    assert refused.update(blobs(40, shift=30.0, seed=1)).repeated
    events = [event for event in refused.journal.events() if event["step"] == "ingest"]
    assert [(event["first"], event["data"]["items"]) for event in events[1:]] == [
        (60, 40),
        (100, 20),
    ]
    assert refused.check() == []


def test_taking_items_along_is_as_if_they_had_come_together(tmp_path: Path, blobs) -> None:
    spaces = []
    for name in ("together", "along"):
        workspace = Workspace.create(tmp_path / name, learner(memory=Reservoir(items=50)))
        workspace.fit(blobs(60))
        spaces.append(workspace)
    together, along = spaces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("incontrast.workspace.evaluation.failed_checks", lambda **_: ["it is Monday"])
        assert not along.update(blobs(20, seed=1)).promoted
    along.update(blobs(10, seed=2), force=True)
    together.update(torch.cat([blobs(20, seed=1), blobs(10, seed=2)]), force=True)
    assert same(weights(along), weights(together))
    assert torch.equal(along.learner().memory.keys, together.learner().memory.keys)


@pytest.mark.parametrize("where", ["append", "drop"])
def test_refused_items_outlive_an_interrupted_ingestion(
    refused: Workspace, blobs, monkeypatch, where: str
) -> None:
    if where == "append":
        cut(monkeypatch, Store, "append")
        with pytest.raises(KeyboardInterrupt):
            refused.update(blobs(20, seed=2))
    else:
        with pytest.raises(ValueError, match="vectors must have shape"):
            refused.update(torch.zeros(5, 3))
    step = refused.update()
    assert (step.version, step.promoted, step.items) == (2, False, 40)
    assert refused.update(force=True).promoted
    assert refused.learner().memory.seen == 100
    assert refused.check() == []


def test_a_superseded_candidate_goes_after_an_interruption(
    refused: Workspace, blobs, monkeypatch
) -> None:
    cut(monkeypatch, type(refused.versions), "remove")
    with pytest.raises(KeyboardInterrupt):
        refused.update(blobs(20, seed=2))
    assert refused.update(force=True).version == 3
    assert refused.versions.numbers() == [1, 3]


def test_items_are_forgotten_while_others_are_refused(refused: Workspace, blobs) -> None:
    """Of the memory and of what was refused, the first and the last of it."""
    content = refused.learner().memory.items.store.read([99])[0]
    assert refused.forget([3, 60, 99]) == 3
    assert status_of(refused)["seen"] == 59
    assert content not in refused.store_file.read_bytes()
    assert not refused.update().promoted
    step = refused.update(blobs(20, seed=2), force=True)
    assert (step.version, step.promoted) == (3, True)
    memory = refused.learner().memory
    assert memory.seen == len(memory) == status_of(refused)["seen"] == 117
    assert not {3, 60, 99} & set(memory.ids.tolist())
    assert refused.update(blobs(10, seed=3), force=True).promoted
    assert refused.learner().memory.seen == 127
    assert refused.check() == []


def test_a_forced_candidate_does_not_bring_forgotten_items_back(refused: Workspace) -> None:
    refused.forget([70, 99])
    assert refused.update(force=True).promoted
    assert refused.learner().memory.seen == status_of(refused)["seen"] == 98


def test_refused_items_that_are_all_forgotten(refused: Workspace, blobs) -> None:
    refused.forget(range(60, 100))
    step = refused.update(blobs(20, seed=2), force=True)
    assert (step.promoted, refused.learner().memory.seen) == (True, 80)


def test_forgetting_waits_for_an_interrupted_update(workspace: Workspace, blobs) -> None:
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=1), callbacks=[stopped])
    with pytest.raises(Unfinished, match="an update with data in memory is unfinished"):
        workspace.forget([1])


def test_known_items_are_left_out_and_counted(workspace: Workspace, blobs) -> None:
    """Folders that hold last week's files as well are the normal case."""
    cumulative = torch.cat([blobs(60), blobs(5, seed=1)])
    step = workspace.update(cumulative)
    assert (step.items, step.known, step.repeated) == (5, 60, False)
    assert workspace.learner().memory.seen == 65
    shuffled = cumulative[torch.randperm(65, generator=torch.Generator().manual_seed(0))]
    nothing = workspace.update(shuffled)
    assert (nothing.repeated, nothing.version, nothing.promoted) == (True, 2, True)
    assert workspace.state().phase == "idle"
    again = workspace.update(shuffled, again=True)
    assert (again.items, again.known) == (65, 0)
    # What was rolled back is not known.
    workspace.rollback(to=1)
    step = workspace.update(cumulative)
    assert (step.items, step.known) == (5, 60)


def test_known_items_include_those_that_memory_has_dropped(tmp_path: Path, blobs) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=Reservoir(items=10)))
    workspace.fit(blobs(60))
    assert workspace.update(torch.cat([blobs(60), blobs(5, seed=1)])).items == 5


def test_refused_items_are_known_as_well(refused: Workspace, blobs) -> None:
    cumulative = torch.cat([blobs(40, shift=30.0, seed=1), blobs(20, seed=2)])
    step = refused.update(cumulative, force=True)
    assert (step.items, step.known) == (60, 40)
    assert refused.learner().memory.seen == 120


def test_a_refused_candidate_is_dropped_when_asked(refused: Workspace) -> None:
    assert refused.discard()
    assert not refused.discard()
    assert refused.versions.numbers() == [1]
    assert refused.check() == []


def test_going_back_drops_a_refused_candidate(refused: Workspace) -> None:
    assert refused.rollback(to=1) == 1
    assert refused.versions.numbers() == [1]
    with pytest.raises(WorkspaceError, match="there is no unfinished update: give some data"):
        refused.update()


def test_a_limit_in_bytes_counts_what_is_stored(tmp_path: Path, blobs) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=Reservoir(bytes=1000)))
    workspace.fit(blobs(60))
    items = workspace.learner().memory.items
    assert 900 < int(items.sizes().sum()) <= 1000


def test_forgotten_items_are_gone_for_good(workspace: Workspace, blobs) -> None:
    rows = blobs(60)
    domain = workspace.learner().domain
    packed = domain.pack(domain.collect(rows), torch.arange(60))
    assert workspace.forget([3], hashes=[content_hash(packed[7]), content_hash(b"?")]) == 2
    memory = workspace.learner().memory
    assert memory.seen == len(memory) == 58
    assert not {3, 7} & set(memory.ids.tolist())
    for path in workspace.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for item in (3, 7):
                assert rows[item].numpy().tobytes() not in content
                assert content_hash(packed[item]).hex().encode() not in content
    event = workspace.journal.events()[-1]
    assert (event["step"], event["items"], event["ids"]) == ("forget", 2, [3, 7])
    with pytest.raises(WorkspaceError, match=r"no items have the ids \[60\]: ids go from 0 to 59"):
        workspace.forget([60])
    # An update does without them, as a learner would.
    plain = learner()
    plain.fit(rows)
    plain.forget([3, 7])
    workspace.update(blobs(20, seed=1))
    plain.update(blobs(20, seed=1))
    assert same(weights(workspace), plain.encoder.state_dict())


def test_an_interrupted_forgetting_is_in_the_status(workspace: Workspace, monkeypatch) -> None:
    cut(monkeypatch, Store, "remove")
    with pytest.raises(KeyboardInterrupt):
        workspace.forget([3, 4])
    assert status_of(workspace)["unfinished"].startswith("2 items to be forgotten")
    assert workspace.forget([5]) == 1
    assert status_of(workspace)["unfinished"] is None
    assert workspace.learner().memory.seen == 57


def test_what_stays_of_the_first_data_does_not_give_a_forgotten_item_away(
    workspace: Workspace, blobs
) -> None:
    """The mean of all items and the other items would."""
    rows = blobs(60).double()
    others = torch.cat([rows[:3], rows[4:]])
    workspace.forget([3])
    domain = workspace.learner().domain
    mean, std = torch.tensor(domain.mean).double(), torch.tensor(domain.std).double()
    guess = 60 * mean - others.sum(dim=0)
    assert ((guess - rows[3]).abs() / std).median() > 1.0
    assert ((mean - rows.mean(dim=0)).abs() / std).max() < 0.07  # which training does not notice


def test_a_report_waits_for_forgetting(workspace: Workspace, monkeypatch) -> None:
    """What is read of an item before it is forgotten is not written after."""
    with workspace.writing_reports():
        forgetting = Thread(target=workspace.forget, args=([3],))
        forgetting.start()
        time.sleep(0.2)
        assert 3 in workspace.learner().memory.ids  # read for a page
        workspace.report_file(1).write_text("a picture of item 3")
    forgetting.join()
    assert not workspace.report_file(1).exists()
    assert 3 not in workspace.learner().memory.ids


def test_pictures_are_kept_themselves(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for part in ("first", "later"):
        (tmp_path / part).mkdir()
        for number in range(12):
            pixels = draws.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / part / f"{number}.png")
    (tmp_path / "first" / "broken.png").write_bytes(b"no picture")
    source = read_source(tmp_path / "first", check=False)
    small = Images(8, encoder="small")
    created = Learner(small, fit_strategy=Retrain(max_epochs=1), strategy=ICL(max_epochs=1))
    workspace = Workspace.create(tmp_path / "space", created)
    with pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        workspace.fit(source, strict=True)
    step = workspace.fit(source)
    assert step.items == 12
    assert "broken.png cannot be read" in step.skipped[0]
    (tmp_path / "first" / "torn.png").write_bytes(b"")
    again = workspace.update(read_source(tmp_path / "first", check=False))
    assert again.repeated
    assert any("torn.png" in reason for reason in again.skipped)
    for path in (tmp_path / "first").iterdir():
        path.unlink()
    assert workspace.update(read_source(tmp_path / "later")).promoted
    # Paths handed over as a list are read, too.
    files = [str(path) for path in sorted((tmp_path / "later").iterdir())]
    workspace.rollback()
    workspace.update(files, force=True)
    assert not workspace.learner().memory.items.in_memory().background


def test_files_that_change_while_they_are_read(tmp_path: Path, blobs, monkeypatch) -> None:
    np.save(tmp_path / "rows.npy", blobs(60).numpy())
    workspace = Workspace.create(tmp_path / "space", learner())
    source = read_source(tmp_path / "rows.npy")
    chunks = type(source).chunks

    def meddle(self, domain, *, strict):
        yield from chunks(self, domain, strict=strict)
        os.utime(tmp_path / "rows.npy", ns=(1, 1))

    monkeypatch.setattr(type(source), "chunks", meddle)
    with pytest.raises(WorkspaceError, match="were changed while they were read: nothing was"):
        workspace.fit(source)
    monkeypatch.undo()
    assert workspace.current is None
    assert workspace.fit(read_source(tmp_path / "rows.npy")).version == 1


def test_another_kind_of_data(workspace: Workspace, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="holds images, but vectors are expected here"):
        workspace.update(read_source(tmp_path / "a.png"))
    np.save(tmp_path / "rows.npy", np.zeros((4, 3)))
    with pytest.raises(ValueError, match="has 3 columns of numbers, but 8 are expected here"):
        workspace.update(read_source(tmp_path / "rows.npy"))
    assert workspace.versions.numbers() == [1]


def test_what_cannot_be_done_yet_or_again(workspace: Workspace, tmp_path: Path, blobs) -> None:
    with pytest.raises(WorkspaceError, match="is fitted already"):
        workspace.fit(blobs(10))
    other = Workspace.create(tmp_path / "other", learner())
    with pytest.raises(WorkspaceError, match="has no encoder yet: run incontrast fit DATA"):
        other.update(blobs(10))
    with pytest.raises(WorkspaceError, match="has no encoder yet: run incontrast fit DATA"):
        other.learner()
    with pytest.raises(WorkspaceError, match="is a workspace already"):
        Workspace.create(tmp_path / "other", learner())
    with pytest.raises(WorkspaceError, match="is not empty"):
        Workspace.create(tmp_path, learner())
    with pytest.raises(WorkspaceError, match="is not a workspace: incontrast init creates one"):
        Workspace.open(tmp_path)
    with pytest.raises(ValueError, match="not fitted"):
        Workspace.create(tmp_path / "third", workspace.learner())
    with pytest.raises(ValueError, match="keep must be at least 2"):
        Workspace.create(tmp_path / "third", learner(), keep=1)


def test_the_journal_tells_what_was_done(workspace: Workspace, blobs) -> None:
    workspace.update(blobs(20, seed=1))
    events = workspace.journal.events()
    assert [event["step"] for event in events] == [
        "init",
        *("ingest", "train", "evaluate", "promote"),
        *("ingest", "train", "evaluate", "promote"),
    ]
    ingested = events[5]
    assert ingested["data"]["items"] == 20
    assert ingested["version"] == 2
    assert all(event["incontrast"] and event["time"] for event in events)
    lines = workspace.journal.path.read_text().splitlines()
    assert all(json.loads(line)["format"] == 3 for line in lines)
    assert workspace.check() == []


def test_a_domain_of_ones_own(tmp_path: Path, blobs) -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mine(Vectors):
        pass

    created = Learner(Mine(8), fit_strategy=Retrain(max_epochs=1))
    workspace = Workspace.create(tmp_path / "space", created)
    workspace.fit(blobs(30))
    with pytest.raises(ValueError, match="a Mine of your own"):
        Workspace.open(workspace.folder).learner()
    again = Workspace.open(workspace.folder, domain=Mine(8))
    assert again.update(blobs(10, seed=1), strategy=ICL(max_epochs=1)).version == 2


def stopped(progress: object) -> None:
    raise KeyboardInterrupt


def test_a_discard_that_is_cut_short_is_finished(workspace: Workspace, blobs, monkeypatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=1), callbacks=[stopped])
    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", lambda *_, **__: stopped(None))
        with pytest.raises(KeyboardInterrupt):
            workspace.discard()
    assert "being discarded" in unfinished(workspace)
    step = workspace.update(blobs(30, seed=2))  # not taken for the one that was dropped
    assert (step.items, step.promoted) == (30, True)
    # The ids of what was dropped are in the journal: they are not used again.
    assert workspace.learner().memory.ids.tolist() == [*range(60), *range(80, 110)]
    assert workspace.learner().memory.seen == 90
    assert workspace.check() == []


@dataclass(frozen=True)
class OfOnesOwn(ICL):
    pass


def test_versions_are_kept_until_there_are_too_many(tmp_path: Path, blobs) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=Reservoir(items=20)), keep=5)
    workspace.fit(blobs(30))
    for number in range(2, 8):
        workspace.update(blobs(5, seed=number), force=True)
        assert workspace.versions.numbers() == list(range(1, number + 1))[-5:]
        for version in workspace.versions.numbers():
            assert len(workspace.learner(version).memory) == 20


def test_a_candidate_costs_no_version_its_place(tmp_path: Path, blobs, monkeypatch) -> None:
    workspace = Workspace.create(tmp_path / "space", learner(memory=Reservoir(items=20)), keep=2)
    workspace.fit(blobs(30))
    workspace.update(blobs(5, seed=1), force=True)
    with monkeypatch.context() as patch:
        patch.setattr("incontrast.workspace.evaluation.failed_checks", lambda **_: ["it is Monday"])
        assert not workspace.update(blobs(5, seed=2)).promoted
    with pytest.raises(WorkspaceError, match="there is no version 7"):
        workspace.rollback(to=7)  # anything that clears away first
    assert workspace.versions.numbers() == [1, 2, 3]
    assert workspace.rollback(to=1) == 1


def test_a_candidate_whose_evaluation_is_damaged_can_be_discarded(
    refused: Workspace, blobs
) -> None:
    (refused.versions.folder(2) / "evaluation.json").write_text("{")
    assert len(refused.check()) == 1
    assert refused.discard()
    assert refused.update(blobs(20, seed=3)).promoted


def test_a_rollback_run_again_goes_no_further(workspace: Workspace, blobs, monkeypatch) -> None:
    """Whoever was killed while it ran cannot know whether it had finished."""
    for seed in (1, 2):
        workspace.update(blobs(10, seed=seed))
    cut(monkeypatch, Journal, "add")
    with pytest.raises(KeyboardInterrupt):
        workspace.rollback()
    assert workspace.current == 2
    for _ in range(2):
        assert workspace.rollback() == 2
    assert [event["step"] for event in workspace.journal.events()][-1] == "rollback"
    workspace.update(blobs(10, seed=3))
    assert workspace.rollback() == 2
    assert workspace.rollback(to=2) == 2
    assert workspace.rollback() == 1


def cut(monkeypatch, owner: type, method: str, when=lambda *_, **__: True) -> None:
    """Let the next run end before this method does anything."""
    whole = getattr(owner, method)

    def end(*arguments, **options):
        if not when(*arguments, **options):
            return whole(*arguments, **options)
        monkeypatch.setattr(owner, method, whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, method, end)


def test_the_same_command_finishes_after_the_switch(tmp_path: Path, blobs, monkeypatch) -> None:
    workspace = Workspace.create(tmp_path / "space", learner())
    first, second = blobs(40), blobs(20, seed=1)
    cut(monkeypatch, StateMachine, "_finish")
    with pytest.raises(KeyboardInterrupt):
        workspace.fit(first)
    assert workspace.fit(first).version == 1  # not: it is fitted already
    for options in ({"items": None}, {"items": second, "again": True}):
        workspace.rollback(to=1)
        cut(monkeypatch, StateMachine, "_finish")
        with pytest.raises(KeyboardInterrupt):
            workspace.update(second)
        step = workspace.update(**options)
        assert (step.promoted, step.items) == (True, 20)
        assert workspace.learner().memory.seen == 60
    steps = [event["step"] for event in workspace.journal.events()]
    assert steps.count("promote") == 3


def test_what_passed_its_checks_is_not_discarded_for_other_data(
    workspace: Workspace, blobs, monkeypatch
) -> None:
    cut(monkeypatch, StateMachine, "promote")
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=1))
    assert unfinished(workspace) == "an update with data in memory, to be promoted"
    with pytest.raises(Unfinished, match="is unfinished: incontrast update resumes it"):
        workspace.update(blobs(20, seed=2))
    assert workspace.update().version == 2


@pytest.mark.parametrize("step", ["ingest", "train", "evaluate", "promote"])
def test_no_line_of_the_journal_is_lost(
    workspace: Workspace, blobs, monkeypatch, step: str
) -> None:
    cut(monkeypatch, Journal, "add", lambda journal, event: event["step"] == step)
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=1))
    workspace.update()
    steps = [event["step"] for event in workspace.journal.events() if event.get("version") == 2]
    assert steps == ["ingest", "train", "evaluate", "promote"]


def test_the_ids_of_a_number_that_was_discarded_before_are_in_the_journal(
    workspace: Workspace, blobs, monkeypatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(20, seed=1), callbacks=[stopped])
    workspace.discard()
    cut(monkeypatch, Journal, "add")
    with pytest.raises(KeyboardInterrupt):
        workspace.update(blobs(10, seed=2))
    assert workspace.update().version == 2
    events = [event for event in workspace.journal.events() if event["step"] == "ingest"]
    assert [(event["version"], event["first"]) for event in events] == [(1, 0), (2, 60), (2, 80)]


def test_forgetting_that_is_cut_short_is_finished(workspace: Workspace, blobs, monkeypatch) -> None:
    workspace.reports.mkdir()
    page = workspace.reports / "version-1.html"
    page.write_text("a picture of item 3")
    content = workspace.learner().memory.items.store.read([3])[0]
    cut(monkeypatch, Store, "remove")
    with pytest.raises(KeyboardInterrupt):
        workspace.forget(hashes=[content_hash(content)])
    assert workspace.update(blobs(10, seed=1)).promoted
    assert 3 not in workspace.learner().memory.ids
    assert not page.exists()
    assert content not in workspace.store_file.read_bytes()
    assert workspace.journal.events()[-5]["step"] == "forget"


def test_a_creation_that_was_interrupted_starts_over(tmp_path: Path, blobs, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("incontrast.workspace.workspace.write_json", lambda *_: stopped(None))
        with pytest.raises(KeyboardInterrupt):
            Workspace.create(tmp_path / "space", learner())
    with pytest.raises(WorkspaceError, match="is not a workspace"):
        Workspace.open(tmp_path / "space")
    (tmp_path / "space" / "memory.sqlite-journal").touch()
    (tmp_path / "space" / ".workspace.json.123").touch()
    assert Workspace.create(tmp_path / "space", learner()).fit(blobs(30)).promoted
    assert Workspace.open(tmp_path / "space").fit(blobs(30)).repeated
    assert workspace_steps(tmp_path / "space")[0] == "init"


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    for name in ("journal.jsonl", "memory.sqlite"):
        (tmp_path / name).write_text("somebody else's")
    with pytest.raises(WorkspaceError, match="is not empty"):
        Workspace.create(tmp_path, learner())
    assert (tmp_path / "journal.jsonl").read_text() == "somebody else's"


def workspace_steps(folder: Path) -> list[str]:
    return [event["step"] for event in Workspace.open(folder).journal.events()]


def test_a_strategy_of_ones_own_is_needed_again(workspace: Workspace, blobs) -> None:
    own, rows = OfOnesOwn(max_epochs=2), blobs(20, seed=1)
    with pytest.raises(KeyboardInterrupt):
        workspace.update(rows, strategy=own, callbacks=[stopped])
    with pytest.raises(
        Unfinished, match="begun with OfOnesOwn, which is or has a part of your own: pass it again"
    ):
        workspace.update(rows)
    assert workspace.update(rows, strategy=own).promoted


def test_a_reader_does_not_disturb_an_update(workspace: Workspace, blobs) -> None:
    reader = sqlite3.connect(workspace.store_file, isolation_level=None)
    reader.execute("begin")
    reader.execute("select * from items").fetchall()
    assert workspace.update(blobs(20, seed=1)).promoted
    reader.close()
    assert workspace.update(blobs(20, seed=2)).promoted
    log = workspace.store_file.with_name("memory.sqlite-wal")
    assert not log.exists() or log.stat().st_size == 0


def test_a_first_process_that_fails_alone_tells_the_others(workspace: Workspace) -> None:
    sent = []

    def failing(where: str) -> Update:
        run = Update(workspace=workspace, kind="update")
        run._send = lambda message, payload=None: sent.append((message, payload))

        def fail(*_) -> None:
            raise ValueError(f"in {where}")

        run._prepare = fail if where == "a decision" else lambda items: workspace.state()
        run._evaluate = fail
        return run

    with pytest.raises(ValueError, match="in a decision"):
        failing("a decision").run(None, None)
    assert sent == [("failed", "in a decision")]
    with pytest.raises(ValueError, match="in what all do"):
        failing("what all do").run(None, None)
    assert [message for message, _ in sent[1:]] == ["done"]  # the others have failed with it
