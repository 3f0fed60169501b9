"""A kill at any point of an update costs nothing: the same command ends with the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def faults(folder: Path, how: str, what: str) -> dict[str, Any]:
    program = Path(__file__).with_name("faults.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(folder), how, what],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["inconsistent"] == []
    assert report["different"] == []
    return report


def test_an_update_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    report = faults(tmp_path, "kill", "update")
    assert report["faults"] > 30
    assert set(report["promotions"]) == {4}  # the journal has each once


def test_forgetting_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    assert faults(tmp_path, "kill", "forget")["faults"] > 5
