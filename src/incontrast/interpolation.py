"""How much of an update's change to keep, where all of it would do harm."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from incontrast.evaluate.population import Population
from incontrast.evaluate.probes import ProbeScores
from incontrast.parity import EvaluationLoss
from incontrast.randomness import seeded
from incontrast.training.calibration import calibrate
from incontrast.training.task import Task

PARTS = 3  # of a change that are tried


class Measured(NamedTuple):
    """What is known of an encoder before or after training."""

    population: Population
    probe: ProbeScores | None

    @property
    def loss(self) -> EvaluationLoss:
        return self.population.evaluation_loss()


def keep_part(
    task: Task,
    before: Measured,
    after: Measured,
    measure: Callable[[nn.Module], Measured],
    *,
    tolerance: float,
    drifted: bool,
) -> tuple[nn.Module, Measured, float]:
    """The encoder that keeps the best part of a change, what is known of it, and the part.

    An encoder and the one it was trained from are joined by a line of weights that work, once
    BatchNorm's statistics fit them. Where new items differ from old ones, a larger part is better
    as long as old items lose no more than tolerated and new ones gain. Where they do not differ,
    the loss of all decides. If no part will do, the whole change is kept.

    Args:
        task: The run, with the trained encoder and the one of before.
        before: What is known of the encoder of before.
        after: What is known of the trained one.
        measure: Measures another.
        tolerance: How much larger the loss of old items may be, as a share.
        drifted: Whether new items differ from old ones.
    """
    assert task.before is not None
    bound = before.loss.old * (1.0 + tolerance)

    def less(first: float, second: float) -> bool:  # rounding differs between processes
        return task.engine.broadcast_float(first - second) < 0.0

    whole = kept = (task.encoder, after, 1.0)
    if drifted and not less(bound, after.loss.old):
        return whole
    low, high = 0.0, 1.0
    for number in range(1, PARTS + 1):
        part = (low + high) / 2 if drifted else number / (PARTS + 1)
        encoder = between(task.before, task.encoder, part)
        with seeded(task.seed, "calibration", device=task.engine.device):
            calibrate(task, encoder)
        found = measure(encoder)
        if not drifted:
            if less(found.loss.all, kept[1].loss.all):
                kept = encoder, found, part
        elif less(bound, found.loss.old):
            high = part
        else:
            low, kept = part, (encoder, found, part)
    if drifted and not less(kept[1].loss.new, before.loss.new):
        return whole
    return kept


@torch.no_grad()
def between(before: nn.Module, after: nn.Module, part: float) -> nn.Module:
    """An encoder whose weights are this part of the way from one to the other."""
    encoder = copy.deepcopy(after)
    torch._foreach_lerp_(list(encoder.parameters()), list(before.parameters()), 1.0 - part)
    return encoder
