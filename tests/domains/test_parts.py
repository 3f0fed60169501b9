"""Views of the parts of a batch are the views of the whole, however it is divided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import incontrast as ic
from incontrast.domains.base import Part
from incontrast.domains.text.collection import TokenBatch
from incontrast.training.fabric import share_of

COUNT = 11


def vectors() -> tuple[ic.Domain, Any, Any]:
    rows = torch.randn(2 * COUNT, 3, generator=Generator().manual_seed(0))
    domain = ic.Vectors(3)
    old, new = domain.collect(rows[:COUNT]), domain.collect(rows[COUNT:])
    return domain.fit_statistics(old), old, new


def images() -> tuple[ic.Domain, Any, Any]:
    pixels = ic.data.digits().items
    domain = ic.Images(8, 1, encoder="small", views=ic.ImageViews(blur=0.5))
    return domain, domain.collect(pixels[:COUNT]), domain.collect(pixels[COUNT : 2 * COUNT])


def graphs(**settings: Any) -> tuple[ic.Domain, Any, Any]:
    draws = Generator().manual_seed(1)
    items = []
    for _ in range(2 * COUNT):
        nodes = int(torch.randint(1, 8, (), generator=draws))
        upper = torch.triu(torch.rand(nodes, nodes, generator=draws) < 0.5, diagonal=1)
        edges = (upper | upper.T).nonzero().T
        items.append((edges, torch.randn(nodes, 2, generator=draws)))
    domain = ic.Graphs(hidden=4, drop=0.7, **settings)
    old, new = domain.collect(items[:COUNT]), domain.collect(items[COUNT:])
    return domain.fit_statistics(old), old, new


def texts() -> tuple[ic.Domain, Any, Any]:
    lines = [f"{name} {'and so on ' * (number % 5)}" for number, name in enumerate("abcdefghijk")]
    domain = ic.Text()
    old, new = domain.collect(lines), domain.collect(lines[::-1])
    return domain.fit_statistics(old), old, new


@dataclass(frozen=True)
class Plain(ic.Domain):
    """A domain that only has what it must have."""

    def collect(self, items: Any) -> ic.TensorCollection:
        return ic.TensorCollection(items)

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(2, *batch.shape, generator=generator)
        return batch + noise[0], batch + noise[1]

    def encoder(self) -> nn.Module:
        return nn.Linear(3, 2)


def plain() -> tuple[ic.Domain, Any, Any]:
    _, old, new = vectors()
    return Plain(), old, new


def columns(view: Any) -> list[Tensor]:
    if isinstance(view, TokenBatch):
        return [view.ids, view.lengths, view.seeds]
    return [view] if isinstance(view, Tensor) else [view.x, view.edge_index, view.graph, view.ptr]


@pytest.mark.parametrize("processes", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "make",
    [vectors, images, graphs, lambda: graphs(per="batch"), texts, plain],
    ids=[
        "vectors",
        "images",
        "graphs",
        "graphs, one change per batch",
        "texts",
        "a domain of one's own",
    ],
)
def test_views_of_parts_are_views_of_the_whole(
    make: Callable[[], tuple[ic.Domain, Any, Any]], processes: int
) -> None:
    domain, old, new = make()
    sources = [(old, torch.tensor([4, 0, 7, 2, 9])), (new, torch.tensor([3, 8, 1, 1]))]
    whole = domain.join([items.take(indices) for items, indices in sources])
    after = set()
    for seed in range(12):
        generator = Generator().manual_seed(seed)
        expected = domain.views(whole, generator)
        after.add(int(torch.randint(2**62, (), generator=generator)))
        parts: list[tuple[Any, Any]] = []
        for rank in range(processes):
            share = share_of(9, rank, processes)
            mine = [
                items.take(indices[max(share.start - before, 0) : max(share.stop - before, 0)])
                for before, (items, indices) in zip((0, 5), sources, strict=True)
            ]
            generator = Generator().manual_seed(seed)
            part = Part(domain.join(mine), share.start, sources, torch.device("cpu"))
            parts.append(domain.views_of_part(part, generator))
            # Whoever draws next continues where one process would.
            after.add(int(torch.randint(2**62, (), generator=generator)))
        for view, pieces in zip(expected, zip(*parts, strict=True), strict=True):
            for one, many in zip(columns(view), columns(domain.join(list(pieces))), strict=True):
                assert one.shape == many.shape
                torch.testing.assert_close(one, many, rtol=1e-6, atol=1e-6)
    assert len(after) == 12


def test_a_batch_that_cannot_be_sliced_is_refused() -> None:
    class Sealed:
        def __len__(self) -> int:
            return 2

        def to(self, device: Any) -> Sealed:
            return self

    class Odd(Plain):
        def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
            return Sealed(), Sealed()

    _, old, _ = vectors()
    part = Part(old.take(torch.tensor([0])), 0, [(old, torch.tensor([0, 1]))], torch.device("cpu"))
    with pytest.raises(TypeError, match="a Sealed cannot be sliced, which training on several"):
        Odd().views_of_part(part, Generator())
