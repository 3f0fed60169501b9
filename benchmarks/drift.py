"""Drift on MNIST: how often it cries wolf, and whether it sees a digit it has never met.

    python benchmarks/drift.py

An encoder is fitted on 2,000 digits 0 to 8. False alarms: 200 times, 200 other digits 0 to 8 that
it has not seen. Power: 100 times, 200 digits 9. For longer and shorter fits, since an encoder that
knows its own data by heart might take all others for strangers. Needs MNIST (INCONTRAST_DATA).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import incontrast as ic
from real_data import digits_of_mnist

UNSEEN = 9
FITTED = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[10, 60], help="of the fit")
    parser.add_argument("--new", type=int, nargs="+", default=[20, 50, 200], help="new items")
    parser.add_argument("--draws", type=int, default=200, help="draws of unshifted data")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = digits_of_mnist()
    print(time.strftime("%Y-%m-%d"))
    for epochs in options.epochs:
        draws = np.random.default_rng(epochs)
        known = draws.permutation(np.flatnonzero(data.labels != UNSEEN))
        fitted, rest = np.sort(known[:FITTED]), known[FITTED:]
        unseen = np.flatnonzero(data.labels == UNSEEN)
        views = ic.ImageViews(flip=0.0, scale=(0.4, 1.0))
        learner = ic.Learner(
            ic.Images(28, 1, encoder="small", views=views),
            fit_strategy=ic.Retrain(max_epochs=epochs),
            seed=0,
        )
        outcome = learner.fit(data.items[fitted])
        print(f"fit of {epochs} epochs: loss {outcome.loss_new.after:.3f}")

        def p_value(
            pool: np.ndarray,
            count: int,
            number: int,
            learner: ic.Learner = learner,
            draws: np.random.Generator = draws,
        ) -> float:
            learner.seed = number  # other anchors, views and shuffles every time
            items = data.items[draws.choice(pool, count, replace=False)]
            return learner.drift(items, forecast=False).p_value

        for count in options.new:
            begin = time.perf_counter()
            alarms = [p_value(rest, count, number) <= 0.05 for number in range(options.draws)]
            seconds = (time.perf_counter() - begin) / options.draws
            seen = [p_value(unseen, count, number) <= 0.05 for number in range(100)]
            print(
                f"  {count:4d} new items: false alarms {np.mean(alarms):.3f} of {options.draws}, "
                f"power {np.mean(seen):.2f} of 100, {seconds:.2f} s each"
            )


if __name__ == "__main__":
    main()
