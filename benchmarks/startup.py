"""How long commands take that train nothing, in fresh processes, beside what importing torch takes.

    python benchmarks/startup.py [rounds]

The workspace has two versions of a small encoder of vectors.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROUNDS = int(sys.argv[1]) if sys.argv[1:] else 7
PUBLIC = "import torch, incontrast; [getattr(incontrast, name) for name in incontrast.__all__]"
PYTHON = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch, incontrast": ["-c", "import torch, incontrast"],
    "import torch, then every public name": ["-c", PUBLIC],
}
COMMANDS = (
    *("--help", "update --help", "compare --help"),
    *("status", "status --check", "config", "log", "report", "history"),
    *("rollback --to 1", "rollback --to 2", "forget 0"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INCONTRAST_WORKSPACE"] = f"{folder}/space"
        rows = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
        for name, part in (("old", rows[:80]), ("new", rows[80:])):
            np.save(Path(folder) / f"{name}.npy", part)
        cli("init", f"{folder}/space", "--like", f"{folder}/old.npy", "--fit-epochs", "2")
        cli("fit", f"{folder}/old.npy")
        cli("update", f"{folder}/new.npy", "--epochs", "2", "--force")
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            for name, arguments in PYTHON.items():
                times.setdefault(name, []).append(seconds(*arguments))
            for command in COMMANDS:
                taken = cli(*command.split())
                times.setdefault(f"incontrast {command}", []).append(taken)
    print(f"{'median of ' + str(ROUNDS):<40}  seconds  of a processor")
    for name, values in times.items():
        wall, processor = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"{name:<40}{wall:9.2f}{processor:16.2f}")


def cli(*arguments: str) -> tuple[float, float]:
    return seconds("-m", "incontrast", *arguments)


def seconds(*arguments: str) -> tuple[float, float]:
    """By the clock, and of a processor, which other work on the machine disturbs less."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    used = after.children_user + after.children_system
    return time.perf_counter() - begin, used - before.children_user - before.children_system


if __name__ == "__main__":
    main()
