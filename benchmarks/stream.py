"""Ten updates of 1 % each in one workspace, against retraining on everything each time.

    python benchmarks/stream.py run [--items 48000] [--epochs 20] [--seeds 0]
    python benchmarks/stream.py show

MNIST's digits 0 to 7 are there at first; 8 and 9 arrive in ten parts. The reservoir keeps a tenth
of what was seen. Measured on digits that no encoder has seen, with everything as the corpus: kNN
accuracy and precision@10. The cost is counted in forward passes: those of ten updates against those
of ten retrainings, of which the last one is run. Warm start has as many as the updates. One row per
seed in results/stream.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import incontrast as ic
import real_data
from incontrast.data import Labelled, mnist
from parity import neighbours

ROWS = Path(__file__).parent / "results" / "stream.jsonl"
PARTS = 10
SHARE = 0.01  # of what is there at first, in each part
RETRAINING = ic.Retrain(batch_size=128, lr=ic.Fixed(4e-3), max_epochs=15, patience=None)

WARM_START = ic.WarmStart(lr=2e-3, batch_size=96, max_epochs=1_000_000, patience=None)


def parts(items: int, seed: int) -> tuple[Labelled, list[Labelled], Labelled]:
    """What is there at first, what arrives, and unseen digits."""
    seen, unseen = (mnist(real_data.folder() / "MNIST", train=train) for train in (True, False))
    draws = torch.Generator().manual_seed(seed)
    seen = seen.select(torch.randperm(len(seen), generator=draws))
    late = np.isin(seen.labels, (8, 9))
    first = seen.select(~late)
    first = first.select(np.arange(min(items, len(first))))
    size = round(SHARE * len(first))
    new = seen.select(late)
    arriving = [new.select(np.arange(k * size, (k + 1) * size)) for k in range(PARTS)]
    return first, arriving, unseen.select(torch.randperm(len(unseen), generator=draws)[:2000])


def quality(learner: ic.Learner, corpus: Labelled, unseen: Labelled) -> dict[str, float]:
    stored, late = learner.embed(corpus.items), np.isin(unseen.labels, (8, 9))
    right, precise = neighbours(
        stored, corpus.labels, learner.embed(unseen.items), unseen.labels, None
    )
    found = {}
    for name, chosen in (("old", ~late), ("new", late)):
        found[f"knn_{name}"] = round(float(right[chosen].mean()), 4)
        found[f"precision_{name}"] = round(float(precise[chosen].mean()), 4)
        items = unseen.select(chosen).items
        found[f"loss_{name}"] = round(learner.evaluation_loss(items, sample=500).old, 4)
    return found


def run(items: int, epochs: int, seed: int) -> dict[str, Any]:
    first, arriving, unseen = parts(items, seed)
    everything = Labelled(
        np.concatenate([first.items, *(part.items for part in arriving)]),
        np.concatenate([first.labels, *(part.labels for part in arriving)]),
    )
    domain = ic.Images(28, 1, encoder="small", views=ic.ImageViews(flip=0.0))
    learner = ic.Learner(
        domain,
        strategy=ic.ICL(max_epochs=epochs),
        fit_strategy=RETRAINING,
        memory=ic.Reservoir(items=len(first) // 10),
        seed=seed,
    )
    row: dict[str, Any] = {
        "items": len(first),
        "part": len(arriving[0]),
        "epochs": epochs,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        space = ic.Workspace.create(Path(folder) / "space", learner)
        passes = space.fit(first.items).outcome["forward_passes"]
        row["no update"] = quality(space.learner(), everything, unseen)
        shutil.copytree(Path(folder) / "space", Path(folder) / "rival")
        steps = [space.update(part.items) for part in arriving]
        row["ten updates"] = quality(space.learner(), everything, unseen)
        rival = ic.Workspace.open(Path(folder) / "rival")
        for step, part in zip(steps, arriving, strict=True):
            budget = ic.Budget(forward_passes=step.outcome["forward_passes"])
            rival.update(part.items, strategy=WARM_START, budget=budget, force=True)
        row["ten warm starts"] = quality(rival.learner(), everything, unseen)
    row["promoted"] = [step.promoted for step in steps]
    row["kept"] = [round(step.outcome["kept"], 3) for step in steps]
    updates = sum(step.outcome["forward_passes"] for step in steps)
    # Every week's retraining has so much more data than the first fit.
    week = [passes * (1 + SHARE * (number + 1)) for number in range(PARTS)]
    row |= {"passes of updates": updates, "passes of retrainings": round(sum(week))}
    again = ic.Learner(domain, fit_strategy=RETRAINING, seed=seed)
    again.fit(everything.items)
    row["retraining"] = quality(again, everything, unseen)
    return row | {"date": time.strftime("%Y-%m-%d")}


def show() -> None:
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        ratio = row["passes of retrainings"] / row["passes of updates"]
        print(
            f"{row['items']:,} digits, ten parts of {row['part']}, {row['epochs']} epochs, "
            f"seed {row['seed']}: "
            f"{ratio:.0f} times fewer forward passes; {sum(row['promoted'])} of {PARTS} promoted"
        )
        for name in ("no update", "ten warm starts", "ten updates", "retraining"):
            told = ", ".join(f"{figure} {value:.3f}" for figure, value in row[name].items())
            print(f"  {name:15} {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--items", type=int, default=48_000)
    parser.add_argument("--epochs", type=int, help="of an update; the default's own, if none")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "run":
        for seed in arguments.seeds:
            row = run(arguments.items, arguments.epochs, seed)
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")
    show()


if __name__ == "__main__":
    main()
