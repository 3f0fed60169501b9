"""BatchNorm's running statistics: which are trained, and what they are set to after training."""

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from incontrast.training.task import Task, joint_epoch

BATCHES = 8  # batches of X′ whose views set the statistics
SIZE = 64  # items in each of them
CALIBRATED = BATCHES * SIZE


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
        draws = task.generator("calibration")
        batches = islice(joint_epoch(task.increment, SIZE, draws), BATCHES)
        passes = task.forward_passes
        pooled = [_Moments(layer) for layer in layers]
        for batch in task.view_batches(batches, draws):
            task.embed(batch.views, encoder=encoder)
        task.forward_passes = passes  # they are no part of training
        here = torch.tensor([count for moments in pooled for count in moments.counts])
        counts = task.engine.all_reduce(here.to(task.engine.device)).cpu().double()
        owned = torch.split(counts, [len(moments.counts) for moments in pooled])
        for moments, own in zip(pooled, owned, strict=True):
            moments.close(own[:, None])
    encoder.train(training)


class _Moments:
    """Collects the moments of a layer's inputs, batch after batch."""

    def __init__(self, layer: _BatchNorm) -> None:
        self.layer = layer
        self.momentum, layer.momentum = layer.momentum, 1.0  # statistics of one batch at a time
        self.counts: list[int] = []  # values per channel in this process's part of each batch
        self.means: list[Tensor] = []
        self.variances: list[Tensor] = []
        self.hook = layer.register_forward_hook(self._add)

    def _add(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        values: Tensor = inputs[0]
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        self.counts.append(values.numel() // values.shape[1])
        self.means.append(self.layer.running_mean.clone())
        self.variances.append(self.layer.running_var.clone())

    def close(self, counts: Tensor) -> None:
        """Write the pooled statistics, and leave the layer as it was otherwise.

        ``counts`` is (batches, 1), values per channel in each batch in all processes.
        """
        self.hook.remove()
        self.layer.momentum = self.momentum
        if not self.counts:  # a layer that the encoder does not use
            return
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        means, variances = (torch.stack(c).cpu().double() for c in (self.means, self.variances))
        total = counts.sum()
        mean = (counts * means).sum(dim=0) / total
        squares = (counts - 1.0) * variances + counts * means.square()  # variances are unbiased
        variance = (squares.sum(dim=0) - total * mean.square()) / (total - 1.0).clamp_min(1.0)
        self.layer.running_mean.copy_(mean)
        self.layer.running_var.copy_(variance.clamp_min(0.0))
