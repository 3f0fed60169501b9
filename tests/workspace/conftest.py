"""A small workspace that is created once, and copied for every test that wants one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from incontrast import ICL, Learner, Retrain, Vectors, Workspace


@pytest.fixture(scope="session")
def created(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    """A workspace with two versions, to copy."""
    folder = tmp_path_factory.mktemp("created") / "space"
    learner = Learner(
        Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=1), strategy=ICL(max_epochs=1)
    )
    workspace = Workspace.create(folder, learner)
    workspace.fit(blobs(40))
    workspace.update(blobs(20, seed=1), force=True)
    return folder


@pytest.fixture
def space(created: Path, tmp_path: Path) -> Workspace:
    shutil.copytree(created, tmp_path / "space")
    return Workspace.open(tmp_path / "space")


@pytest.fixture
def later(tmp_path: Path, blobs) -> Path:
    np.save(tmp_path / "later.npy", blobs(20, seed=2).numpy())
    return tmp_path / "later.npy"
