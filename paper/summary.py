"""Rows by data set, growth ratio, strategy and seed, and the figures that compare them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from statistics import fmean
from typing import Any, Literal

from incontrast.parity import TOLERANCE, EvaluationLoss, at_parity, keeps_parity
from paper.names import GRAPHS, IMAGES, RETRAINING, SETS, SHIFTED, STRATEGIES, set_title
from paper.row_file import Row
from paper.statistics import Estimate, mean, ratio

RATIOS = (0.3, 0.5, 0.7)
"""The growth ratios of the paper's tables."""

Metric = Literal["time", "epoch", "forward passes"]
Protocol = Literal["paper", "parity"]
_FIELD = {"time": "seconds", "epoch": "epochs", "forward passes": "forward_passes"}


@cache
def published() -> dict[str, Any]:
    """The paper's own figures, with their source."""
    text = (files("paper") / "published.json").read_text(encoding="utf-8")
    figures: dict[str, Any] = json.loads(text)
    return figures


@dataclass(frozen=True)
class Place:
    """A data set at a growth ratio."""

    set: str
    growth_ratio: float

    @property
    def usual(self) -> bool:
        """Whether the paper's tables have this growth ratio."""
        return self.growth_ratio in RATIOS

    @property
    def title(self) -> str:
        """For people."""
        return f"{set_title(self.set)}, α = {self.growth_ratio:g}"


def published_speed_up(place: Place, strategy: str, metric: str) -> float | None:
    """The paper's own, if it has one."""
    figures = published()["speed_ups"].get(place.set, {}).get(strategy)
    if figures is None or metric not in figures or not place.usual:
        return None
    value: float = figures[metric][RATIOS.index(place.growth_ratio)]
    return value


@dataclass(frozen=True, eq=False)
class Summary:
    """Rows of one scale, ready to be compared.

    Rows of one place count together only if they share the clock and all settings but strategy and
    seed. Of settings that differ, those count with which retraining has been run with most seeds,
    or the later ones; the rest is set aside. Of rows that stand for the same run the last one
    counts.

    Args:
        rows: All rows of a file.
        scale: Which of them.
    """

    rows: Sequence[Row]
    scale: str = "small"

    @cached_property
    def _runs(self) -> dict[tuple[Place, str, int], Row]:
        runs = {
            (_place(row), row["strategy"], row["seed"]): row
            for row in self._of_kind("run")
            if self._settings.get(_place(row)) == _shared(row)
            and not (row["strategy"] == RETRAINING and "failed" in row)
        }
        return {
            (place, strategy, seed): row
            for (place, strategy, seed), row in runs.items()
            if (place, RETRAINING, seed) in runs
        }

    def _of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind and row["scale"] == self.scale]

    @cached_property
    def _settings(self) -> dict[Place, str]:
        """The settings that count at each place."""
        seeds: dict[Place, dict[str, set[int]]] = {}
        for row in self._of_kind("run"):
            if row["strategy"] == RETRAINING and "failed" not in row:
                found = seeds.setdefault(_place(row), {})
                shared = _shared(row)
                found[shared] = found.pop(shared, set()) | {row["seed"]}  # the latest comes last
        return {
            place: max(reversed(found), key=lambda shared: len(found[shared]))
            for place, found in seeds.items()
        }

    @property
    def set_aside(self) -> int:
        """Runs whose settings are not those that count at their place."""
        return sum(
            _place(row) in self._settings and self._settings[_place(row)] != _shared(row)
            for row in self._of_kind("run")
        )

    @cached_property
    def places(self) -> list[Place]:
        """Data sets and growth ratios, in the order of the tables."""
        found = {place for place, _, _ in self._runs}
        order = {name: number for number, name in enumerate(SETS)}
        return sorted(found, key=lambda place: (order.get(place.set, 99), place.growth_ratio))

    def kinds(self) -> tuple[tuple[Sequence[str], str], ...]:
        """The sets that share a table, and what they are called together."""
        others = {place.set for place in self.places} - {*IMAGES, *GRAPHS, *SHIFTED}
        return (
            (IMAGES, "images"),
            (GRAPHS, "graphs"),
            (SHIFTED, "new classes and a shift"),
            (sorted(others), "other data sets"),
        )

    @cached_property
    def strategies(self) -> list[str]:
        """Strategies that have rows, in the order of the tables."""
        found = {strategy for _, strategy, _ in self._runs}
        return [name for name in STRATEGIES if name in found]

    @cached_property
    def _seeds(self) -> dict[tuple[Place, str], list[int]]:
        found: dict[tuple[Place, str], list[int]] = {}
        for place, strategy, seed in sorted(self._runs, key=lambda run: run[2]):
            found.setdefault((place, strategy), []).append(seed)
        return found

    def seeds(self, place: Place, strategy: str) -> list[int]:
        """Seeds that this strategy has been run with."""
        return self._seeds.get((place, strategy), [])

    def of_seeds(self, seeds: Collection[int]) -> Summary:
        """The same of these seeds only."""
        return Summary([row for row in self.rows if row["seed"] in seeds], self.scale)

    def runs(self, place: Place, strategy: str) -> list[tuple[Row, Row]]:
        """Its rows, one for each seed, each with retraining's row of that seed."""
        return [
            (self._runs[place, strategy, seed], self._runs[place, RETRAINING, seed])
            for seed in self.seeds(place, strategy)
        ]

    def finished(self, place: Place, strategy: str) -> list[Row]:
        """Its rows less those whose training diverged."""
        return [row for row, _ in self.runs(place, strategy) if "failed" not in row]

    def paper_speed_up(self, place: Place, strategy: str, metric: Metric) -> Estimate | None:
        """The paper's: retraining's figure to its lowest loss over the strategy's."""
        return self._speed_up(place, strategy, metric, lambda row: row["paper"]["best"])

    def cut_short(self, place: Place, strategy: str) -> bool:
        """Whether an update's forward passes ended before the paper's rule did, in any seed.

        Its loss may have fallen further: the paper's speed-up is then at most what was found.
        """
        rows = self.finished(place, strategy)
        return any(row["paper"]["stopped"] == "limit" for row in rows)

    def parity_speed_up(self, place: Place, strategy: str, metric: Metric) -> Estimate | None:
        """The same to parity with what retraining ends with.

        Seeds whose old encoder is at parity before any update are left out, as there is nothing to
        gain, unless the update loses that.
        """
        reached = {row["seed"] for row in self._at_parity(place, strategy)}
        return self._speed_up(
            place,
            strategy,
            metric,
            lambda row: row["parity"]["reached"],
            left_out=reached & self._parity_before(place),
        )

    def parity_seeds(self, place: Place, strategy: str) -> tuple[int, int]:
        """Seeds with which a strategy was at parity at some time, and all of them."""
        return len(self._at_parity(place, strategy)), len(self.seeds(place, strategy))

    def parity_lost(self, place: Place, strategy: str) -> int:
        """Seeds with which it was at parity at some time, but no longer at the end of the run."""
        return sum(
            not keeps_parity(_loss(row, "after"), _loss(row, "target"))
            for row in self._at_parity(place, strategy)
        )

    def sure(self, place: Place, strategy: str) -> bool:
        """Whether it was run with every seed, came to parity with each and did not lose it."""
        reached, seeds = self.parity_seeds(place, strategy)
        every = reached == seeds == len(self.seeds(place, RETRAINING))
        return every and not self.parity_lost(place, strategy)

    def _at_parity(self, place: Place, strategy: str) -> list[Row]:
        """Runs that were at parity at some time once they had begun."""
        return [row for row in self.finished(place, strategy) if row["parity"]["reached"]]

    def _parity_before(self, place: Place) -> set[int]:
        rows = self.finished(place, RETRAINING)
        return {
            row["seed"] for row in rows if at_parity(_loss(row, "before"), _loss(row, "target"))
        }

    def _speed_up(
        self,
        place: Place,
        strategy: str,
        metric: Metric,
        at: Callable[[Row], Any],
        left_out: Collection[int] = (),
    ) -> Estimate | None:
        values: list[float | None] = []
        runs = self.runs(place, strategy)
        for row, retrained in runs:
            if row["seed"] in left_out:
                continue
            found = None if "failed" in row else at(row)
            name = _FIELD[metric]
            values.append(None if not found else at(retrained)[name] / max(found[name], 1e-9))
        return ratio(values, before=len(runs) - len(values)) if runs else None

    def accuracy(
        self, place: Place, strategy: str, which: str, protocol: Protocol = "paper"
    ) -> Estimate:
        """SVM or kNN accuracy over seeds: svm_old, svm_new, knn_old, knn_new, held_out."""
        return mean(_accuracies(self.finished(place, strategy), which, protocol))

    def accuracy_difference(
        self, place: Place, strategy: str, which: str, protocol: Protocol = "paper"
    ) -> Estimate:
        """The same less retraining's, seed by seed."""
        pairs = [pair for pair in self.runs(place, strategy) if "failed" not in pair[0]]
        mine, retrained = (
            _accuracies([pair[side] for pair in pairs], which, protocol) for side in (0, 1)
        )
        return mean([a - b for a, b in zip(mine, retrained, strict=True)])

    def loss(self, place: Place, strategy: str, part: str, when: str = "after") -> Estimate:
        """The evaluation loss of old, new or all items, before or after."""
        return mean([row["parity"][when][part] for row in self.finished(place, strategy)])

    def forgets(self, place: Place, strategy: str) -> bool:
        """Whether the old items' loss ends above what it was by more than the tolerance."""
        before = self.loss(place, strategy, "old", "before").value
        after = self.loss(place, strategy, "old").value
        return before is not None and after is not None and after > (1 + TOLERANCE) * before

    def average_rank(
        self, places: Iterable[Place], strategies: Sequence[str], metric: Metric
    ) -> dict[str, float]:
        """Mean rank by the paper's speed-up, over places where all of these have one."""
        ranks: dict[str, list[float]] = {name: [] for name in strategies}
        for place in places:
            found = {name: self.paper_speed_up(place, name, metric) for name in strategies}
            values = {name: e.value for name, e in found.items() if e is not None and e.value}
            if len(values) < len(strategies):
                continue
            for name, value in values.items():
                above = sum(other > value for other in values.values())
                equal = sum(other == value for other in values.values())
                ranks[name].append(above + (equal + 1) / 2)
        return {name: sum(found) / len(found) for name, found in ranks.items() if found}

    def search_cost(self, place: Place) -> dict[str, tuple[int, float, float | None]]:
        """For each searched strategy: trials, their seconds, the learning rate chosen."""
        costs = {}
        for name, trials in self._trials.get(place, {}).items():
            good = [row for row in trials if row["loss"] is not None]
            best = min(good, key=lambda row: (row["loss"], -row["lr"]), default=None)
            seconds = sum(row["cost"]["seconds"] for row in trials)
            costs[name] = (len(trials), seconds, None if best is None else best["lr"])
        return costs

    @cached_property
    def _trials(self) -> dict[Place, dict[str, list[Row]]]:
        """Trials of learning rates, of the settings that count, by place and strategy."""
        # The trials of the initial training itself each have one of their own.
        counting = {
            (place, _shared(row, "fit_strategy"))
            for (place, name, _), row in self._runs.items()
            if name == RETRAINING
        }
        found: dict[Place, dict[str, list[Row]]] = {}
        for row in self._of_kind("trial"):
            if (_place(row), _shared(row, "fit_strategy")) in counting:
                found.setdefault(_place(row), {}).setdefault(row["strategy"], []).append(row)
        return found


def _place(row: Row) -> Place:
    return Place(row["set"], row["growth_ratio"])


def _shared(row: Row, *but: str) -> str:
    """What rows must have in common to be compared, and averaged over seeds."""
    apart = ("kind", "seed", "strategy", *but)
    settings = {name: value for name, value in row["settings"].items() if name not in apart}
    return json.dumps([settings, row["clock"]], sort_keys=True)


def last_third(row: Row) -> float:
    """The share by which the evaluation loss fell in the last third of a run's forward passes."""
    passes, losses = row["curve"]["forward_passes"], row["curve"]["all"]
    before: list[float] = [
        loss for spent, loss in zip(passes, losses, strict=True) if 3 * spent <= 2 * passes[-1]
    ]
    fall: float = 1.0 - losses[-1] / before[-1]
    return fall


def _loss(row: Row, when: str) -> EvaluationLoss:
    return EvaluationLoss(**row["parity"][when])


def _accuracies(rows: Iterable[Row], which: str, protocol: Protocol) -> list[float]:
    found = [row[protocol]["accuracy"][which] for row in rows]
    return [fmean(value.values()) if isinstance(value, dict) else value for value in found]
