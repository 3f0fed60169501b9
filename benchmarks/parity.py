"""Quality of updates at a share of retraining's forward passes, on items that no encoder has seen.

    python benchmarks/parity.py grid --set "MNIST by class" --alpha 0.05 --seed 0
    python benchmarks/parity.py run --set "MNIST by class" --alpha 0.05 --seed 0 1 2
    python benchmarks/parity_tables.py show

For each data set, growth ratio α and seed an encoder is fitted on the old items. Then the update
has 1 to 50 % of the forward passes of retraining, whose schedule was the best of a small grid on
the tuning sets (``grid`` runs every entry of GRID; the best one is in SETS). Each row has the
evaluation loss of old and new items (negatives in the proportion α), kNN accuracy and retrieval
precision@10 with X′ as the corpus, for queries that no encoder saw and for X′ itself.

Forward passes do not depend on what else the machine does, so runs may share it. A rerun skips rows
that are there. The first fits are kept in ``--cache``, outside the repository.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import incontrast as ic
from incontrast.data import Labelled
from incontrast.evaluate.population import population
from incontrast.randomness import generator
from incontrast.training.engine import embed_views
from parity_sets import GRID, SETS, Problem, retraining

ROWS = Path(__file__).parent / "results" / "parity.jsonl"
ALPHAS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.7)
SHARES = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5)
MEASURED = 1000  # items of each kind on which losses are measured
NEIGHBOURS = 10
HEADS = {"none": None, "linear": "linear", "mlp": "mlp"}


@dataclass(frozen=True, kw_only=True)
class EmphasisedRetrain(ic.ICL):
    """Retraining with the emphasis of an update: plain retraining is no ceiling for rare items."""

    from_scratch: ClassVar[bool] = True


LONG: dict[str, Any] = {"max_epochs": 1_000_000, "patience": None}  # the budget ends every run

# The rest of the default before steps spared what old items use.
FREE: dict[str, Any] = {
    "lr": 2e-3,
    "emphasis": ic.Emphasis(start=0.5),
    "hard_negatives": None,
    "protection": None,
    "optimizer": ic.Adam(max_relative_update=1 / 8),
    "interpolation": 1.0,
    **LONG,
}
BEFORE: dict[str, Any] = {
    "batch_size": 32,
    "old_batch_size": 64,
    "epoch_steps": 1,
    "ema_leaning": 1.0,
}

STRATEGIES: dict[str, ic.Strategy] = {
    "ICL": ic.ICL(**LONG),
    "ICL, free": ic.ICL(**FREE),  # the default until there was protection
    "ICL before": ic.ICL(**{**BEFORE, **FREE, "emphasis": None}),  # until there was emphasis
    "warm start": ic.WarmStart(lr=2e-3, batch_size=96, **LONG),
    "retraining with emphasis": EmphasisedRetrain(**LONG),
    "fine-tuning": ic.FineTune(**LONG),
    "replay": ic.Replay(**LONG),
    "distillation": ic.Distill(**LONG),
    "the paper's ICL": ic.ICL.paper(**LONG),
    # One part of the default at a time.
    "ICL, Adam at 4e-3": ic.ICL(
        lr=ic.Fixed(4e-3, warmup=0.1), optimizer=ic.Adam(max_relative_update=1 / 2), **LONG
    ),
    "ICL, learned learning rates": ic.ICL(lr=ic.Learned(), **LONG),
    "ICL, no hard negatives": ic.ICL(hard_negatives=None, **LONG),
    "ICL, all of the change": ic.ICL(interpolation=1.0, **LONG),
    "ICL, no protection": ic.ICL(protection=None, **LONG),
    "ICL, no emphasis": ic.ICL(emphasis=None, **LONG),
    "ICL, tolerance 5 %": ic.ICL(**LONG),
}

TOLERANCES = {"ICL, tolerance 5 %": 0.05}  # that a learner is given, as a workspace does


class Measures(NamedTuple):
    """What an encoder makes of old and of new items."""

    loss_old: float
    loss_new: float
    loss: float
    knn_old: float
    knn_new: float
    knn: float
    precision_old: float
    precision_new: float
    precision: float


def measure(learner: ic.Learner, problem: Problem, alpha: float) -> dict[str, dict[str, float]]:
    """Measures of unseen items and of X′."""
    domain, encoder = learner.domain, learner.encoder
    corpus = [learner.embed(part.items) for part in (problem.old, problem.new)]
    queries = [learner.embed(part.items) for part in (problem.unseen_old, problem.unseen_new)]

    def losses(old: Labelled, new: Labelled, name: str) -> tuple[float, float, float]:
        pairs = [
            embed_views(
                encoder,
                domain,
                domain.collect(part.items),
                torch.randperm(len(part), generator=generator(0, "measured"))[:MEASURED],
                generator(0, name, kind),
                engine=learner.engine,
            )
            for part, kind in ((old, "old"), (new, "new"))
        ]
        settings = {"growth_ratio": alpha, "objective": learner.objective}
        return population(*pairs, **settings).evaluation_loss()

    def probes(old: Tensor, new: Tensor, labels: list[Any], own: bool) -> Iterator[float]:
        known = np.concatenate([problem.old.labels, problem.new.labels])
        found = [
            neighbours(torch.cat(corpus), known, part, truth, first if own else None)
            for part, truth, first in ((old, labels[0], 0), (new, labels[1], len(old)))
        ]
        for column in zip(*found, strict=True):  # votes, precisions
            yield from (part.mean() for part in (*column, np.concatenate(column)))

    unseen = [problem.unseen_old.labels, problem.unseen_new.labels]
    stored = [problem.old.labels, problem.new.labels]
    found = {
        "unseen": Measures(
            *losses(problem.unseen_old, problem.unseen_new, "unseen"),
            *probes(*queries, unseen, own=False),
        ),
        "stored": Measures(
            *losses(problem.old, problem.new, "stored"), *probes(*corpus, stored, own=True)
        ),
    }
    return {
        where: {name: round(float(value), 4) for name, value in measures._asdict().items()}
        for where, measures in found.items()
    }


def neighbours(
    corpus: Tensor, known: NDArray[Any], queries: Tensor, truth: NDArray[Any], own: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each query, whether the majority of its nearest items has its label, and which share.

    Args:
        corpus: (n, d).
        known: (n,) labels.
        queries: (m, d).
        truth: (m,) labels.
        own: Where the queries begin in the corpus, if they are items of it.
    """
    unit = torch.nn.functional.normalize
    corpus, right, shares = unit(corpus), [], []
    classes, codes = np.unique(known, return_inverse=True)
    for start in range(0, len(queries), 1024):
        similar = unit(queries[start : start + 1024]) @ corpus.T
        if own is not None:
            rows = torch.arange(len(similar))
            similar[rows, rows + own + start] = -2.0
        nearest = codes[similar.topk(NEIGHBOURS, dim=1).indices.numpy()]
        votes = (nearest[:, :, None] == np.arange(len(classes))).sum(axis=1)
        label = truth[start : start + 1024]
        right.append(classes[votes.argmax(axis=1)] == label)
        shares.append((classes[nearest] == label[:, None]).mean(axis=1))
    return np.concatenate(right), np.concatenate(shares)


class Bench:
    """The runs of one data set, growth ratio and seed; rows that are there are not run again."""

    def __init__(
        self, name: str, alpha: float, seed: int, head: str, file: Path, cache_folder: Path
    ) -> None:
        self.name, self.alpha, self.seed, self.head, self.file = name, alpha, seed, head, file
        self.cache_folder = cache_folder
        self.problem = SETS[name].problem(alpha, seed)
        self.done = {key(row): row for row in rows(file)}

    def run(self, strategies: dict[str, ic.Strategy], shares: list[float]) -> None:
        """No update, retraining, and these strategies at these shares of its forward passes."""
        learner = self.fitted()
        self.row("no update", 0.0, learner, ic.NoUpdate())
        ceiling = self.row("retraining", 1.0, learner, SETS[self.name].retraining)
        for name, strategy in strategies.items():
            for share in [1.0] if strategy.from_scratch else shares:
                budget = ic.Budget(forward_passes=max(round(share * ceiling["forward_passes"]), 1))
                self.row(name, share, learner, strategy, budget)

    def run_grid(self) -> None:
        """Retraining with every schedule of GRID."""
        chosen = SETS[self.name].retraining
        learner = self.learner()
        learner.fit(self.problem.old.items, budget=ic.Budget(forward_passes=1))  # for its memory
        for size, lr in GRID:
            strategy = retraining(size, lr, chosen.max_epochs)
            self.row(f"retraining, {size} at {lr}", 1.0, learner, strategy)

    def row(
        self,
        strategy_name: str,
        share: float,
        learner: ic.Learner,
        strategy: ic.Strategy,
        budget: ic.Budget | None = None,
    ) -> dict[str, Any]:
        row: dict[str, Any] = {
            "set": self.name,
            "alpha": self.alpha,
            "seed": self.seed,
            "head": self.head,
            "strategy": strategy_name,
            "share": share,
        }
        if key(row) in self.done:
            return self.done[key(row)]
        twin = copy.deepcopy(learner)
        outcome = twin.update(
            self.problem.new.items,
            strategy=strategy,
            budget=budget,
            tolerance=TOLERANCES.get(strategy_name),
        )
        row |= {
            "old": len(self.problem.old),
            "new": len(self.problem.new),
            "forward_passes": outcome.forward_passes,
            "steps": outcome.steps,
            "kept": outcome.kept,
            **measure(twin, self.problem, self.alpha),
            "settings": repr(strategy),
            "date": time.strftime("%Y-%m-%d"),
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        told = ", ".join(f"{name} {value:.3f}" for name, value in row["unseen"].items())
        print(f"{time.strftime('%H:%M:%S')}  {' '.join(map(str, key(row)))}: {told}", flush=True)
        return row

    def learner(self) -> ic.Learner:
        return ic.Learner(
            self.problem.domain,
            fit_strategy=SETS[self.name].retraining,
            precision=SETS[self.name].precision,
            head=HEADS[self.head],
            seed=self.seed,
        )

    def fitted(self) -> ic.Learner:
        """The learner fitted on the old items, shared by all strategies and kept in a folder."""
        chosen = SETS[self.name].retraining
        settings = (self.name, self.alpha, self.seed, self.head)
        settings += (chosen.batch_size, chosen.lr, chosen.max_epochs)
        place = self.cache_folder / re.sub("[^a-zA-Z0-9.]+", "_", " ".join(map(str, settings)))
        if not place.exists():
            learner = self.learner()
            learner.fit(self.problem.old.items)
            learner.save(place)
        return ic.Learner.load(place)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    # Rows from before there were heads have none.
    return (
        *(row[part] for part in ("set", "alpha", "seed")),
        row.get("head", "none"),
        *(row[part] for part in ("strategy", "share")),
    )


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["grid", "run"])
    parser.add_argument("--set", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--alpha", nargs="+", type=float, default=list(ALPHAS))
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--head", nargs="+", choices=HEADS, default=["none"])
    parser.add_argument("--share", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "incontrast-parity"
    )
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wishes = product(arguments.seed, arguments.set, arguments.alpha, arguments.head)
    for seed, name, alpha, head in wishes:
        bench = Bench(name, alpha, seed, head, arguments.rows, arguments.cache)
        if arguments.what == "grid":
            bench.run_grid()
        else:
            wanted = {strategy: STRATEGIES[strategy] for strategy in arguments.strategy}
            bench.run(wanted, arguments.share)


if __name__ == "__main__":
    main()
