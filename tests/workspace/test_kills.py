"""A kill at any point of an update costs nothing: the same command goes on to the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_an_update_survives_a_kill_before_every_write(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killing.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path), "points"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] > 30
    assert report["inconsistent"] == []
    assert report["different"] == []
    assert set(report["promotions"]) == {3}  # the journal tells of each once
