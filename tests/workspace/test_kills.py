"""A kill at any point of an update costs nothing: the same command ends with the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def killed(folder: Path, how: str) -> dict[str, Any]:
    program = Path(__file__).with_name("killing.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(folder), how],
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
    report = killed(tmp_path, "points")
    assert report["kills"] > 30
    assert set(report["promotions"]) == {4}  # the journal tells of each once


def test_forgetting_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    assert killed(tmp_path, "forget")["kills"] > 5
