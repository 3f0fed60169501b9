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
    loss: EvaluationLoss
    probe: ProbeScores | None


def keep_part(
    task: Task,
    before: Measured,
    after: Measured,
    measure: Callable[[nn.Module], Measured],
    tolerance: float,
) -> tuple[nn.Module, Measured, float]:
    """The encoder that keeps the best part of a change, what is known of it, and the part.

    An encoder and the one it was trained from are joined by a line of weights that work, once
    BatchNorm's statistics fit them. Half of the change is kept where it is better than the whole
    on old and on new items, as it often is where they are alike. Less is kept where this costs old
    items more than tolerated. If no part will do, or new items gain by none, it is all (or half).

    Args:
        task: The run, with the trained encoder and the one of before.
        before: What is known of the encoder of before.
        after: What is known of the trained one.
        measure: Measures another.
        tolerance: How much larger the loss of old items may be, as a share.
    """
    assert task.before is not None
    old, new, _ = before.loss
    bound = old * (1.0 + tolerance)

    def less(first: float, second: float) -> bool:  # rounding differs between processes
        return task.engine.broadcast_float(first - second) < 0.0

    whole = kept = (task.encoder, after, 1.0)
    if not less(old, after.loss.old):
        return whole
    low, high = 0.0, 1.0
    for number in range(PARTS):
        part = (low + high) / 2
        encoder = between(task.before, task.encoder, part)
        with seeded(task.seed, "calibration", device=task.engine.device):
            calibrate(task, encoder)
        found = measure(encoder)
        tolerated = not less(bound, found.loss.old)
        if number == 0:
            better = less(found.loss.old, after.loss.old) and less(found.loss.new, after.loss.new)
            if better:
                whole = kept = (encoder, found, part)
            if tolerated if better else not less(bound, after.loss.old):
                return whole
        if tolerated:
            low, kept = part, (encoder, found, part)
        else:
            high = part
    return kept if less(kept[1].loss.new, new) else whole


@torch.no_grad()
def between(before: nn.Module, after: nn.Module, part: float) -> nn.Module:
    """An encoder whose weights are this part of the way from one to the other."""
    encoder = copy.deepcopy(after)
    torch._foreach_lerp_(list(encoder.parameters()), list(before.parameters()), 1.0 - part)
    return encoder
