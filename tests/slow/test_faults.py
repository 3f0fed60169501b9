"""Kills, full disks, damaged files and races, for every command: nothing lost, nothing wrong.

A share of the full counts by default; ``FAULTS=1 pytest tests/slow/test_faults.py`` runs all of
them, for an estimated half hour of one idle core.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.workspace.test_kills import faults

SHARE = float(os.environ.get("FAULTS", "0.05"))
COUNTS = {
    "kills": 1000,
    "full": 100,
    "power": 200,
    "training": 32,
    "workspaces": 2000,
    "learners": 4000,
    "inputs": 4000,
    "races": 300,
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", sorted(COUNTS))
def test_no_fault_loses_anything_or_gives_a_wrong_result(tmp_path: Path, how: str) -> None:
    count = max(10, round(SHARE * COUNTS[how]))
    assert faults(tmp_path, how, count)["cases"] == count
