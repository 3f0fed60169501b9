"""The search for learning rates, by short trials that are rows themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from incontrast.learner import Learner
from incontrast.strategies import Strategy
from paper.cells import Bench
from paper.grid import SEARCH_SEED, Group
from paper.row_file import Row
from paper.strategies import retraining

__all__ = ["Ledger", "best_rate", "fitting_trials", "identity", "strategy_trials"]

Ledger = dict[tuple[str, str], Row]
"""Rows by ``identity``."""

Trials = dict[float, tuple[Bench, Strategy]]


def identity(row: Row) -> tuple[str, str]:
    """The name and the settings of what a row is about: two names may have the same settings."""
    return row["strategy"], row["key"]


def fitting_trials(group: Group, folder: Path | None, work: Path) -> Trials:
    """Short first fits, one at each rate, on the increment that is searched on."""
    group = group.of_seed(SEARCH_SEED)
    trials: Trials = {}
    for rate in group.data.rates:
        short = retraining(group.data, rate, max_epochs=group.data.search_epochs)
        trials[rate] = (Bench(group, short, folder, work), short)
    return trials


def strategy_trials(group: Group, name: str, bench: Bench) -> Trials:
    """Short updates by this strategy, one at each rate; ``bench`` holds what is searched on."""
    entry, data = group.line_up[name], group.data
    short = data.search_epochs
    return {rate: (bench, entry.make(rate, max_epochs=short)) for rate in data.rates}


def best_rate(
    name: str,
    trials: Trials,
    rows: Ledger,
    *,
    learner: Callable[[], Learner] | None = None,
    tell_row: Callable[[Row], None] | None = None,
) -> float | None:
    """The rate of the lowest loss, the higher one if two are alike.

    Args:
        name: What is searched for: ``"fitting"`` or a strategy.
        trials: Its trials.
        rows: The rows there are.
        learner: Gives the fitted learner, where one is needed.
        tell_row: Takes the rows of missing trials; None does not run any.

    Returns:
        None if trials are missing and were not to be run.
    """
    if len(trials) == 1:
        return next(iter(trials))
    losses: dict[float, float] = {}
    for rate, (bench, strategy) in trials.items():
        row = rows.get((name, bench.key("trial", strategy)))
        if row is None:
            if tell_row is None:
                return None
            row = bench.trial(name, rate, strategy, None if learner is None else learner())
            tell_row(row)
        losses[rate] = float("inf") if row["loss"] is None else row["loss"]
    return min(losses, key=lambda rate: (losses[rate], -rate))
