"""How long an update would take here: a second of it, and the work that it has to do."""

from __future__ import annotations

from incontrast.strategies.strategy import Strategy
from incontrast.training.loop import TrainingDiverged, train
from incontrast.training.progress import Budget
from incontrast.training.task import Task

__all__ = ["forecast"]

TRIAL = Budget(seconds=1.0)


def forecast(task: Task, strategy: Strategy) -> float | None:
    """Seconds of training at most (patience may end it earlier); None if it cannot be tried.

    Args:
        task: With a copy of the encoder, which is trained for a second.
        strategy: How the update would be done.
    """
    passes = 2 * strategy.epoch_items(task.increment) * strategy.max_epochs
    if passes == 0:
        return 0.0
    try:
        run = train(task, strategy, budget=TRIAL)
    except (TrainingDiverged, ValueError):
        return None
    return run.seconds * passes / run.forward_passes if run.forward_passes else None
