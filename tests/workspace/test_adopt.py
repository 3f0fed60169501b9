"""Workspaces that begin with an encoder trained elsewhere, and code that they name."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from incontrast import ICL, Images, ImportPath, KeepAll, Learner, Reservoir, Vectors, Workspace
from incontrast.import_path import Untrusted
from incontrast.workspace.files import Unfinished, WorkspaceError
from incontrast.workspace.status import status_of

NETWORK = ImportPath("torch.nn:Linear", {"in_features": 8, "out_features": 4})
SHORT = ICL(max_epochs=1)


@pytest.fixture(autouse=True)
def no_permissions(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def create(tmp_path, memory=None, **settings) -> Workspace:
    learner = Learner(Vectors(8, encoder=NETWORK, **settings), strategy=SHORT, memory=memory)
    return Workspace.create(tmp_path / "workspace", learner)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(8, 4).state_dict()


def test_an_adopted_encoder_is_the_first_version_and_is_updated(blobs, tmp_path) -> None:
    workspace = create(tmp_path)
    step = workspace.adopt(blobs(60), weights=weights())
    assert (step.version, step.promoted, step.items) == (1, True, 60)
    learner = workspace.learner()
    assert torch.equal(learner.encoder.weight, weights()["weight"])
    assert (len(learner.memory), learner.memory.seen) == (60, 60)
    assert workspace.update(blobs(20) + 1.0).version == 2
    assert workspace.rollback() == 1


def test_a_probe_judges_what_is_adopted(blobs, tmp_path) -> None:
    rows = blobs(40)
    table = tmp_path / "probe.csv"
    lines = [",".join([*map(str, row), "high" if row[0] > 0 else "low"]) for row in rows.tolist()]
    table.write_text("\n".join(["a,b,c,d,e,f,g,h,label", *lines]))
    step = create(tmp_path).adopt(rows, weights=weights(), probe=table)
    scores = step.outcome["probe"]
    assert scores["before"] == scores["after"]


def test_a_sample_stands_for_what_was_seen_in_every_later_version(blobs, tmp_path) -> None:
    workspace = create(tmp_path, Reservoir())
    workspace.adopt(blobs(60), weights=weights(), seen_count=600)
    assert workspace.state().memory == {"kept": 60, "seen": 600}
    step = workspace.update(blobs(200, seed=1) + 1.0)
    assert step.outcome["growth_ratio"] == pytest.approx(200 / 800)
    memory = Workspace.open(workspace.folder).learner().memory
    assert memory.seen == 800
    assert int((memory.ids < 60).sum()) == 60
    assert 2 <= int((memory.ids >= 60).sum()) <= 45  # a tenth of 200, give or take 5 spreads


def test_a_sample_needs_a_memory_that_can_continue_it(blobs, tmp_path) -> None:
    workspace = create(tmp_path, KeepAll())
    with pytest.raises(ValueError, match=r"KeepAll\(\) cannot continue"):
        workspace.adopt(blobs(60), seen_count=600)
    assert workspace.state().phase == "idle"


def test_only_a_workspace_without_an_encoder_adopts_one(blobs, tmp_path) -> None:
    workspace = create(tmp_path)
    workspace.adopt(blobs(60), weights=weights())
    with pytest.raises(WorkspaceError, match="is fitted already"):
        workspace.adopt(blobs(50, seed=2), weights=weights())


def test_weights_that_do_not_fit_leave_nothing_behind(blobs, tmp_path) -> None:
    workspace = create(tmp_path)
    with pytest.raises(ValueError, match="the weights do not fit"):
        workspace.adopt(blobs(60), weights=nn.Linear(8, 5).state_dict())
    assert workspace.state().phase == "idle"
    assert workspace.adopt(blobs(60), weights=weights()).promoted


def test_an_adoption_that_was_interrupted_resumes(blobs, tmp_path, monkeypatch) -> None:
    workspace = create(tmp_path, Reservoir())

    def interrupted(*_, **__) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "adopt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workspace.adopt(blobs(60), weights=weights(), seen_count=120)
    message = r"an adoption .* is unfinished: incontrast adopt DATA with its options resumes it"
    with pytest.raises(Unfinished, match=message):
        workspace.fit(blobs(60))
    about = status_of(workspace)
    assert about["unfinished"].startswith("an adoption with data in memory, interrupted before it")
    assert "incontrast adopt DATA with its options resumes it" in about["advice"]
    step = Workspace.open(workspace.folder).adopt(blobs(60), weights=weights())
    assert step.promoted
    assert workspace.state().memory == {"kept": 60, "seen": 120}


def test_code_is_permitted_to_who_created_the_workspace_and_to_who_trusts_it(
    blobs, tmp_path, monkeypatch
) -> None:
    workspace = create(tmp_path)
    workspace.adopt(blobs(60), weights=weights())
    assert Workspace.open(workspace.folder).learner().version == 1  # its creator
    moved = shutil.copytree(workspace.folder, tmp_path / "moved")
    with pytest.raises(Untrusted, match=r"names code that would run here: torch\.nn:Linear\."):
        Workspace.open(moved).learner()
    assert Workspace.open(moved).current == 1  # what runs no code needs no permission
    assert Workspace.open(moved, trust=True).learner().version == 1
    assert Workspace.open(moved).learner().version == 1  # it is remembered
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody else"))
    with pytest.raises(Untrusted):
        Workspace.open(workspace.folder).update(blobs(20))


def test_configuring_permits_only_the_code_that_it_names(tmp_path) -> None:
    moved = shutil.copytree(create(tmp_path).folder, tmp_path / "moved")
    for change in ("tolerance=0.1", "head=torch.nn:Identity"):
        with pytest.raises(Untrusted, match=r"would run here: .*torch\.nn:Linear"):
            Workspace.open(moved).configure(change)
        with pytest.raises(Untrusted):
            Workspace.open(moved).template()
    Workspace.open(moved, trust=True).configure("tolerance=0.1")
    Workspace.open(moved).template()
    plain = Workspace.create(tmp_path / "plain", Learner(Vectors(8)))
    plain.configure("head=torch.nn:Identity")
    Workspace.open(plain.folder).template()  # one's own change


def test_a_workspace_without_code_asks_for_nothing(blobs, tmp_path) -> None:
    workspace = Workspace.create(tmp_path / "plain", Learner(Vectors(8), strategy=SHORT))
    workspace.adopt(blobs(40))
    assert not (tmp_path / "config").exists()
    assert Workspace.open(workspace.folder).learner().version == 1


def test_images_keep_their_sizes_when_adopted(tmp_path) -> None:
    flatten = Images(8, 1, encoder="torch.nn:Flatten")
    workspace = Workspace.create(tmp_path / "images", Learner(flatten))
    pixels = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    workspace.adopt(pixels)
    assert workspace.learner().embed(pixels).shape == (20, 64)
