"""Updates that train only where new items differ from old ones."""

from __future__ import annotations

import copy

import pytest
import torch

import incontrast as ic
from incontrast.memory.store import Store
from incontrast.training.loop import TrainingDiverged


def rows() -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randn(360, 8, generator=draws) + 4 * torch.eye(8)[torch.arange(360) % 3]


@pytest.fixture(scope="module")
def fitted() -> tuple[ic.Learner, torch.Tensor]:
    """A learner of 300 rows in three groups, and 60 rows like them."""
    learner = ic.Learner(ic.Vectors(8), fit_strategy=ic.Retrain(max_epochs=3))
    learner.fit(rows()[:300])
    return learner, rows()[300:]


def weights(learner: ic.Learner) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.encoder.parameters()]


def update(learner: ic.Learner, new: torch.Tensor, **how: bool) -> tuple[ic.Learner, ic.Outcome]:
    twin = copy.deepcopy(learner)
    return twin, twin.update(new, strategy=ic.ICL(max_epochs=1, epoch_steps=1), **how)


def test_items_like_the_old_ones_are_remembered_and_train_nothing(fitted) -> None:
    learner, alike = fitted
    after, outcome = update(learner, alike, only_if_drift=True)
    assert outcome.steps == 0
    assert isinstance(outcome.strategy, ic.NoUpdate)
    assert all(map(torch.equal, weights(learner), weights(after)))
    assert (after.memory.seen, after.version) == (360, 2)
    assert update(learner, alike)[1].steps > 0


def test_items_that_differ_train(fitted) -> None:
    learner, alike = fitted
    _, outcome = update(learner, alike - 8.0, only_if_drift=True)
    assert outcome.steps > 0


def test_too_few_items_to_tell_train(fitted) -> None:
    learner, alike = fitted
    _, outcome = update(learner, alike[:20], only_if_drift=True)
    assert outcome.steps > 0


def test_a_workspace_promotes_the_same_encoder(fitted, tmp_path) -> None:
    learner, alike = fitted
    space = ic.Workspace.create(
        tmp_path / "space", ic.Learner(learner.initial_domain, fit_strategy=learner.fit_strategy)
    )
    space.fit(rows()[:300])
    step = space.update(alike, only_if_drift=True)
    assert step.promoted
    assert step.outcome["steps"] == 0
    before, after = (space.learner(version) for version in (1, 2))
    assert all(map(torch.equal, weights(before), weights(after)))
    assert after.memory.seen == 360


def test_a_store_is_read_no_more_often_than_without_it(fitted, tmp_path, monkeypatch) -> None:
    learner, alike = fitted
    space = ic.Workspace.create(
        tmp_path / "space", ic.Learner(learner.initial_domain, fit_strategy=learner.fit_strategy)
    )
    space.fit(rows()[:300])
    read: list[int] = []
    of_store = Store.read

    def noted(store: Store, ids: list[int]) -> list[bytes]:
        read.extend(ids)
        return of_store(store, ids)

    monkeypatch.setattr(Store, "read", noted)
    counts = []
    for new, flag in ((alike, False), (alike + 0.01, True)):
        read.clear()
        space.update(new, strategy=ic.ICL(max_epochs=1), only_if_drift=flag, force=True)
        counts.append(read.count(0))  # of the first item
    assert counts[1] <= counts[0]


def test_what_was_refused_is_tried_again_only_if_it_has_drifted(fitted, tmp_path) -> None:
    learner, alike = fitted
    bad = ic.FineTune(max_epochs=30, lr=1.0, ema_decay=0.0)
    usual = ic.Learner(learner.initial_domain, fit_strategy=learner.fit_strategy)
    space = ic.Workspace.create(tmp_path / "space", usual, tolerance=0.0)
    space.fit(rows()[:300])
    assert not space.update(alike, strategy=bad).promoted
    again = space.update(alike, only_if_drift=True)
    assert (again.version, again.outcome["strategy"], again.promoted) == (3, "NoUpdate", True)


def test_what_has_diverged_is_tried_again_only_if_it_has_drifted(fitted, tmp_path) -> None:
    learner, alike = fitted
    usual = ic.Learner(learner.initial_domain, fit_strategy=learner.fit_strategy)
    space = ic.Workspace.create(tmp_path / "space", usual)
    space.fit(rows()[:300])
    with pytest.raises(TrainingDiverged):
        space.update(alike, strategy=ic.FineTune(max_epochs=2, lr=1e38))
    again = space.update(only_if_drift=True)
    assert (again.version, again.outcome["strategy"], again.promoted) == (2, "NoUpdate", True)
