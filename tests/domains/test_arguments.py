"""encoder= and views= of every domain: what may be given, and what becomes of it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

import incontrast as ic
from incontrast.domains.base import Part

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
ROWS = torch.randn(12, 4, generator=Generator().manual_seed(0))
TRIANGLE = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
GRAPHS = [(TRIANGLE, torch.randn(3, 2, generator=Generator().manual_seed(i))) for i in range(12)]


class SumNodes(nn.Module):
    """An encoder of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, batch: Any) -> Tensor:
        rows: Tensor = self.linear(batch.x)
        return rows.new_zeros(len(batch), 3).index_add(0, batch.graph, rows)


class Jitter(nn.Module):
    """A transform that draws from torch's own generator, as torchvision's do."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows + 0.1 * torch.randn_like(rows)


def jitter(rows: Tensor, generator: Generator) -> Tensor:
    return rows + 0.1 * torch.randn(rows.shape, generator=generator)


def jitter_nodes(batch: Any, generator: Generator) -> Any:
    return replace(batch, x=jitter(batch.x, generator))


KINDS: list[tuple[type[Any], dict[str, Any], Any, Any, Any]] = [
    (ic.Images, {"size": 8, "channels": 1}, PIXELS, nn.Flatten, jitter),
    (ic.Vectors, {"dim": 4}, ROWS, lambda: nn.Linear(4, 3), jitter),
    (ic.Graphs, {}, GRAPHS, SumNodes, jitter_nodes),
]
each_kind = pytest.mark.parametrize(
    ("domain", "settings", "items", "encoder", "views"), KINDS, ids=["images", "vectors", "graphs"]
)


@each_kind
def test_every_domain_takes_an_encoder_and_views(
    domain: Any, settings: Any, items: Any, encoder: Any, views: Any
) -> None:
    calls = []

    def counted(batch: Any, generator: Generator) -> Any:
        calls.append(len(batch))
        return views(batch, generator)

    own = domain(**settings, encoder=encoder, views=counted)
    ic.check_domain(own, items)
    assert calls
    calls.clear()
    make = (
        encoder if encoder is not nn.Flatten else lambda: nn.Sequential(encoder(), nn.Linear(64, 3))
    )
    learner = ic.Learner(
        replace(own, encoder=make), fit_strategy=ic.Retrain(max_epochs=1, ema_decay=0.0)
    )
    learner.fit(items)
    assert calls
    assert learner.embed(items).shape == (12, 3)


@each_kind
def test_arguments_keep_their_names(
    domain: Any, settings: Any, items: Any, encoder: Any, views: Any
) -> None:
    module = encoder()
    own = domain(**settings, encoder=module, views=views)
    assert own.arguments()["encoder"] is module
    assert own.arguments()["views"] is views
    for other in (replace(own), copy.copy(own), domain(**own.arguments())):
        assert other == own
        assert hash(other) == hash(own)
        assert other.arguments()["views"] is views
    usual = domain(**settings)
    assert replace(usual, encoder=module, views=views) == own != usual
    assert pickle.loads(pickle.dumps(usual)) == usual
    assert copy.deepcopy(usual) == usual


def test_a_replaced_setting_reaches_encoder_and_views() -> None:
    larger = replace(ic.Images(8, 1, encoder="small"), size=16, channels=3)
    assert larger == ic.Images(16, 3, encoder="small")
    batch = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    first, _ = larger.views(batch, Generator())
    assert larger.encoder()(first).shape == (2, 128)


@each_kind
def test_a_module_is_copied_and_keeps_its_weights(
    domain: Any, settings: Any, items: Any, encoder: Any, views: Any
) -> None:
    module = encoder()
    made = domain(**settings, encoder=module).encoder()
    assert made is not module
    assert all(
        torch.equal(one, other)
        for one, other in zip(made.parameters(), module.parameters(), strict=True)
    )
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, got int"):
        domain(**settings, encoder=lambda: 3).encoder()


def test_a_transform_with_global_randomness_is_reproducible() -> None:
    domain = ic.Images(8, 1, encoder=nn.Flatten, views=Jitter())
    state = torch.get_rng_state()
    ic.check_domain(domain, PIXELS)
    assert torch.equal(torch.get_rng_state(), state)


@each_kind
def test_views_of_ones_own_are_the_same_on_many_processes(
    domain: Any, settings: Any, items: Any, encoder: Any, views: Any
) -> None:
    own = domain(**settings, views=views)
    collection = own.collect(items)
    own = own.fit_statistics(collection)
    everything = torch.arange(12)
    whole = own.views(collection.take(everything), Generator().manual_seed(0))
    for share in (range(5), range(5, 12)):
        batch = collection.take(everything[share.start : share.stop])
        part = Part(batch, share.start, [(collection, everything)], torch.device("cpu"))
        pair = own.views_of_part(part, Generator().manual_seed(0))
        for expected, found in zip(whole, pair, strict=True):
            expected = expected[share.start : share.stop]
            if domain is ic.Graphs:
                for column in ("x", "edge_index", "graph", "ptr"):
                    assert torch.equal(getattr(expected, column), getattr(found, column))
            else:
                assert torch.equal(expected, found)


@each_kind
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoder": 3}, r"encoder must be a torch\.nn\.Module or a function.*got 3"),
        ({"encoder": {"weight": torch.zeros(2)}}, "got weights alone: give the module"),
        ({"encoder": "vgg"}, "a module of your own, got 'vgg'"),
        ({"views": 3}, r"views must be a function of a batch and a torch\.Generator.*got 3"),
        ({"views": "crop"}, "views must be a function of a batch"),
        ({"views": ic.ImageViews}, r"ImageViews'> \(without its parentheses\?\)"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    domain: Any, settings: Any, items: Any, encoder: Any, views: Any, arguments: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        domain(**settings, **arguments)


@pytest.mark.parametrize("domain", [ic.Images, lambda *_, **views: ic.Text(**views)])
@pytest.mark.parametrize("views", [None, (None, None)])
def test_views_are_not_none_where_a_recipe_is_needed(domain: Any, views: Any) -> None:
    with pytest.raises(TypeError, match=r"views must be a function of a batch .*got None"):
        domain(8, views=views)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ic.Images((32, 32)), r"size must be a whole number, got \(32, 32\)"),  # type: ignore[arg-type]
        (lambda: ic.Images(8.5), "size must be a whole number, got 8.5"),  # type: ignore[arg-type]
        (lambda: ic.Images(8, "RGB"), "channels must be 1 .* got 'RGB'"),  # type: ignore[arg-type]
        (lambda: ic.Images(8, std=("a", 1, 1)), r"std\[0\] must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: ic.Vectors("4"), "dim must be a whole number, got '4'"),  # type: ignore[arg-type]
        (lambda: ic.Vectors(4, drop=None), "drop must be a number, got None"),  # type: ignore[arg-type]
        (lambda: ic.Graphs(hidden=True), "hidden must be a whole number, got True"),
        (lambda: ic.Graphs(drop="0.2"), "drop must be a number, got '0.2'"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_a_wrong_type_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_subclass_may_override_both_methods() -> None:
    class Still(ic.Vectors):
        def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
            first, _ = super().views(batch, generator)
            return first, torch.zeros_like(first)

        def encoder(self) -> nn.Module:
            return nn.Sequential(super().encoder(), nn.Identity())

    domain = Still(4).fit_statistics(ic.TensorCollection(ROWS))
    assert domain == replace(domain)
    usual, _ = ic.Vectors(4, mean=domain.mean, std=domain.std).views(ROWS, Generator())
    first, second = domain.views(ROWS, Generator())
    assert torch.equal(first, usual)
    assert not second.any()
    assert isinstance(domain.encoder()[1], nn.Identity)
    part = Part(ROWS[:5], 0, [(ic.TensorCollection(ROWS), torch.arange(12))], torch.device("cpu"))
    assert not domain.views_of_part(part, Generator())[1].any()
