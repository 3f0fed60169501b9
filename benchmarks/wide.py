"""What a bound on the change of layers does, to ResNet-18 and to encoders that are hardly trained.

python benchmarks/wide.py resnet            # how far the loss rises at first, at several rates
python benchmarks/wide.py hardly-trained    # what the bound costs where there is little to spoil
"""

from __future__ import annotations

import copy
import statistics
import sys

import numpy as np
import torch
from sklearn.datasets import load_digits

import incontrast as ic
from incontrast.compare.trace import trace
from incontrast.domains.images.views import ImageViews

OLD, NEW, STEPS, SEEDS = 160, 64, 40, 3
PLANS = {
    "2e-3": ic.Fixed(2e-3),
    "2e-3, changes bounded (ICL())": ic.ICL().lr,
    "1e-3": ic.Fixed(1e-3),
    "3e-4": ic.Fixed(3e-4),
    "learned": ic.Learned(),
}


def hardly_trained() -> None:
    old, new = ic.streams.by_class(ic.data.digits(), new=[7, 8, 9])
    strategies = {
        "bounded": ic.ICL(max_epochs=20),
        "free": ic.ICL(lr=ic.Fixed(2e-3), max_epochs=20),
    }
    print("evaluation loss over digits with three new classes, small encoder, medians of 3 seeds")
    print(f"{'epochs of the first fit':<26}{'before':>8}{'bounded':>9}{'free':>8}")
    for epochs in (5, 20, 60):
        found: dict[str, list[float]] = {"before": [], "bounded": [], "free": []}
        for seed in range(SEEDS):
            domain = ic.Images(8, 1, encoder="small")
            learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=epochs), seed=seed)
            learner.fit(old.items)
            for name, strategy in strategies.items():
                outcome = copy.deepcopy(learner).update(new.items, strategy=strategy)
                found[name].append(outcome.loss.after.all)
            found["before"].append(outcome.loss.before.all)
        before, bounded, free = (statistics.median(values) for values in found.values())
        print(f"{epochs:<26}{before:>8.3f}{bounded:>9.3f}{free:>8.3f}")


def resnet() -> None:
    digits = np.kron(load_digits().images, np.ones((3, 3)))  # 24 px
    images = (digits * (255 / digits.max())).astype(np.uint8)
    domain = ic.Images(24, 1, encoder="resnet18-standard", views=ImageViews(flip=0.0))
    losses: dict[str, list[tuple[float, ...]]] = {name: [] for name in PLANS}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(images))[: OLD + NEW]
        old, new = images[order[:OLD]], images[order[OLD:]]
        learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=40), seed=seed)
        learner.fit(old)
        for name, plan in PLANS.items():
            strategy = ic.ICL(lr=plan, max_epochs=STEPS)
            budget = ic.Budget(forward_passes=STEPS * 2 * sum(strategy.per_step(NEW / (OLD + NEW))))
            traced = trace(learner, old, new, strategy, budget=budget, spacing=1.2)
            first, *rest = (point.loss.all for point in traced.points)
            losses[name].append((first, max(rest), rest[-1]))
    print(f"evaluation loss, {OLD} old and {NEW} new digits of 24 px, {STEPS} steps, {SEEDS} seeds")
    print(f"{'rate':<32}{'before':>8}{'highest':>9}{'after':>8}   (medians)")
    for name, found in losses.items():
        before, highest, after = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<32}{before:>8.3f}{highest:>9.3f}{after:>8.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"resnet": resnet, "hardly-trained": hardly_trained}[sys.argv[1]]()
