"""The first steps of an update of ResNet-18, at several rates: how far the loss rises at first.

python benchmarks/wide.py
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from sklearn.datasets import load_digits

import incontrast as ic
from incontrast.bench.trace import trace
from incontrast.domains.image_views import ImageViews

OLD, NEW, STEPS, SEEDS = 160, 64, 40, 3
PLANS = {
    "2e-3": ic.Fixed(2e-3),
    "2e-3, changes bounded (ICL())": ic.ICL().rates,
    "1e-3": ic.Fixed(1e-3),
    "3e-4": ic.Fixed(3e-4),
    "learned": ic.Learned(),
}


def main() -> None:
    torch.set_num_threads(1)
    digits = np.kron(load_digits().images, np.ones((3, 3)))  # 24 px
    images = (digits * (255 / digits.max())).astype(np.uint8)
    domain = ic.Images(24, 1, encoder="resnet18-standard", views=ImageViews(flip=0.0))
    losses: dict[str, list[tuple[float, ...]]] = {name: [] for name in PLANS}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(images))[: OLD + NEW]
        old, new = images[order[:OLD]], images[order[OLD:]]
        learner = ic.Learner(domain, fitting=ic.Retrain(max_epochs=40), seed=seed)
        learner.fit(old)
        for name, plan in PLANS.items():
            strategy = ic.ICL(rates=plan, max_epochs=STEPS)
            budget = ic.Budget(passes=STEPS * 2 * sum(strategy.per_step(NEW / (OLD + NEW))))
            traced = trace(learner, old, new, strategy, budget=budget, spacing=1.2)
            first, *rest = (point.loss.all for point in traced.points)
            losses[name].append((first, max(rest), rest[-1]))
    print(f"true loss over {OLD} old and {NEW} new digits of 24 px, {STEPS} steps, {SEEDS} seeds")
    print(f"{'rate':<32}{'before':>8}{'highest':>9}{'after':>8}   (medians)")
    for name, found in losses.items():
        before, highest, after = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<32}{before:>8.3f}{highest:>9.3f}{after:>8.3f}")


if __name__ == "__main__":
    main()
