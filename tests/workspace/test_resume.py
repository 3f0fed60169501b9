"""An update that is killed while it trains resumes from its last checkpoint."""

from __future__ import annotations

import pytest
import torch

import incontrast as ic
from incontrast.training import resume


class Killed(BaseException):
    """Like SIGKILL: nothing may catch it."""


@pytest.fixture
def every_step(monkeypatch) -> None:
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", float("inf"))


def workspace(folder) -> ic.Workspace:
    learner = ic.Learner(
        ic.Vectors(8, hidden=16, out=8),
        strategy=ic.ICL(max_epochs=6),
        fit_strategy=ic.Retrain(max_epochs=6),
        memory=ic.Reservoir(items=50),
        seed=0,
    )
    return ic.Workspace.create(folder, learner)


def killed_after(steps: int, seen: list[int]):
    def progress(progress: ic.Progress) -> None:
        seen.append(progress.steps)
        if progress.steps >= steps:
            raise Killed

    return progress


def weights(space: ic.Workspace) -> dict[str, torch.Tensor]:
    return space.learner().encoder.state_dict()


def test_training_resumes_where_it_was_killed(tmp_path, blobs, every_step) -> None:
    straight, broken = workspace(tmp_path / "a"), workspace(tmp_path / "b")
    for space in (straight, broken):
        for command, rows in (("fit", blobs(80)), ("update", blobs(40, shift=1.0))):
            run = getattr(space, command)
            if space is broken:
                for steps in (3, 5):
                    with pytest.raises(Killed):
                        run(rows, progress=killed_after(steps, []))
                    assert space.training_file.exists()
                    rows = None  # resumes without the data
            seen: list[int] = []
            run(rows, force=True, progress=killed_after(10_000, seen))
            assert min(seen) >= (4 if space is broken else 1)
            assert not space.training_file.exists()
    expected = weights(straight)
    for name, value in weights(broken).items():
        assert torch.equal(value, expected[name]), name


def test_discarding_an_update_leaves_no_training_state(tmp_path, blobs, every_step) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    with pytest.raises(Killed):
        space.update(blobs(40), progress=killed_after(3, []))
    assert space.discard()
    assert not space.training_file.exists()


def test_a_budget_too_small_keeps_what_was_ingested(tmp_path, blobs) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    with pytest.raises(ValueError, match=r"budget of .* seconds is too small"):
        space.update(blobs(40), budget=ic.Budget(seconds=1e-6))
    assert space.state().resumable
    step = space.update(force=True, budget=ic.Budget(forward_passes=1_000))
    assert step.promoted
    assert step.items == 40
    assert step.outcome["forward_passes"] <= 1_400
