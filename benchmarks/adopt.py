"""A ResNet-18 that a plain torch script trained is adopted and updated: how far to retraining?

    python benchmarks/adopt.py run --seed 0 1 2
    python benchmarks/adopt.py show

On digits (0 to 6 first, 7 to 9 later), by the measures of benchmarks/parity.py. ``plain`` knows
nothing of incontrast: SimCLR's loss, a linear head, shifts and noise as views. The encoder and its
head are adopted with the old digits, then updated with a share of retraining's forward passes, or
not at all. Retraining begins anew, for as many epochs as the script had.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import incontrast as ic
from incontrast.domains.images.encoders import ResNet18
from parity import LONG, measure
from parity_sets import digits_by_class

ROWS = Path(__file__).parent / "results" / "adopt.jsonl"
EPOCHS = 10
ALPHA = 0.3
SHARES = (0.12, 0.25)
DOMAIN = ic.Images(8, 1, mean=(0.5,), std=(0.5,), views=ic.ImageViews(flip=0.0, scale=(0.4, 1.0)))


def plain(pixels: Tensor, seed: int) -> tuple[nn.Module, nn.Module]:
    """Somebody's training script."""
    torch.manual_seed(seed)
    model, head = ResNet18(1, "small"), nn.Linear(512, 128)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)

    def view(images: Tensor) -> Tensor:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return images.roll(shift, (2, 3)) + 0.3 * torch.randn(images.shape)

    for _ in range(EPOCHS):
        for batch in torch.randperm(len(pixels)).split(128):
            images = (pixels[batch] / 255 - 0.5) / 0.5
            a, b = (normalize(head(model(view(images)))) for _ in range(2))
            loss = cross_entropy(a @ b.T / 0.1, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, head


def run(seed: int, file: Path) -> None:
    problem = digits_by_class(ALPHA, seed)._replace(domain=DOMAIN)
    pixels = torch.from_numpy(np.asarray(problem.old.items)).view(-1, 1, 8, 8)
    model, head = plain(pixels, seed)
    retrain = ic.Retrain(batch_size=128, lr=2e-3, max_epochs=EPOCHS, patience=None)
    adopted = ic.Learner.from_encoder(model, DOMAIN, seen=problem.old.items, head=head, seed=seed)
    anew = ic.Learner(DOMAIN, fit_strategy=retrain, head="linear", seed=seed)
    whole = np.concatenate([problem.old.items, problem.new.items])
    ceiling = anew.fit(whole).forward_passes
    rows = {("no update", 0.0): adopted, ("retraining", 1.0): anew}
    for share in SHARES:
        twin = copy.deepcopy(adopted)
        budget = ic.Budget(forward_passes=round(share * ceiling))
        twin.update(problem.new.items, strategy=ic.ICL(**LONG), budget=budget)
        rows["ICL", share] = twin
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as target:
        for (strategy, share), learner in rows.items():
            row = {"seed": seed, "strategy": strategy, "share": share}
            row |= {**measure(learner, problem, ALPHA), "date": time.strftime("%Y-%m-%d")}
            target.write(json.dumps(row) + "\n")


def show(file: Path) -> None:
    """Medians over seeds, as a table in Markdown."""
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row["strategy"], row["share"]), []).append(row["unseen"])
    names = ("knn_old", "knn_new", "precision_old", "precision_new")
    print("| strategy | share | seeds |", " | ".join(names), "|")
    print("|---" * (3 + len(names)) + "|")
    for (strategy, share), rows in sorted(found.items(), key=lambda item: item[0][1]):
        cells = [f"{statistics.median(row[name] for row in rows):.3f}" for name in names]
        print(f"| {strategy} | {share:.0%} | {len(rows)} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    if arguments.what == "show":
        show(arguments.rows)
        return
    torch.set_num_threads(1)
    for seed in arguments.seed:
        run(seed, arguments.rows)


if __name__ == "__main__":
    main()
