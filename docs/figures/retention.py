"""What retention does to old and new items: figure and numbers of docs/explanation/theory.md.

    python docs/figures/retention.py

It writes retention.svg and retention.json beside this file and prints the page's tables. The
digits of scikit-learn are split into 7 old and 3 new classes; everything is deterministic on one
thread of one machine.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from incontrast import (
    ICL,
    Adam,
    Collection,
    FineTune,
    Increment,
    Learner,
    Progress,
    Retrain,
    Strategy,
    Vectors,
    batch_losses,
    increment_losses,
)
from incontrast.data import Labelled, digits
from incontrast.evaluate import Population, bias, measure, risk_bound
from incontrast.evaluate.population import population
from incontrast.randomness import generator
from incontrast.streams import by_class, by_growth
from incontrast.training.engine import embed_views

SEEDS = (0, 1, 2)
EPOCHS = 20  # over ΔX
BATCH = 32
DRAWS = 2000  # batches on which the bias of batches is measured

# The paper's batch size and learning rate for all, so that neither separates the updates.
SMALL: dict[str, Any] = {"lr": 1e-3, "batch_size": BATCH}
INITIAL = Retrain(ema_decay=0.99, max_epochs=100, patience=None, **SMALL)
JOINT = ICL(
    old_batch_size=BATCH,
    ema_decay=0.99,
    max_epochs=EPOCHS,
    optimizer=Adam(),
    emphasis=None,
    hard_negatives=None,
    epoch_steps=1,
    ema_leaning=1.0,
    **SMALL,
)

STRATEGIES: dict[str, Strategy] = {
    "ρ = 0": replace(JOINT, retention=0.0),
    "ρ = 0.1": replace(JOINT, retention=0.1),
    "ρ = 0.5": replace(JOINT, retention=0.5),
    "ρ = 1": replace(JOINT, retention=1.0),
    "ρ = 1, longer": replace(JOINT, retention=1.0, max_epochs=5 * EPOCHS),
    "ICL.paper()": ICL.paper(max_epochs=EPOCHS),
    "ICL.paper(learned_lr=False)": ICL.paper(learned_lr=False, max_epochs=EPOCHS),
    "ICL.paper(meta=False, learned_lr=False)": ICL.paper(
        meta=False, learned_lr=False, max_epochs=EPOCHS
    ),
    "FineTune()": FineTune(ema_decay=0.99, max_epochs=EPOCHS, **SMALL),
}
DRAWN = {  # Okabe & Ito's colours, which colour-blind readers tell apart
    "ρ = 0": {"color": "#D55E00", "linestyle": "-", "marker": "o"},
    "ρ = 0.1": {"color": "#E69F00", "linestyle": "-", "marker": "s"},
    "ρ = 0.5": {"color": "#56B4E9", "linestyle": "-", "marker": "^"},
    "ρ = 1": {"color": "#0072B2", "linestyle": "-", "marker": "D"},
    "ICL.paper()": {"color": "#555555", "linestyle": "--", "marker": "x"},
}
PANELS = {
    "old": "loss of old items",
    "new": "loss of new items",
    "change_ratio": "change ratio r, median",
}

Pair = tuple[Tensor, Tensor]  # (n, d) embeddings of first and of second views


class Case:
    """An encoder trained on old items, and the new items that have come."""

    def __init__(self, old: Labelled, new: Labelled, seed: int) -> None:
        old_rows, new_rows = (part.items.reshape(len(part), -1) for part in (old, new))
        self.learner = Learner(Vectors(64), fit_strategy=INITIAL, seed=seed)
        self.learner.fit(old_rows)
        domain = self.learner.domain
        self.increment = Increment(domain.collect(old_rows), domain.collect(new_rows), len(old))
        self.before = self.measure(self.learner)

    def measure(self, learner: Learner) -> Population:
        return measure(learner.encoder, learner.domain, self.increment, seed=learner.seed)

    def update(self, strategy: Strategy) -> dict[str, Any]:
        """What happens to the encoder, epoch by epoch, and Theorem 2 at the end."""
        learner = copy.deepcopy(self.learner)
        seen = [self.before]

        def watch(progress: Progress) -> None:
            if progress.finished is not None:
                seen.append(
                    measure(progress.snapshot(), learner.domain, self.increment, seed=learner.seed)
                )

        learner.update(self.increment.new, strategy=strategy, callbacks=[watch])
        return {
            "old": [point.evaluation_loss().old for point in seen],
            "new": [point.evaluation_loss().new for point in seen],
            "all": [point.evaluation_loss().all for point in seen],
            "change_ratio": [point.change_ratio().median for point in seen],
            "logits": _logits(seen[-1]),
            **_theorem_2(seen[-1], self.before),
        }

    def retrained(self) -> dict[str, float]:
        learner = copy.deepcopy(self.learner)
        learner.update(self.increment.new, strategy=INITIAL)
        return self.measure(learner).evaluation_loss()._asdict()

    def batches(self) -> dict[str, float]:
        """The evaluation loss over X′, and what batches of both kinds estimate it to be."""
        alpha, objective = self.increment.growth_ratio, self.learner.objective
        assert self.increment.old is not None
        old, new = self._embed(self.increment.old, "old"), self._embed(self.increment.new, "new")
        first, second = (torch.cat(views) for views in zip(old, new, strict=True))
        draws = generator(self.learner.seed, "batches")

        def some(count: int) -> Tensor:
            return torch.randperm(count, generator=draws)[:BATCH]

        def joint() -> float:
            chosen = torch.cat([some(len(old[0])), some(len(new[0])) + len(old[0])])
            of_old, of_new = increment_losses(
                first[chosen],
                second[chosen],
                objective,
                old=BATCH,
                growth_ratio=alpha,
                retention=1.0,
            )
            return ((1.0 - alpha) * of_old.mean() + alpha * of_new.mean()).item()

        def retraining() -> float:
            chosen = some(len(first))
            return batch_losses(first[chosen], second[chosen], objective).mean().item()

        def exact(old: Pair, new: Pair) -> float:
            return (
                population(old, new, growth_ratio=alpha, objective=objective).evaluation_loss().all
            )

        return {
            # Batches count both directions, first view to second and back.
            "evaluation": (exact(old, new) + exact(old[::-1], new[::-1])) / 2,
            "retraining": mean(retraining() for _ in range(DRAWS)),
            "joint": mean(joint() for _ in range(DRAWS)),
        }

    def _embed(self, items: Collection, name: str) -> Pair:
        learner, draws = self.learner, generator(self.learner.seed, "views", name)
        return embed_views(learner.encoder, learner.domain, items, draws, engine=learner.engine)


def _theorem_2(after: Population, before: Population | None = None) -> dict[str, float]:
    risk = risk_bound(after, before=before)
    return {
        "old_risk": risk.old_risk,
        "bound": risk.bound,
        "process_difference": risk.process_difference,
        "objective_difference": risk.objective_difference,
    }


def _logits(after: Population) -> dict[str, float]:
    """Means over old items of log f⁺, log E_X and log E_ΔX."""
    old = after.old
    assert old is not None
    assert old.old_negatives is not None
    assert old.new_negatives is not None
    means = (part.mean().item() for part in (old.positive, old.old_negatives, old.new_negatives))
    return dict(zip(("positive", "old_negatives", "new_negatives"), means, strict=True))


def _table_2(before: Population) -> dict[str, dict[str, tuple[float, float]]]:
    return {
        name: {"mean": row.mean(), "mean_absolute": row.mean_absolute()}
        for name, row in bias(before)._asdict().items()
    }


def measure_all() -> dict[str, Any]:
    """Every number of the page; lists have one entry per seed."""
    classes, random = [], []
    for seed in SEEDS:
        case = Case(*by_class(digits(), new=[7, 8, 9]), seed)
        classes.append(
            {
                "table_2": _table_2(case.before),
                "theorem_2": _theorem_2(case.before),
                "logits": _logits(case.before),
                "updates": {name: case.update(strategy) for name, strategy in STRATEGIES.items()},
                "retraining": case.retrained(),
                "batches": case.batches(),
            }
        )
        alpha = case.increment.growth_ratio
        case = Case(*by_growth(digits(), alpha=alpha, seed=seed), seed)
        random.append(
            {
                "table_2": _table_2(case.before),
                "updates": {"ρ = 0": case.update(STRATEGIES["ρ = 0"])},
            }
        )
    return {
        "seeds": SEEDS,
        "epochs": EPOCHS,
        "growth_ratio": alpha,
        "by_class": classes,
        "at_random": random,
    }


def draw(numbers: dict[str, Any], path: Path) -> None:
    """Mean over seeds as lines, lowest to highest seed as bands."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "retention", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.1), layout="constrained")
    epochs = range(numbers["epochs"] + 1)
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        for name, style in DRAWN.items():
            curves = [seed["updates"][name][key] for seed in numbers["by_class"]]
            points = list(zip(*curves, strict=True))
            axis.plot(
                epochs, [mean(p) for p in points], label=name, markevery=4, markersize=5, **style
            )
            axis.fill_between(
                epochs,
                [min(p) for p in points],
                [max(p) for p in points],
                color=style["color"],
                alpha=0.15,
                linewidth=0,
            )
        if key != "change_ratio":
            ceiling = mean(seed["retraining"][key] for seed in numbers["by_class"])
            axis.axhline(ceiling, color="#666666", linestyle=":", label="retraining")
        axis.set(title=title, xlabel="epochs over ΔX", xticks=range(0, numbers["epochs"] + 1, 5))
        axis.set_ylim(bottom=0, top=1 if key == "change_ratio" else None)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def tables(numbers: dict[str, Any]) -> str:
    """The page's tables: means over seeds, and the lowest and highest of them in brackets."""
    classes, random = numbers["by_class"], numbers["at_random"]
    keys = ("old", "new", "all", "change_ratio")

    def over(values: list[float], digits: int = 2) -> str:
        low, high = min(values), max(values)
        return f"{mean(values):.{digits}f} ({low:.{digits}f}, {high:.{digits}f})"

    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    def curves(name: str, seeds: list[dict[str, Any]], place: int) -> list[str]:
        return [over([seed["updates"][name][key][place] for seed in seeds]) for key in keys]

    lines = [
        f"α = {numbers['growth_ratio']:.3f}",
        "",
        "| bias: mean, mean size | old by class | new by class | old at random | new at random |",
    ]
    for name in classes[0]["table_2"]:
        cells = []
        for seeds, part in ((classes, 0), (classes, 1), (random, 0), (random, 1)):
            kinds = (
                mean(seed["table_2"][name][kind][part] for seed in seeds)
                for kind in ("mean", "mean_absolute")
            )
            cells.append(", ".join(f"{value:.2g}" for value in kinds))
        lines.append(row(name, *cells))
    lines += ["", "| Theorem 2 before the update | |"]
    for key in classes[0]["theorem_2"]:
        lines.append(row(key, over([seed["theorem_2"][key] for seed in classes], 3)))
    lines += ["", "| after the update | old | new | X′ | r | process difference |"]
    lines.append(row("before", *curves("ρ = 0", classes, 0)))
    for name in STRATEGIES:
        process = [seed["updates"][name]["process_difference"] for seed in classes]
        lines.append(row(name, *curves(name, classes, -1), over(process, 3)))
    retrained = [over([seed["retraining"][key] for seed in classes]) for key in keys[:3]]
    lines.append(row("retraining", *retrained))
    lines.append(row("at random, before", *curves("ρ = 0", random, 0)))
    lines.append(row("at random, ρ = 0", *curves("ρ = 0", random, -1)))
    lines += ["", "| log of | f⁺ | E_X | E_ΔX |"]
    found = {"before": [seed["logits"] for seed in classes]} | {
        name: [seed["updates"][name]["logits"] for seed in classes] for name in ("ρ = 0", "ρ = 1")
    }
    for name, logits in found.items():
        lines.append(row(name, *(over([each[key] for each in logits]) for key in logits[0])))
    lines += ["", "| loss over X′ | |"]
    for key in classes[0]["batches"]:
        lines.append(row(key, over([seed["batches"][key] for seed in classes], 3)))
    return "\n".join(lines)


def _short(value: Any) -> Any:
    """Five digits of every number."""
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_short(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    torch.set_num_threads(1)
    here = Path(__file__).parent
    numbers = _short(measure_all())
    (here / "retention.json").write_text(json.dumps(numbers, ensure_ascii=False) + "\n")
    draw(numbers, here / "retention.svg")
    print(tables(numbers))


if __name__ == "__main__":
    main()
