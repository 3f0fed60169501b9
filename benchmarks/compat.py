"""What stored vectors are worth after an update: maps between versions, and re-embedding a part.

    python benchmarks/compat.py train --cache FOLDER       encoders, of which embeddings are kept
    python benchmarks/compat.py measure --cache FOLDER     rows, from those embeddings
    python benchmarks/compat.py speed
    python benchmarks/compat.py show

For each data set, growth ratio α and seed an encoder is fitted on the old items; then it is updated
(a quarter of retraining's forward passes) or retrained. Queries are items that no encoder has seen.
The index is X′ as the encoder of before embedded it. Precision@10 is the share of a query's ten
nearest items that have its label. Encoders are trained once, all figures come from their
embeddings; a rerun skips what is there. The sets are those of benchmarks/parity_sets.py, with at
most 3,000 old items; choices were made on its TUNING sets alone.
"""

from __future__ import annotations

import argparse
import copy
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import incontrast as ic
from incontrast.data import Labelled
from parity_sets import SETS, Problem, drawn, mnist_parts, of_classes

ALPHAS, SEEDS = (0.05, 0.3), (0, 1, 2)
TRAINED = ("MNIST by class", "MNIST at random", "PROTEINS", "Imagenette by class")
CHAINED = ("MNIST by class", "MNIST at random")
OLD = 3000  # items at most
FIRST, LATER = 2500, 130  # items of a first fit and of each of five updates
SHARE = 0.25  # of retraining's forward passes, for an update
LONG: dict[str, Any] = {"max_epochs": 1_000_000, "patience": None}  # the budget ends every update


def place(cache: Path, *parts: Any) -> Path:
    return cache / (re.sub("[^a-zA-Z0-9.]+", "_", " ".join(map(str, parts))) + ".npz")


def reduced(problem: Problem, alpha: float, seed: int) -> Problem:
    old = min(len(problem.old), OLD)
    new = min(len(problem.new), round(old * alpha / (1 - alpha)))
    return problem._replace(
        old=drawn(problem.old, old, seed, "reduced"), new=drawn(problem.new, new, seed, "reduced")
    )


def labels_of(*parts: Labelled) -> Any:
    return np.concatenate([part.labels for part in parts])


def embedded(learner: ic.Learner, *parts: Labelled) -> Any:
    return torch.cat([learner.embed(part.items) for part in parts]).numpy()


def pair(cache: Path, name: str, alpha: float, seed: int) -> None:
    """An encoder, its update and its retraining: embeddings of X′ and of unseen items by each."""
    file = place(cache, name, alpha, seed)
    if file.exists():
        return
    problem, retraining = (
        reduced(SETS[name].problem(alpha, seed), alpha, seed),
        SETS[name].retraining,
    )
    corpus, queries = problem[1:3], problem[3:]
    learner = ic.Learner(problem.domain, fit_strategy=retraining, seed=seed)
    learner.fit(problem.old.items)
    arrays = {
        "old": np.array(len(problem.old)),
        "labels": labels_of(*corpus),
        "query_labels": labels_of(*queries),
        "before": embedded(learner, *corpus),
        "before_queries": embedded(learner, *queries),
    }
    passes = 0
    for kind, strategy in (("retraining", retraining), ("update", ic.ICL(**LONG))):
        twin, budget = copy.deepcopy(learner), None
        if kind == "update":
            budget = ic.Budget(forward_passes=round(SHARE * passes))
        passes = twin.update(problem.new.items, strategy=strategy, budget=budget).forward_passes
        arrays[kind], arrays[f"{kind}_queries"] = (
            embedded(twin, *part) for part in (corpus, queries)
        )
    np.savez(file, **arrays)
    print(file.name, flush=True)


def chain(cache: Path, name: str, seed: int) -> None:
    """Five updates in a row: embeddings of all items and of unseen ones by each of six versions."""
    file = place(cache, "chain", name, seed)
    if file.exists():
        return
    seen, unseen = mnist_parts()
    queries = drawn(unseen, 1500, seed, "unseen")
    if name == "MNIST by class":  # five classes first, then one at a time
        first = drawn(of_classes(seen, range(5)), FIRST, seed, "first")
        later = [drawn(of_classes(seen, [new]), LATER, seed, "later") for new in range(5, 10)]
    else:
        mixed = drawn(seen, FIRST + 5 * LATER, seed, "first")
        ends = [FIRST + LATER * number for number in range(6)]
        first = mixed.select(np.arange(FIRST))
        later = [mixed.select(np.arange(end, end + LATER)) for end in ends[:-1]]
    corpus, retraining = (first, *later), SETS[name].retraining
    learner = ic.Learner(SETS[name].problem(0.3, 0).domain, fit_strategy=retraining, seed=seed)
    passes = learner.fit(first.items).forward_passes
    arrays = {"labels": labels_of(*corpus), "query_labels": queries.labels}
    for version in range(1, 7):
        if version > 1:
            budget = ic.Budget(forward_passes=round(SHARE * passes))
            learner.update(later[version - 2].items, strategy=ic.ICL(**LONG), budget=budget)
        arrays[f"{version}"] = embedded(learner, *corpus)
        arrays[f"{version}_queries"] = embedded(learner, queries)
    np.savez(file, **arrays)
    print(file.name, flush=True)


def train(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for alpha, seed, name in product(ALPHAS, SEEDS, TRAINED):
        pair(cache, name, alpha, seed)
    for seed, name in product(SEEDS, CHAINED):
        chain(cache, name, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "measure", "speed", "show"))
    parser.add_argument("--cache", type=Path, default=Path("build/compat"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train(arguments.cache)
