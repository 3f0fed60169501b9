"""The runs of one increment, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from incontrast import Progress, Strategy, TrainingDiverged
from paper.experiment import Experiment
from paper.grid import SEARCH_SEED, Group
from paper.names import RETRAINING
from paper.row_file import Row
from paper.search import Ledger, best_lr, fit_trials, identity, strategy_trials
from paper.strategies import STRATEGIES, retraining

log = logging.getLogger(__name__)

FIT = "initial training"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a grid.

    Args:
        group: The increment.
        doing: What is being run there.
        epoch: Epochs finished of it.
        share: How much of what it may take at most is done, in [0, 1]; None where nobody knows.
        row: A row that was just finished.
    """

    group: str
    doing: str
    epoch: int = 0
    share: float | None = None
    row: Row | None = None


Notify = Callable[[Event], None]


class GroupRun:
    """The runs of one increment, one after the other."""

    def __init__(
        self, group: Group, rows: Ledger, folder: Path | None, work: Path, notify: Notify
    ) -> None:
        self.group, self.rows, self.folder, self.work = group, rows, folder, work
        self._notify = notify
        self._names = list(dict.fromkeys((RETRAINING, *group.strategies)))

    def run(self) -> None:
        """Run what has no row yet, retraining first."""
        title = self.group.title
        try:
            experiment = self.experiment(search=True)
            assert experiment is not None
            retrained = self.update(experiment, RETRAINING, None)
        except TrainingDiverged as error:
            log.warning("%s: its initial training diverged and it is left out: %s", title, error)
            return
        if "failed" in retrained:
            why = retrained["failed"]
            log.warning("%s: retraining diverged, there is nothing to compare with: %s", title, why)
            return
        for name in self._names[1:]:
            try:
                self.update(experiment, name, retrained)
            except TrainingDiverged as error:
                log.warning(
                    "%s: %s is left out, an initial training that it needs diverged: %s",
                    title,
                    name,
                    error,
                )

    def unfinished(self) -> list[str]:
        """Strategies without a row; without the rows of the search, nobody knows of a run."""
        experiment = self.experiment(search=False)
        if experiment is None:
            return self._names
        strategies = {name: self.strategy(name, experiment, search=False) for name in self._names}
        return [
            name
            for name, strategy in strategies.items()
            if strategy is None or (name, experiment.key("run", strategy)) not in self.rows
        ]

    def experiment(self, *, search: bool, seed: int | None = None) -> Experiment | None:
        """The increment with the learning rate that was found for its initial training.

        None if that was not to be searched.
        """
        group = self.group if seed is None else self.group.of_seed(seed)
        trials = fit_trials(group, self.folder, self.work)
        add = self._add(f"learning rate of the {FIT}") if search else None
        lr = best_lr("fit", trials, self.rows, add=add)
        if lr is None:
            return None
        return Experiment(group, retraining(group.data, lr), self.folder, self.work)

    def strategy(self, name: str, experiment: Experiment, *, search: bool) -> Strategy | None:
        """The strategy at the learning rate found for it; None if it was not to be searched."""
        if name == RETRAINING:
            return experiment.fit_strategy
        entry = STRATEGIES[name]
        if not entry.searched:
            return entry.make(self.group.data.learning_rates[0])
        on: Experiment | None = experiment
        if self.group.seed != SEARCH_SEED:
            on = self.experiment(search=search, seed=SEARCH_SEED)
        if on is None:
            return None
        doing = f"learning rate of {name}"
        lr = best_lr(
            name,
            strategy_trials(name, on),
            self.rows,
            learner=lambda: on.learner(self._callback(doing), self._add(FIT)),
            add=self._add(doing) if search else None,
        )
        return None if lr is None else entry.make(lr)

    def update(self, experiment: Experiment, name: str, retrained: Row | None) -> Row:
        """The row of a strategy, which is run if there is none."""
        strategy = self.strategy(name, experiment, search=True)
        assert strategy is not None
        found = self.rows.get((name, experiment.key("run", strategy)))
        if found is not None:
            return found
        learner = experiment.learner(self._callback(FIT), self._add(FIT))
        callback = self._callback(name)
        row = experiment.run(name, strategy, learner, retrained=retrained, callback=callback)
        self._add(name)(row)
        return row

    def _callback(self, doing: str) -> Callable[[Progress], None]:
        title = self.group.title
        self._notify(Event(group=title, doing=doing))

        def after_step(step: Progress) -> None:
            if step.finished is not None:
                done = min(step.done, 1.0)
                self._notify(Event(group=title, doing=doing, epoch=step.epoch, share=done))

        return after_step

    def _add(self, doing: str) -> Callable[[Row], None]:
        def add(row: Row) -> None:
            if identity(row) in self.rows:
                return  # a fit whose learner was lost has been repeated
            self.rows[identity(row)] = row
            self._notify(Event(group=self.group.title, doing=doing, row=row))

        return add
