"""What training ends with: averaged weights, and BatchNorm statistics that fit them."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from incontrast.training.task import Task, joint_epoch

BATCHES = 8  # batches of X′ whose views set the statistics
SIZE = 64  # items in each of them
CALIBRATED = BATCHES * SIZE
STATISTICS = ("running_mean", "running_var")


class ExponentialMovingAverage:
    """An exponential moving average of parameters.

    It begins as a mean of all iterates and becomes exponential once enough have gone by, so that it
    is not biased by where the weights began. ``decay`` is the weight of the past; 0 keeps the last
    iterate. The mean of a short run leans to its last iterates: with ``leaning`` 1 it is the plain
    mean, with 4 half of the weight is on the last sixth (polynomial-decay averaging, Shamir & Zhang
    2013).
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float, leaning: float = 1.0) -> None:
        self._parameters, self._decay, self._leaning = list(parameters), decay, leaning
        self.mean = [p.detach().clone() for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        weight = max(1.0 - self._decay, self._leaning / (self.steps + self._leaning))
        torch._foreach_lerp_(self.mean, self._parameters, weight)

    @torch.no_grad()
    def apply(self, parameters: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(parameters), self.mean)


def train_mode(encoder: nn.Module) -> nn.Module:
    """Training mode, but for BatchNorm layers that are frozen: their statistics stay as they are.

    A layer is frozen if it has weights and none of them requires a gradient.
    """
    encoder.train()
    for module in encoder.modules():
        if isinstance(module, _BatchNorm):
            weights = list(module.parameters(recurse=False))
            if weights and not any(weight.requires_grad for weight in weights):
                module.eval()
    return encoder


@torch.no_grad()
def calibrate(task: Task, encoder: nn.Module) -> None:
    """Set running statistics to those of views of X′ under the current weights.

    The running mean of a training run lags behind the weights, and belongs to none of them once
    they are averaged: the loss in evaluation mode can jump by half from one epoch to the next.
    Moments are pooled over all values of all batches: batches of graphs differ in size, and so do
    their means.
    """
    training = encoder.training
    layers = [
        module
        for module in train_mode(encoder).modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]
    if layers:
        _set_statistics(task, encoder, layers)
    encoder.train(training)


def _set_statistics(task: Task, encoder: nn.Module, layers: list[_BatchNorm]) -> None:
    # Of each layer's inputs, batch by batch: values per channel here, their mean and variance.
    found: dict[_BatchNorm, list[tuple[int, Tensor, Tensor]]] = {layer: [] for layer in layers}

    def note(layer: _BatchNorm, inputs: tuple[Any, ...], output: Tensor) -> None:
        mean, variance = (layer.get_buffer(name).clone() for name in STATISTICS)
        found[layer].append((inputs[0].numel() // inputs[0].shape[1], mean, variance))

    before = [(layer, layer.momentum, layer.register_forward_hook(note)) for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # statistics of one batch at a time
    draws, passes = task.generator("calibration"), task.forward_passes
    batches = islice(joint_epoch(task.increment, SIZE, draws), BATCHES)
    for batch in task.view_batches(batches, draws):
        task.embed(batch.views, encoder=encoder)
    task.forward_passes = passes  # they are no part of training
    for layer, momentum, hook in before:
        layer.momentum = momentum
        hook.remove()
    here = torch.tensor([count for moments in found.values() for count, _, _ in moments])
    counts = task.engine.all_reduce(here.to(task.engine.device)).cpu().double()
    each = torch.split(counts, [len(moments) for moments in found.values()])
    for (layer, moments), own in zip(found.items(), each, strict=True):
        if not moments:  # the encoder does not use it
            continue
        count = own[:, None]  # (batches, 1) in all processes
        _, *columns = zip(*moments, strict=True)
        means, variances = (torch.stack(column).cpu().double() for column in columns)
        total = count.sum()
        mean = (count * means).sum(dim=0) / total
        squares = (count - 1.0) * variances + count * means.square()  # variances are unbiased
        variance = (squares.sum(dim=0) - total * mean.square()) / (total - 1.0).clamp_min(1.0)
        for name, value in zip(STATISTICS, (mean, variance.clamp_min(0.0)), strict=True):
            layer.get_buffer(name).copy_(value)
