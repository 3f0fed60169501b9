"""Batches beyond memory go through the encoder in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import incontrast as ic
from incontrast import loss
from incontrast.loss import Objective, batch_losses
from incontrast.training import caching
from incontrast.training.engine import Engine, ViewsInParts, two_views


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 8)).double()


def gradients(size: int | None, module: nn.Module, views: Tensor) -> tuple[list[Tensor], int]:
    """The gradients of a loss over all views, and the bytes that were kept for them."""
    engine, kept = Engine("cpu"), 0
    engine.micro_batch_size = size
    there = {parameter.data_ptr() for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes * (tensor.data_ptr() not in there)
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


def test_dropout_is_the_same_when_a_part_is_computed_again() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 4)).double()
    views = torch.randn(20, 6, generator=Generator().manual_seed(0)).double()
    engine = Engine("cpu")
    engine.micro_batch_size = 8
    torch.manual_seed(1)
    embeddings = engine.forward(module, views)
    drawn = torch.rand(3)
    found = torch.autograd.grad(embeddings.square().sum(), list(module.parameters()))
    after = torch.rand(3)
    torch.manual_seed(1)
    plain = torch.cat([module(part) for part in torch.tensor_split(views, 3)])
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(torch.rand(3), after)  # computing again draws nothing that others get
    torch.testing.assert_close(embeddings, plain)
    expected = torch.autograd.grad(plain.square().sum(), list(module.parameters()))
    torch.testing.assert_close(found, expected)


def test_random_numbers_of_the_device_are_kept_for_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the CPU they always are; checkpoint takes another device from the tensors it is given."""
    devices = []

    def kept(part: Any, *tensors: Tensor, **how: Any) -> Tensor:
        devices.extend(tensor.device.type for tensor in tensors)
        return checkpoint(part, *tensors, **how)

    monkeypatch.setattr(caching, "checkpoint", kept)
    engine = Engine("meta")
    engine.micro_batch_size = 2
    engine.forward(nn.Linear(3, 2, device="meta"), torch.empty(4, 3, device="meta"))
    assert devices == ["meta", "meta"]


class Written(TorchDispatchMode):
    """Counts the numbers that operations give."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), named: Any = None):  # type: ignore[no-untyped-def]
        result = function(*args, **(named or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.numbers += result.numel()
        return result


def test_the_gradient_of_many_parts_is_not_copied_for_each() -> None:
    views = torch.randn(512, 6, generator=Generator().manual_seed(0)).double()
    written = {}
    for parts in (8, 128):
        engine, module = Engine("cpu"), nn.Linear(6, 8).double()
        engine.micro_batch_size = len(views) // parts
        total = engine.forward(module, views).square().sum()
        with Written() as mode:
            total.backward()
        written[parts] = mode.numbers
    assert written[128] < 3 * written[8]


@pytest.mark.parametrize("given", [False, True])
def test_parts_can_be_differentiated_twice(given: bool) -> None:
    """As the meta step does, which gives the encoder its weights."""
    module = encoder()
    engine, found = Engine("cpu"), []
    views = torch.randn(9, 6, generator=Generator().manual_seed(0)).double()
    for engine.micro_batch_size in (None, 4):
        weights = dict(module.named_parameters())
        loss = engine.forward(module, views, weights if given else None).square().sum()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        found.append(torch.autograd.grad(total, list(weights.values())))
    torch.testing.assert_close(found[1], found[0])


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


def test_views_of_images_are_made_part_by_part_and_are_the_same() -> None:
    domain = ic.Images(8, 1, encoder="small")
    draws = Generator().manual_seed(0)
    pixels = torch.randint(256, (11, 8, 8), dtype=torch.uint8, generator=draws)
    sources = [(domain.collect(pixels), torch.arange(11))]
    engine, module = Engine("cpu"), domain.encoder().eval()
    views = two_views(domain, sources, 7, engine)
    whole = torch.autograd.grad(_loss(engine, module, views), list(module.parameters()))
    engine.micro_batch_size = 6
    parts = two_views(domain, sources, 7, engine)
    assert isinstance(parts, ViewsInParts)
    assert len(parts) == len(views) == 22
    made = [make().chunk(2) for make in parts.parts]
    assert max(len(first) for first, _ in made) == 3
    torch.testing.assert_close(
        torch.cat([torch.cat(side) for side in zip(*made, strict=True)]), views
    )
    found = torch.autograd.grad(_loss(engine, module, parts), list(module.parameters()))
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(
            engine.embed_pair(module, parts), engine.embed_pair(module, views)
        )


def test_views_of_ones_own_are_made_at_once() -> None:
    domain = ic.Images(8, 1, encoder="small", views=lambda pixels, generator: pixels)
    engine = Engine("cpu")
    engine.micro_batch_size = 4
    pixels = domain.collect(torch.zeros(6, 8, 8, dtype=torch.uint8))
    assert isinstance(two_views(domain, [(pixels, torch.arange(6))], 7, engine), Tensor)


def _loss(engine: Engine, module: nn.Module, views: Any) -> Tensor:
    return batch_losses(*engine.embed_pair(module, views), Objective()).mean()


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


def test_a_large_batch_is_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Generator().manual_seed(0)
    views = torch.randn(2, 23, 5, generator=draws, dtype=torch.float64, requires_grad=True)

    def losses() -> tuple[Tensor, Tensor]:
        parts = loss.increment_losses(*views, Objective(), old=14, growth_ratio=0.3, retention=0.5)
        values = torch.cat(parts)
        (gradient,) = torch.autograd.grad(values @ torch.arange(23.0).double(), views)
        return values.detach(), gradient

    whole = losses()
    monkeypatch.setattr(loss, "AT_ONCE", 8)
    monkeypatch.setattr(loss, "BLOCK", 5)
    torch.testing.assert_close(losses(), whole)
    strata = loss.Strata((14, 9), ((0.5, 1.0), (2.0, 0.0)))
    anchors = range(3, 20)  # as of one of several processes

    def own(first: Tensor, second: Tensor) -> Tensor:
        return loss.anchor_losses(first, second, Objective(temperature=0.5), strata, anchors)

    of_all = Objective(temperature=0.5).losses(*views, strata)
    torch.testing.assert_close(own(*views), of_all[anchors.start : anchors.stop])
    torch.autograd.gradcheck(own, tuple(views.detach().requires_grad_()))
    torch.autograd.gradgradcheck(own, tuple(views.detach().requires_grad_()))
