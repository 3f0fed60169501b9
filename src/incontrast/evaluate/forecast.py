"""How long an update would take, from a trial of a second."""

from incontrast.strategies.strategy import Strategy
from incontrast.training.loop import TrainingDiverged, train
from incontrast.training.progress import Progress
from incontrast.training.task import Task

TRIAL, LONGEST_TRIAL = 1.0, 5.0  # seconds; the latter only if steps are so slow
FEWEST_STEPS = 3  # to be timed


def forecast(task: Task, strategy: Strategy, *, without_gradients: int = 0) -> float | None:
    """Seconds that an update takes at most (patience may end it earlier); None if it fails.

    The encoder of the task, a copy, is trained for about a second after its first step, which is
    slow. Forward passes ``without_gradients``, as evaluation needs them, are counted as well.
    """
    passes = 2 * strategy.epoch_items(task.increment) * strategy.epochs(task.increment)
    if passes == 0:
        return 0.0
    passes += without_gradients // 3  # the backward pass takes twice as long as the forward pass
    steps: list[tuple[float, int]] = []  # seconds and forward passes after each step
    task.stepped = task.encoder  # to compile it would take longer than the trial

    def note(progress: Progress) -> bool:
        if progress.finished is None:
            steps.append((progress.seconds, progress.forward_passes))
        tried = steps[-1][0] - steps[0][0]
        return tried < TRIAL or (len(steps) <= FEWEST_STEPS and tried < LONGEST_TRIAL)

    try:
        run = train(task, strategy, callbacks=[note])
    except (TrainingDiverged, ValueError):
        return None
    if len(steps) == 1:
        return passes * run.seconds / run.forward_passes
    # The mean, not the median: on a busy machine few steps wait, but long.
    (begun, before), (ended, after) = steps[0], steps[-1]
    return passes * (ended - begun) / (after - before)
