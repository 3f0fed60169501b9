"""Batches beyond memory go through the encoder in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import incontrast as ic
from incontrast.loss import Objective, batch_losses
from incontrast.training.engine import Engine


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 8)).double()


def gradients(size: int | None, module: nn.Module, views: Tensor) -> tuple[list[Tensor], int]:
    """The gradients of a loss over all views, and the bytes that were kept for them."""
    engine, kept = Engine("cpu"), 0
    engine.micro_batch_size = size

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        first, second = engine.embed_pair(module, views)
    loss = batch_losses(first, second, Objective()).mean()
    return list(torch.autograd.grad(loss, list(module.parameters()))), kept


@pytest.mark.parametrize("size", [2, 7, 64])
def test_gradients_of_parts_are_those_of_the_whole_batch(size: int) -> None:
    module = encoder()
    views = torch.randn(66, 6, generator=Generator().manual_seed(0)).double()
    whole, whole_bytes = gradients(None, module, views)
    parts, part_bytes = gradients(size, module, views)
    torch.testing.assert_close(parts, whole, rtol=1e-8, atol=1e-10)
    assert part_bytes < whole_bytes / 10


def test_graphs_are_embedded_in_parts() -> None:
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    draws = Generator().manual_seed(0)
    graphs = ic.Graphs().collect([(path, torch.randn(3, 2, generator=draws)) for _ in range(9)])
    batch = graphs.take(torch.arange(9))
    module = ic.Graphs(features=2, hidden=4).encoder().eval()
    engine = Engine("cpu")
    whole = engine.forward(module, batch)
    engine.micro_batch_size = 4
    torch.testing.assert_close(engine.forward(module, batch), whole)


def test_a_learner_trains_in_parts(blobs) -> None:
    def fitted(**settings: Any) -> ic.Outcome:
        domain = ic.Vectors(8, encoder=lambda: nn.Linear(8, 4))
        strategy = ic.Retrain(max_epochs=3)
        return ic.Learner(domain, fit_strategy=strategy, **settings).fit(blobs(64))

    whole, parts = fitted(), fitted(micro_batch_size=10)
    assert parts.steps == whole.steps
    assert parts.loss.after.all == pytest.approx(whole.loss.after.all, rel=1e-4)
    with pytest.raises(ValueError, match="micro_batch_size must be at least 2"):
        fitted(micro_batch_size=1)
