"""Views of graphs, against what they should be, graph by graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from incontrast.domains.graphs.collection import GraphBatch
from incontrast.domains.graphs.domain import Graphs

Pair = tuple[Tensor, Tensor]


def numbered(edge_index: Tensor, nodes: int) -> Pair:
    """A graph whose nodes have their number, from 1, as a feature."""
    return edge_index, torch.arange(1.0, nodes + 1)[:, None].repeat(1, 2)


def both_ways(*edges: tuple[int, int]) -> Tensor:
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return torch.cat([edge_index, edge_index.flip(0)], dim=1)


def batch_of(*graphs: Pair) -> GraphBatch:
    return Graphs().collect(list(graphs)).take(torch.arange(len(graphs)))


def parts(batch: GraphBatch) -> list[Pair]:
    """The graphs of a batch, one by one, after a check that its columns fit together."""
    sizes = batch.ptr.diff()
    assert batch.ptr[0] == 0
    assert batch.x.shape[0] == batch.ptr[-1]
    assert torch.equal(batch.graph, torch.repeat_interleave(sizes))
    assert (batch.edge_index[0].diff() >= 0).all()
    assert torch.equal(batch.graph[batch.edge_index[0]], batch.graph[batch.edge_index[1]])
    owner = batch.graph[batch.edge_index[0]]
    return [
        (batch.edge_index[:, owner == graph] - batch.ptr[graph], x)
        for graph, x in enumerate(batch.x.split(sizes.tolist()))
    ]


def induced(graph: Pair, keep: list[int]) -> list[tuple[int, int]]:
    """The edges between the nodes to keep, by their new numbers; a loop over all edges."""
    new = {node: number for number, node in enumerate(keep)}
    edges = zip(*graph[0].tolist(), strict=True)
    return sorted((new[a], new[b]) for a, b in edges if a in new and b in new)


def kept_nodes(graph: Pair, view: Pair) -> list[int] | None:
    """The nodes of a view, or None if it was masked; checks that it is one of either."""
    edge_index, x = view
    edges = sorted(zip(*edge_index.tolist(), strict=True))
    if (x == 0).any():
        hidden = (x == 0).all(dim=1)
        assert torch.equal(x, graph[1].masked_fill(hidden[:, None], 0.0))
        assert edges == induced(graph, list(range(len(x))))
        return None
    keep = (x[:, 0].long() - 1).tolist()
    assert keep
    assert keep == sorted(set(keep))
    assert torch.equal(x, graph[1][keep])
    assert edges == induced(graph, keep)
    return keep


def reachable(graph: Pair, keep: list[int], root: int) -> set[int]:
    seen, todo = {root}, [root]
    while todo:
        here = todo.pop()
        for a, b in zip(*graph[0].tolist(), strict=True):
            if a == here and b in keep and b not in seen:
                seen.add(b)
                todo.append(b)
    return seen


@st.composite
def graphs(draw: st.DrawFn) -> Pair:
    nodes = draw(st.integers(1, 9))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20, unique=True))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return numbered(edge_index, nodes)


settings = st.fixed_dictionaries(
    {
        "drop": st.sampled_from([0.0, 0.2, 1.0]),
        "mask": st.sampled_from([0.0, 0.2, 1.0]),
        "walkers": st.sampled_from([0.01, 0.2, 3.0]),
        "steps": st.integers(1, 6),
        "per": st.sampled_from(["graph", "batch"]),
    }
)


@given(st.lists(graphs(), min_size=1, max_size=6), settings, st.integers(0, 2**32))
def test_views_are_masked_or_induced_subgraphs(
    items: list[Pair], options: dict[str, Any], seed: int
) -> None:
    collection = Graphs().collect(items)
    batch = collection.take(torch.arange(len(items)))
    originals = parts(batch)
    for view in Graphs(**options).views(batch, Generator().manual_seed(seed)):
        assert len(view) == len(items)
        for graph, changed in zip(originals, parts(view), strict=True):
            kept_nodes(graph, changed)


@given(st.lists(graphs(), min_size=1, max_size=6), settings, st.integers(0, 2**32))
def test_same_seed_same_bits_and_the_batch_stays(
    items: list[Pair], options: dict[str, Any], seed: int
) -> None:
    batch = batch_of(*items)
    before = [column.clone() for column in (batch.x, batch.edge_index, batch.graph, batch.ptr)]
    domain = Graphs(**options)
    views = domain.views(batch, Generator().manual_seed(seed))
    again = domain.views(batch, Generator().manual_seed(seed))
    for one, other in zip(views, again, strict=True):
        columns = (one.x, one.edge_index, one.graph, one.ptr)
        for a, b in zip(columns, (other.x, other.edge_index, other.graph, other.ptr), strict=True):
            assert torch.equal(a, b)
            a.zero_()
    for column, kept in zip(
        (batch.x, batch.edge_index, batch.graph, batch.ptr), before, strict=True
    ):
        assert torch.equal(column, kept)


@given(st.lists(graphs(), min_size=2, max_size=9), settings, st.integers(0, 2**32))
def test_views_of_batches_in_a_row_are_those_of_each_alone(
    items: list[Pair], options: dict[str, Any], seed: int
) -> None:
    domain = Graphs(**options)
    old, new = (domain.collect(part) for part in (items[:-1], items[-1:]))
    draws, one = Generator().manual_seed(seed), torch.zeros(1, dtype=torch.int64)
    batches = []
    for _ in range(3):
        count = int(torch.randint(len(old) + 1, (), generator=draws))
        batches.append([(old, torch.randperm(len(old), generator=draws)[:count]), (new, one)])
    row = domain.views_in_a_row(batches, [Generator().manual_seed(seed + n) for n in range(3)])
    assert row is not None
    for number, (batch, views) in enumerate(zip(batches, row, strict=True)):
        alone = domain.join([graphs.take(places) for graphs, places in batch])
        expected = domain.joined_views(alone, Generator().manual_seed(seed + number))
        for name in ("x", "edge_index", "graph", "ptr"):
            assert torch.equal(getattr(views, name), getattr(expected, name))


@given(st.lists(graphs(), min_size=1, max_size=6), st.integers(0, 2**32))
def test_walks_are_connected(items: list[Pair], seed: int) -> None:
    batch = batch_of(*items)
    originals = parts(batch)
    # Without dropping and masking, whatever is changed was walked on.
    for view in Graphs(drop=0.0, mask=0.0).views(batch, Generator().manual_seed(seed)):
        for graph, changed in zip(originals, parts(view), strict=True):
            keep = kept_nodes(graph, changed)
            assert keep is not None
            if len(keep) < len(graph[1]):
                assert any(reachable(graph, keep, root) == set(keep) for root in keep)


@given(st.lists(graphs(), min_size=1, max_size=6), st.integers(0, 2**32))
def test_join_of_views_is_any_join(items: list[Pair], seed: int) -> None:
    domain = Graphs()
    first, second = domain.views(batch_of(*items), Generator().manual_seed(seed))
    joined = domain.join([first, second])
    assert [x.tolist() for _, x in parts(joined)] == [
        x.tolist() for view in (first, second) for _, x in parts(view)
    ]
    plain = domain.join([replace(first), replace(second)])  # replace() forgets the whole
    swapped = domain.join([second, first])
    for one, other in ((joined, plain), (swapped, domain.join([replace(second), first]))):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.graph, other.graph)
        assert torch.equal(one.ptr, other.ptr)
    assert len(domain.join([first, first])) == 2 * len(items)
    assert len(domain.join([first])) == len(items)


@pytest.fixture(scope="module")
def batch() -> GraphBatch:
    """200 graphs of 100 nodes without an edge: a walk keeps one node, and kinds can be told."""
    none = torch.empty(2, 0, dtype=torch.int64)
    return batch_of(*[numbered(none, 100)] * 200)


class TestRates:
    @staticmethod
    def kinds(view: GraphBatch) -> Tensor:
        masked = torch.zeros(len(view)).index_add(0, view.graph, (view.x[:, 0] == 0).float()) > 0
        return torch.where(masked, 1, torch.where(view.ptr.diff() == 1, 2, 0))

    def test_each_kind_is_as_likely_in_both_views(self, batch: GraphBatch) -> None:
        kinds = [self.kinds(view) for view in Graphs().views(batch, Generator().manual_seed(0))]
        for of_view in kinds:
            counts = torch.bincount(of_view, minlength=3)
            assert (counts - 200 / 3).abs().max() < 4 * (200 * 2 / 9) ** 0.5
        same = int((kinds[0] == kinds[1]).sum())  # as often as independent draws are
        assert abs(same - 200 / 3) < 4 * (200 * 2 / 9) ** 0.5

    @pytest.mark.parametrize("rate", [0.1, 0.5])
    def test_share_of_dropped_and_of_masked_nodes(self, batch: GraphBatch, rate: float) -> None:
        for view in Graphs(drop=rate, mask=rate).views(batch, Generator().manual_seed(1)):
            kinds, sizes = self.kinds(view), view.ptr.diff()
            hidden = torch.zeros(200).index_add(0, view.graph, (view.x[:, 0] == 0).float())
            for share, graphs in (
                (1 - sizes[kinds == 0] / 100, int((kinds == 0).sum())),
                (hidden[kinds == 1] / 100, int((kinds == 1).sum())),
            ):
                error = (rate * (1 - rate) / (100 * graphs)) ** 0.5
                assert abs(float(share.mean()) - rate) < 4 * error

    def test_once_per_batch(self, batch: GraphBatch) -> None:
        pairs = set()
        for seed in range(40):
            views = Graphs(per="batch").views(batch, Generator().manual_seed(seed))
            kinds = [self.kinds(view) for view in views]
            assert all((of_view == of_view[0]).all() for of_view in kinds)
            pairs.add((int(kinds[0][0]), int(kinds[1][0])))
        assert len(pairs) == 9

    def test_one_random_node_stays_of_a_graph_that_would_vanish(self) -> None:
        none = torch.empty(2, 0, dtype=torch.int64)
        batch = batch_of(*[numbered(none, 4)] * 600)
        for view in Graphs(drop=1.0, mask=0.0).views(batch, Generator().manual_seed(0)):
            sizes = view.ptr.diff()
            assert set(sizes.tolist()) == {1, 4}
            alone = view.x[:, 0][sizes[view.graph] == 1].long() - 1
            counts = torch.bincount(alone, minlength=4)
            assert (counts - len(alone) / 4).abs().max() < 4 * (len(alone) * 3 / 16) ** 0.5

    def test_two_views_and_two_seeds_differ(self, batch: GraphBatch) -> None:
        first, second = Graphs().views(batch, Generator().manual_seed(0))
        other, _ = Graphs().views(batch, Generator().manual_seed(1))
        assert first.x.shape != second.x.shape or not torch.equal(first.x, second.x)
        assert first.x.shape != other.x.shape or not torch.equal(first.x, other.x)


class TestWalks:
    def views(self, graph: Pair, count: int, **options: Any) -> list[list[int]]:
        """The nodes of many views, those left out that show the whole graph."""
        domain = Graphs(drop=0.0, mask=0.0, **options)
        views = domain.views(batch_of(*[graph] * count), Generator().manual_seed(0))
        kept = [kept_nodes(graph, part) for view in views for part in parts(view)]
        return [nodes for nodes in kept if nodes is not None and len(nodes) < len(graph[1])]

    def test_neighbours_are_as_likely(self) -> None:
        star = numbered(both_ways((0, 1), (0, 2), (0, 3), (0, 4)), 5)
        views = self.views(star, 600, steps=1)  # one walker, from the hub to a leaf or back
        assert all(len(nodes) == 2 and nodes[0] == 0 for nodes in views)
        counts = torch.bincount(torch.tensor([nodes[1] for nodes in views]), minlength=5)[1:]
        assert (counts - len(views) / 4).abs().max() < 4 * (len(views) * 3 / 16) ** 0.5

    def test_a_walker_goes_one_edge_a_step(self) -> None:
        path = numbered(both_ways(*((node, node + 1) for node in range(99))), 100)
        for steps in (1, 4):
            sizes = [len(nodes) for nodes in self.views(path, 100, steps=steps, walkers=0.01)]
            assert max(sizes) == steps + 1
            assert min(sizes) == 2
            # Many walkers from one node reach all that is so near.
            sizes = [len(nodes) for nodes in self.views(path, 100, steps=steps, walkers=9.0)]
            assert max(sizes) == 2 * steps + 1

    def test_edges_are_followed_forward_and_walkers_stay_at_ends(self) -> None:
        arrow = numbered(torch.tensor([[0, 1], [1, 2]]), 4)  # 0 → 1 → 2, and 3 alone
        seen = {tuple(nodes) for nodes in self.views(arrow, 100, steps=1)}
        assert seen == {(0, 1), (1, 2), (2,), (3,)}
        seen = {tuple(nodes) for nodes in self.views(arrow, 100, steps=9)}
        assert seen == {(0, 1, 2), (1, 2), (2,), (3,)}

    def test_a_batch_of_nodes_without_edges(self) -> None:
        none = torch.empty(2, 0, dtype=torch.int64)
        assert set(map(tuple, self.views(numbered(none, 3), 50))) == {(0,), (1,), (2,)}


class Dtypes(TorchDispatchMode):
    """Writes down the types of all tensors that come out of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        self.seen |= {tensor.dtype for tensor in results if isinstance(tensor, Tensor)}
        return result


def test_views_need_no_double_precision() -> None:
    lonely = (torch.empty(2, 0, dtype=torch.int64), torch.ones(1, 2))
    batch = batch_of(numbered(both_ways((0, 1), (1, 2), (2, 0)), 4), lonely)
    with Dtypes() as dtypes:
        for seed in range(8):
            Graphs().views(batch, Generator().manual_seed(seed))
    assert torch.float32 in dtypes.seen
    assert torch.float64 not in dtypes.seen  # which an Apple GPU has not
