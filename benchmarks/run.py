"""The quick benchmarks, one after the other; their output goes to benchmarks/results as well.

    make bench

The comparison of strategies takes hours and has a command of its own: benchmarks/parity.py.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
QUICK = ("startup", "image_views", "graphs", "step", "growth")


def main() -> None:
    (HERE / "results").mkdir(exist_ok=True)
    for name in QUICK:
        print(f"\n## {name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr, flush=True)
        if done.returncode == 0:
            made = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}"
            text = (
                f"$ python benchmarks/{name}.py\n({made}, {os.cpu_count()} cores)\n\n{done.stdout}"
            )
            (HERE / "results" / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
