"""Our search for an SVM's C against scikit-learn's, on the same folds; processor time.

python benchmarks/probes.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from incontrast.evaluate import fit_svm
from incontrast.evaluate.probes import C_GRID

SEEDS = 5


def theirs(x: np.ndarray, y: np.ndarray, seed: int) -> float:
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), {"svc__C": C_GRID}, cv=folds)
    chosen: float = search.fit(x, y).best_params_["svc__C"]
    return chosen


def ours(x: np.ndarray, y: np.ndarray, seed: int) -> float:
    chosen: float = fit_svm(x, y, seed=seed)["svc"].C
    return chosen


def timed(search: Callable[..., float], *arguments: object) -> tuple[float, float]:
    begin = time.process_time()
    chosen = search(*arguments)
    return time.process_time() - begin, chosen


def main() -> None:
    pixels, labels = load_digits(return_X_y=True)
    print(f"{'items':>6}{'dimensions':>12}{'scikit-learn':>14}{'ours':>9}{'ratio':>8}{'same C':>8}")
    for count, width in ((400, 128), (1600, 128), (400, 512), (1600, 512)):
        times, same = [], 0
        for seed in range(SEEDS):
            random = np.random.default_rng(seed)
            weights = random.standard_normal((pixels.shape[1], width)) / 30
            x = np.maximum(pixels[:count] @ weights, 0) + random.standard_normal((count, width))
            x = x.astype(np.float32)
            (slow, first), (fast, second) = (
                timed(search, x, labels[:count], seed) for search in (theirs, ours)
            )
            times.append((slow, fast))
            same += first == second
        slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(slow / fast for slow, fast in times)
        print(
            f"{count:>6}{width:>12}{slow:>12.2f} s{fast:>7.2f} s{ratio:>7.1f}x{same:>5} of {SEEDS}"
        )


if __name__ == "__main__":
    main()
