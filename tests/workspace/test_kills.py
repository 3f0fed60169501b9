"""A kill at any point of a command costs nothing: run again, it ends with the same weights."""

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


def test_commands_survive_a_kill_before_every_write_and_after_the_last(tmp_path: Path) -> None:
    faults(tmp_path, "states:update,forget,rollback", "every")
    lines = (tmp_path / "states:update,forget,rollback.jsonl").read_text().splitlines()
    names = [json.loads(line)["what"] for line in lines]
    assert names.count("update") > 15
    assert names.count("forget") > 5
    assert names.count("rollback") > 5
