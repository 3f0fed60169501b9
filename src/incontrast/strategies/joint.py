"""The losses of old and new items in one batch, and how they are weighed."""

from __future__ import annotations

from torch import Tensor

from incontrast.training.contrast import increment_losses
from incontrast.training.task import Loaded, Task

__all__ = ["joint_losses", "weigh"]


def joint_losses(
    task: Task, loaded: Loaded, retention: float, parameters: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """(old,) and (new,) losses from one forward pass over both views of all items."""
    first, second = task.embed(loaded.views, parameters=parameters)
    return increment_losses(
        first,
        second,
        task.objective,
        old=loaded.old,
        growth_ratio=task.growth_ratio,
        retention=retention,
    )


def weigh(of_old: Tensor, of_new: Tensor, growth_ratio: float) -> Tensor:
    """(1−α)·mean over old anchors + α·mean over new ones: unbiased for any number of each."""
    return (1.0 - growth_ratio) * of_old.mean() + growth_ratio * of_new.mean()
