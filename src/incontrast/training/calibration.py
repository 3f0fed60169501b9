"""BatchNorm's running statistics: which are trained, and what they are set to after training."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from incontrast.training.sampler import joint_epoch
from incontrast.training.task import Task

__all__ = ["calibrate", "train_mode"]

BATCHES = 8  # batches of X′ whose views set the statistics
SIZE = 64  # items in each of them


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
        draws, views = task.generator("calibration draws"), task.generator("calibration views")
        batches = islice(joint_epoch(task.increment, SIZE, draws), BATCHES)
        passes = task.forward_passes
        pooled = [_Moments(layer, task) for layer in layers]
        for batch in task.view_batches(batches, views):
            task.embed(batch.views, encoder=encoder)
        task.forward_passes = passes  # they are no part of training
        for moments in pooled:
            moments.close()
    encoder.train(training)


class _Moments:
    """Collects the moments of a layer's inputs, batch after batch."""

    def __init__(self, layer: _BatchNorm, task: Task) -> None:
        self.layer, self.engine = layer, task.engine
        self.momentum, layer.momentum = layer.momentum, 1.0  # statistics of one batch at a time
        assert layer.running_mean is not None
        zeros = torch.zeros_like(layer.running_mean, dtype=torch.float64, device="cpu")
        self.count, self.total, self.squares = 0.0, zeros.clone(), zeros
        self.hook = layer.register_forward_hook(self._add)

    def _add(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        values: Tensor = inputs[0]
        here = torch.tensor(values.numel() // values.shape[1], device=values.device)
        count = float(self.engine.all_reduce(here))
        mean, variance = self._statistics()
        self.count += count
        self.total += count * mean
        self.squares += (count - 1.0) * variance + count * mean.square()  # variances are unbiased

    def _statistics(self) -> tuple[Tensor, Tensor]:
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        return self.layer.running_mean.cpu().double(), self.layer.running_var.cpu().double()

    def close(self) -> None:
        """Write the pooled statistics, and leave the layer as it was otherwise."""
        self.hook.remove()
        self.layer.momentum = self.momentum
        if self.count == 0.0:  # a layer that the encoder does not use
            return
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        mean = self.total / self.count
        variance = (self.squares - self.count * mean.square()) / max(self.count - 1.0, 1.0)
        self.layer.running_mean.copy_(mean)
        self.layer.running_var.copy_(variance.clamp_min(0.0))
