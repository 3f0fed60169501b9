"""How far the outcomes that tests bound differ from seed to seed.

    python benchmarks/spread.py

tests/test_updates.py bounds outcomes of training on digits. A bound must hold on any processor,
which is like another seed: it stays at least five standard deviations away from the mean.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from statistics import fmean, stdev

import torch

import incontrast as ic
from incontrast.streams import by_class, in_batches

SEEDS = 10


def outcomes(seed: int) -> Iterator[tuple[str, float]]:
    """What each test looks at, as a ratio."""
    images = ic.data.digits()
    rows = torch.from_numpy(images.items.reshape(len(images), -1)).float()
    old, new = by_class(rows, [7, 8, 9], labels=images.labels)
    learner = ic.Learner(ic.Vectors(64), fit_strategy=ic.Retrain(max_epochs=20), seed=seed)
    learner.fit(old)

    def updated(strategy: ic.Strategy, budget: ic.Budget | None = None) -> ic.Outcome:
        return copy.deepcopy(learner).update(new, strategy=strategy, budget=budget)

    icl = updated(ic.ICL())
    yield "ICL, old items, after / before", icl.loss_old.after / icl.loss_old.before
    yield "ICL, new items, after / before", icl.loss_new.after / icl.loss_new.before
    paper = updated(ic.ICL(retention=0.0))
    yield "retention 0, old items, after / before", paper.loss_old.after / paper.loss_old.before
    short = updated(ic.ICL(), ic.Budget(forward_passes=15_000))
    yield "budget, old items, after / before", short.loss_old.after / short.loss_old.before
    yield "budget, all items, after / before", short.loss.after.all / short.loss.before.all
    tuned = updated(ic.FineTune(max_epochs=40))
    yield "fine-tuning, old items, after / before", tuned.loss_old.after / tuned.loss_old.before
    yield "fine-tuning, new items, after / before", tuned.loss_new.after / tuned.loss_new.before
    fixed = updated(ic.ICL(lr=3e-3)).loss.after.all
    for start in (10.0, 1e-2, 1e-5):
        learned = updated(ic.ICL(lr=ic.Learned(start=start)))
        yield f"learned from {start:g} / fixed, all items", learned.loss.after.all / fixed
    parts = list(in_batches(rows, 20, seed=seed))
    first = ic.Learner(
        ic.Vectors(64),
        fit_strategy=ic.Retrain(max_epochs=20),
        memory=ic.Reservoir(items=180),
        seed=seed,
    )
    first.fit(parts[0])
    last = copy.deepcopy(first)
    for part in parts[1:]:
        last.update(part, strategy=ic.ICL(max_epochs=10))
    loss = last.evaluation_loss(torch.cat(parts[:-1]), parts[-1])
    yield "stream, all items, after / before", loss.all / first.evaluation_loss(rows).all
    yield "stream, old / new items", loss.old / loss.new


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        for name, value in outcomes(seed):
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        mean, spread = fmean(values), stdev(values)
        print(
            f"{name:<42} mean {mean:.3f}, standard deviation {spread:.3f}, "
            f"5 away: {mean - 5 * spread:.3f} to {mean + 5 * spread:.3f}"
        )


if __name__ == "__main__":
    main()
