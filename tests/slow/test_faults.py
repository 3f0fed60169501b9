"""Kills, full disks, damaged files and races, for every command: nothing lost, nothing wrong.

``FAULTS=10000 pytest tests/slow/test_faults.py`` tries more than the usual number of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAULTS = int(os.environ.get("FAULTS", "300"))
COMMANDS = ("update", "join", "retry", "discard", "rollback", "forget", "forget_refused", "embed")

pytestmark = pytest.mark.slow


def faults(folder: Path, how: str, what: object, **settings: str) -> dict[str, Any]:
    program = Path(__file__).parents[1] / "workspace" / "faults.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(folder), how, str(what)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("how", ["kill", "full"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_fault_at_every_write(tmp_path: Path, command: str, how: str) -> None:
    report = faults(tmp_path, how, command)
    assert report["faults"] > 5
    assert (report["inconsistent"], report["different"]) == ([], [])


def test_kills_at_random_moments(tmp_path: Path) -> None:
    report = faults(tmp_path, "random", max(100, FAULTS // 10), EPOCHS="40")
    assert (report["inconsistent"], report["different"]) == ([], [])


def test_no_damaged_file_gives_a_wrong_result_or_a_traceback(tmp_path: Path) -> None:
    report = faults(tmp_path, "damage", FAULTS)
    assert report["wrong"] == []


def test_processes_at_once_leave_a_workspace_whole(tmp_path: Path) -> None:
    report = faults(tmp_path, "races", max(100, FAULTS // 30))
    assert report["wrong"] == []
