"""How long it takes to import the package and to answer --help, in fresh processes.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch, incontrast": ["-c", "import torch, incontrast"],
    "import torch, then every public name": [
        "-c",
        "import torch, incontrast; [getattr(incontrast, name) for name in incontrast.__all__]",
    ],
    "incontrast --help": ["-m", "incontrast", "--help"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - begin)
    for name, values in times.items():
        print(f"{name:<40}{statistics.median(values):6.2f} s")


if __name__ == "__main__":
    main()
