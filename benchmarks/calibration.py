"""What the batches that set BatchNorm's statistics do to the loss of a fitted encoder.

python benchmarks/calibration.py FOLDER    # the folder of data sets, as for `python -m paper run`
"""

from __future__ import annotations

import copy
import statistics
import sys
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import incontrast as ic
from incontrast.evaluate import measure
from incontrast.training import averages
from incontrast.training.task import Increment, Task
from paper.sets import SMALL

SETS, SEEDS, DRAWS, EPOCHS = ("reddit", "proteins", "mnist-class"), 3, 5, 60
SIZES = (64, 256, 1024)  # items in a batch; as it is, and larger


def calibrated(task: Task, encoder: nn.Module, size: int) -> nn.Module:
    with (
        mock.patch.object(averages, "SIZE", size),
        mock.patch.object(averages, "BATCHES", max(averages.CALIBRATED // size, 1)),
    ):
        averages.calibrate(task, encoder)
    return encoder.eval()


def losses(name: str, folder: Path, seed: int) -> dict[int, list[float]]:
    """The evaluation loss over X′ of one encoder, by the size of batches and draws of them."""
    data = SMALL[name]
    splits = data.splits(folder, 0.3, seed)
    learner = ic.Learner(data.domain, fit_strategy=ic.Retrain(max_epochs=EPOCHS), seed=seed)
    learner.fit(splits.old.items)
    old, new = (learner.domain.collect(part.items) for part in (splits.old, splits.new))
    increment = Increment(old, new, learner.memory.seen)
    shared = {"objective": learner.objective, "engine": learner.engine}
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    for size in SIZES:
        for draw in range(DRAWS):
            encoder = copy.deepcopy(learner.encoder)
            task = Task(encoder, learner.domain, increment, seed=draw, **shared)
            calibrated(task, encoder, size)
            population = measure(encoder, learner.domain, increment, sample=data.sample, **shared)
            found[size].append(population.evaluation_loss().all)
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    print(f"evaluation loss over X′, {DRAWS} draws of items; spread: highest - lowest")
    print(f"{'data':<14}{'seed':>5}" + "".join(f"{f'{s} items':>14}{'spread':>8}" for s in SIZES))
    for name in SETS:
        for seed in range(SEEDS):
            found = losses(name, folder, seed)
            figures = (
                f"{statistics.fmean(values):>14.3f}{max(values) - min(values):>8.3f}"
                for values in found.values()
            )
            print(f"{name:<14}{seed:>5}" + "".join(figures), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
