"""How much of an update's change to keep, where all of it would do harm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from incontrast.evaluate.population import Population
from incontrast.evaluate.probes import ProbeScores, significant_falls
from incontrast.parity import EvaluationLoss
from incontrast.randomness import seeded
from incontrast.training.averages import calibrate
from incontrast.training.task import Task

PARTS = 3  # of a change that are tried
HALVINGS = 4  # of a change that replaces neighbours: what just meets that bound is no better


class Measured(NamedTuple):
    """What is known of an encoder before or after training."""

    population: Population
    loss: EvaluationLoss
    probe: ProbeScores | None
    neighbours: float | None = None  # share of old items' nearest that are those of before


class Bounds(NamedTuple):
    """What an update may do; None is no bound. Where there is one, a probe must not fall either.

    Args:
        tolerance: How much larger the loss of old items may be, as a share.
        neighbours: The least share of old items' nearest items that must stay. Labels know better:
            where there is a probe, it decides instead.
    """

    tolerance: float | None = None
    neighbours: float | None = None

    def allow(self, before: Measured, after: Measured) -> bool:
        if self.tolerance is not None and not math.isnan(before.loss.old):  # of no old items
            bound = before.loss.old * (1.0 + self.tolerance)
            if not after.loss.old <= bound:
                return False
        if before.probe is not None and after.probe is not None:
            return not significant_falls(before.probe, after.probe, self.tolerance or 0.0)
        stayed = after.neighbours
        return self.neighbours is None or stayed is None or stayed >= self.neighbours


class Part(NamedTuple):
    """An encoder on the line from the one of before to the trained one."""

    encoder: nn.Module
    found: Measured
    share: float  # of the way


def keep_part(
    task: Task,
    before: Measured,
    after: Measured,
    measure: Callable[[nn.Module], Measured],
    bounds: Bounds,
) -> Part:
    """The best part of a change.

    An encoder and the one it was trained from are joined by a line of weights that work, once
    BatchNorm's statistics fit them. Half of the change is kept where it is better than the whole
    on old and on new items, as it often is where they are alike. Less is kept where this is not
    within the bounds. If no part will do, or new items gain by none, it is all (or half), which a
    workspace then refuses; with a bound on neighbours it is nothing.

    Args:
        task: The run, with the trained encoder and the one of before.
        before: What is known of the encoder of before.
        after: What is known of the trained one.
        measure: Measures another.
        bounds: What the update may do.
    """
    assert task.before is not None

    def true(answer: bool) -> bool:  # rounding differs between processes
        return bool(task.engine.broadcast_float(float(answer)))

    def at(share: float) -> Part:
        assert task.before is not None
        encoder = between(task.before, task.encoder, share)
        with seeded(task.seed, "calibration", device=task.engine.device):
            calibrate(task, encoder)
        if bounds.neighbours is not None:
            lerp_statistics(task.before, encoder, share)
        return Part(encoder, measure(encoder), share)

    def allowed(part: Part) -> bool:
        return true(bounds.allow(before, part.found))

    whole = Part(task.encoder, after, 1.0)
    fine = allowed(whole)
    if fine and true(not after.loss.old > before.loss.old):
        return whole
    half = at(0.5)
    if true(half.found.loss.old < after.loss.old and half.found.loss.new < after.loss.new):
        half_fine = allowed(half)
        if half_fine or not fine:
            whole, fine = half, half_fine
    if fine:
        return whole
    kept, low, high, part = None, 0.0, 1.0, half
    most = PARTS if bounds.neighbours is None else HALVINGS
    for number in range(1, most + 1):
        if allowed(part):
            kept, low = part, part.share
        else:
            high = part.share
        if number == most or (kept is not None and bounds.neighbours is not None):
            break
        part = at((low + high) / 2)
    if kept is not None and true(kept.found.loss.new < before.loss.new):
        return kept
    if bounds.neighbours is None:
        return whole
    return Part(task.before, before._replace(neighbours=1.0), 0.0)


@torch.no_grad()
def between(before: nn.Module, after: nn.Module, part: float) -> nn.Module:
    """An encoder whose weights are this part of the way from one to the other."""
    encoder = copy.deepcopy(after)
    torch._foreach_lerp_(list(encoder.parameters()), list(before.parameters()), 1.0 - part)
    return encoder


@torch.no_grad()
def lerp_statistics(before: nn.Module, encoder: nn.Module, part: float) -> None:
    """Move BatchNorm's statistics towards those of before, as far as the weights are.

    An encoder that was trained elsewhere may have statistics of other views than the domain's:
    setting them again moves embeddings, however small the part of the change.
    """
    earlier = dict(before.named_buffers())
    for name, now in encoder.named_buffers():
        then = earlier.get(name)
        # What an encoder computes once and keeps, for the longest text so far, say, may have grown.
        if then is not None and then.shape == now.shape and now.is_floating_point():
            then = then.to(now)
            # What is equal stays: of a mask's -inf, the difference would be NaN.
            now.copy_(torch.where(now == then, now, now.lerp(then, 1.0 - part)))
