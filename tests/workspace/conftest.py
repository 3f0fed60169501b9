"""Data that come later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def later(tmp_path: Path, blobs) -> Path:
    np.save(tmp_path / "later.npy", blobs(20, seed=2).numpy())
    return tmp_path / "later.npy"
