"""A hundred random kills of updates: a hundred consistent workspaces, and the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_hundred_random_kills(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "workspace" / "killing.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path), "random", "100"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EPOCHS": "40"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] >= 100
    assert report["inconsistent"] == []
    assert report["different"] == []
