"""How long an update would take here: a second of it, and the work that it has to do."""

from __future__ import annotations

import copy

from torch import nn

from incontrast.domains.base import Domain
from incontrast.strategies.base import Strategy
from incontrast.training.contrast import Objective
from incontrast.training.engine import Engine
from incontrast.training.increment import Increment
from incontrast.training.loop import TrainingDiverged, train
from incontrast.training.progress import Budget
from incontrast.training.task import Task

__all__ = ["forecast"]

TRIAL = Budget(seconds=1.0)


def forecast(
    encoder: nn.Module,
    domain: Domain,
    increment: Increment,
    strategy: Strategy,
    *,
    objective: Objective,
    engine: Engine,
    seed: int,
) -> float | None:
    """Seconds of training at most (patience may end it earlier); None if it cannot be tried."""
    passes = 2 * strategy.epoch_items(increment) * strategy.max_epochs
    if passes == 0:
        return 0.0
    task = Task(
        copy.deepcopy(encoder), domain, increment, objective=objective, engine=engine, seed=seed
    )
    try:
        run = train(task, strategy, budget=TRIAL)
    except (TrainingDiverged, ValueError):
        return None
    return run.seconds * passes / run.passes if run.passes else None
