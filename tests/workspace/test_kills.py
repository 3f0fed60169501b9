"""A kill at any point of an update costs nothing: the same command ends with the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def faults(folder: Path, how: str, count: object) -> dict[str, Any]:
    program = Path(__file__).with_name("faults.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(folder), how, str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["wrong"] == []
    return report


def test_an_update_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    assert faults(tmp_path, "kills:update", "every")["killed"] > 30


def test_forgetting_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    assert faults(tmp_path, "kills:forget", "every")["killed"] > 5


def test_a_rollback_survives_a_kill_before_every_write_and_after_the_last(tmp_path: Path) -> None:
    assert faults(tmp_path, "kills:rollback", "every")["killed"] > 5
