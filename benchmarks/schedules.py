"""Learned rates against fixed ones, a schedule, the paper's agent and a parameter-free optimiser.

    python benchmarks/rates.py run [--sets ...] [--seeds 0 1 2 3 4]
    python benchmarks/rates.py show
    python benchmarks/rates.py stream     # agents carried over five updates, and begun anew
    python benchmarks/rates.py overhead   # of agent and guard, per step

Every variant of `ICL()` gets the same number of encoder passes: 40 over the new items. The target
is retraining from scratch when its own stop rule ends it (200 epochs, or 50 without a new lowest
loss): the evaluation loss over X′ at or below it, on old and on new items apart within 2 %.
Encoders and retrainings are kept in build/schedules, one row per finished run in
benchmarks/results/schedules.jsonl; a rerun skips what is there with the same settings. One thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import incontrast as ic
import real_data
from incontrast.compare.trace import trace
from incontrast.evaluate import EvaluationLoss

ROWS = Path(__file__).parent / "results" / "schedules.jsonl"
WORK = Path(__file__).parents[1] / "build" / "schedules"
SAMPLE = 512  # old and new items, each, on which the evaluation loss is measured
EPOCHS = 40
GRID = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
STARTS = (1e-2, 1e-3, 1e-4, 1e-5)


def variants() -> dict[str, ic.Strategy]:
    """All that is compared."""

    def icl(lr: Any, **settings: Any) -> ic.ICL:
        return ic.ICL(lr=lr, max_epochs=EPOCHS, **settings)

    return {
        **{f"fixed {lr:g}": icl(ic.Fixed(lr)) for lr in GRID},
        "2e-3, the default": icl(ic.ICL().lr),
        **{f"learned from {start:g}": icl(ic.Learned(start=start)) for start in STARTS},
        "cosine from 3e-3": icl(ic.Cosine(3e-3)),
        "Prodigy": icl(ic.Fixed(1.0), optimizer=ic.Prodigy()),
        "paper's agent": icl(ic.DDPG()),
    }


def digits(seed: int) -> tuple[ic.Domain, Any, Any]:
    data = ic.data.digits()
    rows = torch.from_numpy(data.items.reshape(len(data), -1)).float()
    return ic.Vectors(64), *ic.streams.by_class(rows, (7, 8, 9), labels=data.labels)


def proteins(seed: int) -> tuple[ic.Domain, Any, Any]:
    return ic.Graphs(), *ic.streams.by_growth(real_data.graphs("PROTEINS").items, 0.3, seed)


def mnist_2(seed: int) -> tuple[ic.Domain, Any, Any]:
    data = some(real_data.digits_of_mnist((0, 1)), 2000, seed)
    return ic.Images(28, 1, encoder="small"), *ic.streams.by_growth(data.items, 0.3)


def mnist_rows(seed: int) -> tuple[ic.Domain, Any, Any]:
    data = some(real_data.digits_of_mnist(tuple(range(10))), 3000, seed)
    rows = torch.from_numpy(data.items.reshape(len(data), -1)).float()
    return ic.Vectors(784), *ic.streams.by_class(rows, (3, 6), labels=data.labels)


def some(data: Any, count: int, seed: int) -> Any:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.select(order[:count])


SETS = {
    "digits 7/3": digits,
    "PROTEINS 0.3": proteins,
    "MNIST 8/2, vectors": mnist_rows,
    "MNIST-2 0.3": mnist_2,
}


def run(names: list[str], seeds: list[int], only: str) -> None:
    torch.set_num_threads(1)
    for seed in seeds:
        for name in names:
            domain, old, new = SETS[name](seed)
            learner, ceiling = prepared(name, seed, domain, old, new)
            done = {(row["set"], row["seed"], row["settings"]) for row in rows()}
            for variant, strategy in variants().items():
                if only in variant and (name, seed, repr(strategy)) not in done:
                    print(
                        f"{time.strftime('%H:%M:%S')}  {name}, seed {seed}, {variant}", flush=True
                    )
                    traced = trace(learner, old, new, strategy, sample=SAMPLE)
                    reached = traced.reaches(EvaluationLoss(*ceiling["loss"]))
                    outcome = traced.outcome
                    row = {
                        "set": name,
                        "seed": seed,
                        "variant": variant,
                        "settings": repr(strategy),
                        "before": traced.points[0].loss,
                        "after": traced.points[-1].loss,
                        "retraining": ceiling["loss"],
                        "retraining_seconds": ceiling["seconds"],
                        "seconds": outcome.seconds,
                        "passes": outcome.forward_passes,
                        "reached_seconds": reached and reached.seconds,
                        "reached_passes": reached and reached.forward_passes,
                        "rates": [epoch.lr for epoch in outcome.history],
                        "rollbacks": outcome.rollbacks,
                        "reverted": outcome.reverted,
                        "date": time.strftime("%Y-%m-%d"),
                    }
                    with ROWS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def prepared(
    name: str, seed: int, domain: ic.Domain, old: Any, new: Any
) -> tuple[ic.Learner, dict[str, Any]]:
    """The learner fitted on the old items, and what retraining comes to."""
    place = WORK / f"{name} {seed}".replace("/", "-").replace(" ", "_").replace(",", "")
    if not (place / "ceiling.json").exists():
        print(f"{time.strftime('%H:%M:%S')}  {name}, seed {seed}, fit and retraining", flush=True)
        learner = ic.Learner(domain, seed=seed)
        learner.fit(old)
        learner.save(place / "learner")
        traced = trace(learner, old, new, ic.Retrain(), sample=SAMPLE)
        ceiling = {"loss": traced.points[-1].loss, "seconds": traced.outcome.seconds}
        (place / "ceiling.json").write_text(json.dumps(ceiling))
    return ic.Learner.load(place / "learner"), json.loads((place / "ceiling.json").read_text())


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def latest() -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """(set, variant) to its rows by seed; of rows with other settings, the last counts."""
    cells: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows():
        cells.setdefault((row["set"], row["variant"]), {})[row["seed"]] = row
    return cells


def show() -> None:
    cells = latest()
    print(
        "| data (seeds) | rates | loss over X′ | against best fixed | reaches retraining "
        "| passes against best fixed | never worse | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in SETS:
        fixed = {v: cells[name, v] for v in (f"fixed {r:g}" for r in GRID) if (name, v) in cells}
        if not fixed:
            continue
        for variant in variants():
            found = cells.get((name, variant), {})
            if found:
                print(f"| {name} ({len(found)}) | {variant} | {line(found, fixed)} |")
        whole = sum(row["seconds"] for found in fixed.values() for row in found.values())
        seeds = max(len(found) for found in fixed.values())
        print(f"| {name} | *the whole grid* |  |  |  |  |  | {whole / seeds:.1f} |")


def line(found: dict[int, dict[str, Any]], fixed: dict[str, dict[int, dict[str, Any]]]) -> str:
    ratios, speeds = [], []
    for seed, row in found.items():
        rivals = [cell[seed] for cell in fixed.values() if seed in cell]
        ratios.append(row["after"][2] / min(rival["after"][2] for rival in rivals))
        quickest = [r["reached_passes"] for r in rivals if r["reached_passes"] is not None]
        if quickest:
            mine = row["reached_passes"]
            speeds.append(float("inf") if mine is None else mine / min(quickest))
    reached = sum(row["reached_passes"] is not None for row in found.values())
    worse = sum(row["after"][2] > row["before"][2] for row in found.values())
    median = statistics.median
    return " | ".join(
        [
            f"{median(row['after'][2] for row in found.values()):.4f}",
            f"{median(ratios):.3f} (worst {max(ratios):.3f})",
            f"{reached} of {len(found)}",
            f"{median(speeds):.2f}" if speeds else "–",
            "yes" if not worse else f"no, {worse} of {len(found)}",
            f"{median(row['seconds'] for row in found.values()):.1f}",
        ]
    )


def stream(seeds: list[int]) -> None:
    """Passes until each of five updates is within 2 % of the loss that it ends with."""
    torch.set_num_threads(1)
    carried, anew = [], []
    for seed in seeds:
        data = ic.data.digits()
        images = torch.from_numpy(data.items.reshape(len(data), -1)).float()
        first, *later = ic.streams.in_batches(images, 6, seed)
        for agents, passes in ((True, carried), (False, anew)):
            learner = ic.Learner(ic.Vectors(64), strategy=ic.ICL(lr=ic.Learned()), seed=seed)
            learner.fit(first)
            seen, needed = first, []
            for part in later:
                if not agents:
                    learner.schedule_state = {}
                traced = trace(learner, seen, part, learner.strategy, sample=SAMPLE)
                end = traced.points[-1].loss.all
                near = next(p for p in traced.points[1:] if p.loss.all <= 1.02 * end)
                needed.append(near.forward_passes / len(part))
                learner, seen = traced.learner, torch.cat([seen, part])
            passes.append(needed)
    for name, needed in (("carried over", carried), ("begun anew", anew)):
        means = [statistics.fmean(column) for column in zip(*needed, strict=True)]
        shown = ", ".join(f"{mean:.0f}" for mean in means)
        print(f"agents {name}: encoder passes per new item until within 2 % of the end: {shown}")


def overhead() -> None:
    """A step with learned rates against one with a fixed rate, in turns."""
    torch.set_num_threads(1)
    pictures = torch.randint(256, (512, 3, 32, 32), dtype=torch.uint8)
    cases = {
        "GCN on PROTEINS": (ic.Graphs(), real_data.graphs("PROTEINS").items, 400),
        "ResNet-18 at 32 px": (ic.Images(32, encoder="resnet18-standard"), pictures, 12),
    }
    for name, (domain, items, steps) in cases.items():
        old, new = ic.streams.by_growth(items, 0.3)
        learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=1), seed=0)
        learner.fit(old, budget=ic.Budget(forward_passes=1000))
        ratios = []
        for _ in range(7):
            times = []
            for rates in (ic.Fixed(1e-3), ic.Learned()):
                strategy = ic.ICL(lr=rates, max_epochs=1000)
                budget = ic.Budget(
                    forward_passes=steps * 2 * (strategy.batch_size + strategy.old_batch_size)
                )
                twin = copy.deepcopy(learner)
                outcome = twin.update(new, strategy=strategy, budget=budget)
                times.append(outcome.seconds / outcome.forward_passes)
            ratios.append(times[1] / times[0])
        middle = statistics.median(ratios)
        print(
            f"{name}: {middle:.3f}× a step with a fixed learning rate "
            f"({min(ratios):.3f}–{max(ratios):.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show", "stream", "overhead"])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", default="", help="variants whose name holds this text")
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.sets, arguments.seeds, arguments.only)
    if arguments.what == "stream":
        stream(arguments.seeds)
    elif arguments.what == "overhead":
        overhead()
    else:
        show()


if __name__ == "__main__":
    main()
