"""What updates add to the memory of a process, each in a process of its own.

python benchmarks/memory.py FOLDER    # the folder of data sets, as for `python -m paper run`
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import incontrast as ic
from paper.machine import AddedMemory
from paper.sets import SMALL
from paper.strategies import STRATEGIES

SETS = ("mnist-2", "proteins", "reddit", "mnist-class")
NAMES = ("retraining", "fine-tuning", "replay", "distillation", "paper", "warm-start", "icl")


def measure(folder: str, name: str, strategy: str) -> None:
    """One epoch of an update; the memory of later ones is the same."""
    torch.set_num_threads(1)
    data = SMALL[name]
    splits = data.splits(Path(folder), 0.3, seed=0)
    learner = ic.Learner(data.domain, fit_strategy=ic.Retrain(max_epochs=1), seed=0)
    learner.fit(splits.old.items)
    memory = AddedMemory()
    learner.update(splits.new.items, strategy=STRATEGIES[strategy].make(1e-3, max_epochs=1))
    print(memory.bytes())


def main(folder: str) -> None:
    print("MB added by one epoch of an update (α = 0.3), measuring the evaluation loss included")
    print(f"{'strategy':<16}" + "".join(f"{name:>13}" for name in SETS))
    for strategy in NAMES:
        print(f"{strategy:<16}", end="")
        for name in SETS:
            command = [sys.executable, __file__, folder, name, strategy]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{int(done.stdout) / 2**20:>13.0f}", end="", flush=True)
        print()


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) == 4 else main(sys.argv[1])
