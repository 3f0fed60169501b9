"""Time until an update is as good as retraining, for every strategy.

    python benchmarks/updates.py run [--sets digits-7/3 …] [--seeds 0 1 2 3 4]
    python benchmarks/updates.py show

"As good" means: the evaluation loss over X′ is at or below the one that retraining from scratch has
when its own stop rule ends it (200 epochs, or 50 without a new lowest loss), and on old and on new
items apart within 2 % of it. Measuring along the way costs no time on the clock. One row per
finished run is appended to benchmarks/results/updates.jsonl; a rerun skips what is there.
One thread, so that two runs side by side do not disturb each other. PROTEINS is in the grid of
``incontrast paper``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import incontrast as ic
import real_data
from incontrast.compare.trace import Trace, trace
from incontrast.evaluate import EvaluationLoss

ROWS = Path(__file__).parent / "results" / "updates.jsonl"
WORK = Path(__file__).parents[1] / "build" / "updates"  # fitted learners, to go on from
SAMPLE = 512  # old and new items, each, on which the evaluation loss is measured
SHARE = 0.2  # of retraining's time, after which a rival has had its chance
FITTING = ic.Retrain()
MANY = {"max_epochs": 100_000, "patience": None}

# The update rule that the rows were measured with; benchmarks/parity.py compares it with today's.
PLAIN = ic.ICL(
    lr=2e-3,
    batch_size=32,
    old_batch_size=64,
    emphasis=None,
    hard_negatives=None,
    protection=None,
    optimizer=ic.Adam(max_relative_update=1 / 8),
    epoch_steps=1,
    ema_leaning=1.0,
    interpolation=1.0,
    **MANY,
)

STRATEGIES: dict[str, ic.Strategy] = {
    "ICL": PLAIN,
    "warm start": ic.WarmStart(**MANY),
    "warm start, ICL's batch and rate": ic.WarmStart(batch_size=96, lr=ic.Fixed(2e-3), **MANY),
    "ICL, 128 + 64 items, rate 8e-3": replace(
        PLAIN, batch_size=64, old_batch_size=128, lr=ic.Fixed(8e-3)
    ),
    "fine-tuning": ic.FineTune(**MANY),
    "replay": ic.Replay(**MANY),
    "distillation": ic.Distill(**MANY),
    "ICL of the paper": ic.ICL.paper(max_epochs=100_000, patience=None),
}


def digits(seed: int) -> tuple[ic.Domain, Any, Any]:
    old, new = ic.streams.by_class(ic.data.digits(), (7, 8, 9))
    views = ic.ImageViews(flip=0.0, scale=(0.4, 1.0))
    return ic.Images(8, 1, encoder="small", views=views), old.items, new.items


def digits_as_vectors(seed: int) -> tuple[ic.Domain, Any, Any]:
    data = ic.data.digits()
    rows = torch.from_numpy(data.items.reshape(len(data), -1)).float()
    return ic.Vectors(64), *ic.streams.by_class(rows, (7, 8, 9), labels=data.labels)


def mnist_2(seed: int) -> tuple[ic.Domain, Any, Any]:
    data = real_data.digits_of_mnist((0, 1))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:2000]
    return ic.Images(28, 1, encoder="small"), *ic.streams.by_growth(data.select(order).items, 0.3)


SETS = {
    "digits 7/3, images": digits,
    "digits 7/3, vectors": digits_as_vectors,
    "MNIST-2 0.3": mnist_2,
}


def run(names: list[str], seeds: list[int]) -> None:
    torch.set_num_threads(1)
    done = {(row["set"], row["seed"], row["strategy"]) for row in rows()}
    for seed in seeds:
        for name in names:
            wanted = ["retraining", *STRATEGIES]
            if all((name, seed, strategy) in done for strategy in wanted):
                continue
            print(f"{time.strftime('%H:%M:%S')}  {name}, seed {seed}", flush=True)
            compare(name, seed, done)


class Ceiling(NamedTuple):
    """Where retraining ends, and what it costs."""

    loss: EvaluationLoss
    seconds: float
    forward_passes: int


def compare(name: str, seed: int, done: set[tuple[str, int, str]]) -> None:
    domain, old, new = SETS[name](seed)
    learner, ceiling = prepared(name, seed, domain, old, new)
    for strategy, config in STRATEGIES.items():
        if (name, seed, strategy) not in done:
            budget = ic.Budget(seconds=SHARE * ceiling.seconds)
            traced = trace(learner, old, new, config, sample=SAMPLE, budget=budget)
            append(name, seed, strategy, traced, ceiling)


def prepared(
    name: str, seed: int, domain: ic.Domain, old: Any, new: Any
) -> tuple[ic.Learner, Ceiling]:
    """The learner fitted on the old items, and retraining: shared by all strategies, kept."""
    place = WORK / f"{name} {seed}".replace("/", "-").replace(" ", "_")
    if (place / "ceiling.json").exists():
        kept = json.loads((place / "ceiling.json").read_text())
        return ic.Learner.load(place / "learner"), Ceiling(
            EvaluationLoss(*kept["loss"]), *kept["cost"]
        )
    learner = ic.Learner(domain, fit_strategy=FITTING, seed=seed)
    learner.fit(old)
    traced = trace(learner, old, new, FITTING, sample=SAMPLE)
    ran = traced.outcome
    ceiling = Ceiling(traced.points[-1].loss, ran.seconds, ran.forward_passes)
    append(name, seed, "retraining", traced, ceiling)
    learner.save(place / "learner")
    kept = {"loss": ceiling.loss, "cost": [ceiling.seconds, ceiling.forward_passes]}
    (place / "ceiling.json").write_text(json.dumps(kept))
    return learner, ceiling


def append(name: str, seed: int, strategy: str, traced: Trace, ceiling: Ceiling) -> None:
    reached = traced.reaches(ceiling.loss)
    row = {
        "set": name,
        "seed": seed,
        "strategy": strategy,
        "seconds": traced.outcome.seconds,
        "epochs": traced.outcome.epochs,
        "passes": traced.outcome.forward_passes,
        "before": traced.points[0].loss._asdict(),
        "after": traced.points[-1].loss._asdict(),
        "retraining": ceiling.loss._asdict(),
        "retraining_seconds": ceiling.seconds,
        "retraining_passes": ceiling.forward_passes,
        "reached_seconds": None if reached is None else reached.seconds,
        "reached_passes": None if reached is None else reached.forward_passes,
        "settings": repr(traced.strategy),
        "date": time.strftime("%Y-%m-%d"),
        "software": {"incontrast": ic.__version__, "torch": torch.__version__},
        "machine": platform.machine(),
    }
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def show() -> None:
    """Medians over seeds, as a table in Markdown."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows():
        cells.setdefault((row["set"], row["strategy"]), []).append(row)
    print("| data | strategy | loss old | loss new | loss all | reaches retraining | speed-up |")
    print("|---|---|---|---|---|---|---|")
    for name in SETS:
        for strategy in ("inference", *STRATEGIES, "retraining"):
            found = cells.get((name, "ICL" if strategy == "inference" else strategy), [])
            if found:
                print(f"| {name} | {strategy} | {line(strategy, found)} |")


def line(strategy: str, found: list[dict[str, Any]]) -> str:
    when = "before" if strategy == "inference" else "after"
    losses = [
        f"{statistics.median(row[when][part] for row in found):.3f}"
        for part in ("old", "new", "all")
    ]
    if strategy == "inference":
        level = sum(at_parity(row["before"], row["retraining"]) for row in found)
        return " | ".join([*losses, f"{level} of {len(found)} seeds at once", "–"])
    if strategy == "retraining":
        seconds = statistics.median(row["seconds"] for row in found)
        return " | ".join([*losses, f"{seconds:.0f} s", "1×"])
    reached = [row for row in found if row["reached_seconds"] is not None]
    count = f"{len(reached)} of {len(found)} seeds"
    if len(reached) <= len(found) / 2:
        return " | ".join([*losses, count, "not in the time given"])
    # A seed that never gets there counts as infinitely slow in the median.
    speed_ups = [row["retraining_seconds"] / row["reached_seconds"] for row in reached]
    speed_up = statistics.median([*speed_ups, *[0.0] * (len(found) - len(reached))])
    return " | ".join([*losses, count, f"{speed_up:.1f}×"])


def at_parity(loss: dict[str, float], target: dict[str, float]) -> bool:
    apart = all(loss[part] <= 1.02 * target[part] for part in ("old", "new"))
    return apart and loss["all"] <= target["all"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.sets, arguments.seeds)
    show()


if __name__ == "__main__":
    main()
