"""The search for learning rates, by short trials that are rows themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from incontrast import Learner, Strategy
from paper.experiment import Experiment
from paper.grid import SEARCH_SEED, Group
from paper.row_file import Row
from paper.strategies import STRATEGIES, retraining

Ledger = dict[tuple[str, str], Row]
"""Rows by ``identity``."""

Trials = dict[float, tuple[Experiment, Strategy]]


def identity(row: Row) -> tuple[str, str]:
    """The name and the settings of what a row is about: two names may have the same settings."""
    return row["strategy"], row["key"]


def fit_trials(group: Group, folder: Path | None, work: Path) -> Trials:
    """Short initial trainings, one at each learning rate, on the increment that is searched on."""
    group = group.of_seed(SEARCH_SEED)
    trials: Trials = {}
    for lr in group.data.learning_rates:
        short = retraining(group.data, lr, max_epochs=group.data.search_epochs)
        trials[lr] = (Experiment(group, short, folder, work), short)
    return trials


def strategy_trials(name: str, experiment: Experiment) -> Trials:
    """Short updates by this strategy, one at each learning rate."""
    entry, data = STRATEGIES[name], experiment.group.data
    short = data.search_epochs
    return {lr: (experiment, entry.make(lr, max_epochs=short)) for lr in data.learning_rates}


def best_lr(
    name: str,
    trials: Trials,
    rows: Ledger,
    *,
    learner: Callable[[], Learner] | None = None,
    add: Callable[[Row], None] | None = None,
) -> float | None:
    """The learning rate of the lowest loss, the higher one if two are alike.

    Args:
        name: What is searched for: ``"fit"`` or a strategy.
        trials: Its trials.
        rows: The rows there are.
        learner: Gives the fitted learner, where one is needed.
        add: Takes the rows of missing trials; None does not run any.

    Returns:
        None if trials are missing and were not to be run.
    """
    if len(trials) == 1:
        return next(iter(trials))
    losses: dict[float, float] = {}
    for lr, (experiment, strategy) in trials.items():
        row = rows.get((name, experiment.key("trial", strategy)))
        if row is None:
            if add is None:
                return None
            row = experiment.trial(name, lr, strategy, None if learner is None else learner())
            add(row)
        losses[lr] = float("inf") if row["loss"] is None else row["loss"]
    return min(losses, key=lambda lr: (losses[lr], -lr))
