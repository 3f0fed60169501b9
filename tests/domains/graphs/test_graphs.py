"""Graphs: collecting, batches, the encoder and bytes. Their views have a file of their own."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import LocalDegreeProfile

from incontrast.domains.check import check_domain
from incontrast.domains.graphs.collection import GraphBatch, GraphCollection
from incontrast.domains.graphs.domain import Graphs

TRIANGLE = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


def random_graphs(count: int, *, features: int = 3, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Undirected graphs of 1 to 12 nodes, some of them without an edge."""
    draws = Generator().manual_seed(seed)
    graphs = []
    for _ in range(count):
        nodes = int(torch.randint(1, 13, (), generator=draws))
        upper = torch.triu(torch.rand(nodes, nodes, generator=draws) < 0.3, diagonal=1)
        graphs.append(
            ((upper | upper.T).nonzero().T, torch.randn(nodes, features, generator=draws))
        )
    return graphs


def shuffled(edge_index: Tensor, seed: int = 0) -> Tensor:
    order = torch.randperm(edge_index.shape[1], generator=Generator().manual_seed(seed))
    return edge_index[:, order]


def assert_same(batch: GraphBatch, other: Any) -> None:
    """Equal to a batch of ours or of PyG."""
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.edge_index, other.edge_index)
    assert torch.equal(batch.graph, other.graph if isinstance(other, GraphBatch) else other.batch)
    assert torch.equal(batch.ptr, other.ptr)


class TestCollect:
    def test_pairs_data_and_data_sets_give_the_same(self) -> None:
        pairs = random_graphs(20)
        data = [Data(x=x, edge_index=edge_index) for edge_index, x in pairs]

        class Kept(InMemoryDataset):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.data, self.slices = self.collate(data)

        arrays = [(edge_index.numpy(), x.double().numpy()) for edge_index, x in pairs]
        everything = torch.arange(20)
        expected = Graphs().collect(pairs).take(everything)
        for items in (data, Kept(), arrays, [list(pair) for pair in pairs]):
            assert_same(Graphs().collect(items).take(everything), expected)

    def test_a_part_of_a_data_set_is_that_part(self) -> None:
        pairs = random_graphs(5)

        class Kept(InMemoryDataset):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.data, self.slices = self.collate(
                    [Data(x=x, edge_index=edge_index) for edge_index, x in pairs]
                )

        collected = Graphs().collect(Kept()[[3, 1]])
        expected = Graphs().collect([pairs[3], pairs[1]])
        assert_same(collected.take(torch.arange(2)), expected.take(torch.arange(2)))

    def test_the_order_of_edges_does_not_matter(self) -> None:
        pairs = random_graphs(10)
        mixed = [(shuffled(edge_index), x) for edge_index, x in pairs]
        everything = torch.arange(10)
        assert_same(
            Graphs().collect(mixed).take(everything), Graphs().collect(pairs).take(everything)
        )

    def test_a_collection_stays_as_it_is(self) -> None:
        graphs = Graphs().collect(random_graphs(3))
        assert Graphs().collect(graphs) is graphs
        assert Graphs(features=3).collect(graphs) is graphs

    def test_without_features_nodes_get_degree_profiles(self) -> None:
        pairs = [(edge_index, None) for edge_index, _ in random_graphs(40) if edge_index.numel()]
        graphs = Graphs().collect([(shuffled(edge_index), x) for edge_index, x in pairs])
        profile = LocalDegreeProfile()
        expected = torch.cat(
            [
                profile(Data(edge_index=edge_index, num_nodes=int(edge_index.max()) + 1)).x
                for edge_index, _ in pairs
            ]
        )
        # PyG takes a variance below 1e-5 for 0, and E[d²] − E[d]² for the variance.
        torch.testing.assert_close(graphs.x, expected, rtol=1e-4, atol=1e-3)

    def test_the_number_of_nodes_is_taken_where_it_is_given(self) -> None:
        graphs = Graphs().collect([Data(edge_index=TRIANGLE, num_nodes=5), (TRIANGLE, None)])
        assert graphs.node_ptr.tolist() == [0, 5, 8]
        assert torch.equal(graphs.x[3:5], torch.zeros(2, 5))

    def test_counts_and_bytes(self) -> None:
        graphs = Graphs().collect([(TRIANGLE, torch.ones(3, 2)), (NO_EDGES, torch.ones(1, 2))])
        assert len(graphs) == 2
        assert repr(graphs) == "GraphCollection(2 graphs, 4 nodes of 2 features, 6 directed edges)"
        assert graphs.nbytes == 4 * 8 + 12 * 4 + 2 * 2 * 8
        assert graphs.sizes().tolist() == [3 * 8 + 48 + 16, 8 + 16]
        assert not graphs.background

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ([], "there are no graphs: give at least one"),
            (3, "graphs must be a list or a data set, got int"),
            ([TRIANGLE], r"graph 0 must be a torch_geometric Data, a pair .*, got Tensor"),
            ([(TRIANGLE, None), "C1CC1"], "graph 1 must be .*, got str"),
            ([("ab", None)], "graph 0: edge_index must be integers of shape .*, got str"),
            (
                [(TRIANGLE.float(), None)],
                r"graph 0: edge_index must be integers of shape \(2, edges\), got t",
            ),
            ([(TRIANGLE.T, None)], r"of shape \(2, edges\), got torch.int64 of shape \(6, 2\)"),
            ([(TRIANGLE[0], None)], r"of shape \(2, edges\), got torch.int64 of shape \(6,\)"),
            (
                [(TRIANGLE, torch.ones(3))],
                r"graph 0: x must be a row of .* got torch.float32 of .*\(3,\)",
            ),
            ([(TRIANGLE, "abc")], "graph 0: x must be a row of numbers for each node, got str"),
            (
                [(TRIANGLE, torch.ones(3, 2)), (TRIANGLE, torch.ones(3, 4))],
                "nodes of graph 0 have 2 features, those of graph 1 have 4 features: give all",
            ),
            (
                [(TRIANGLE, None), (TRIANGLE, None), (TRIANGLE, torch.ones(3, 2))],
                "nodes of graph 0 have no features, those of graph 2 have 2 features: give all",
            ),
            (
                [(TRIANGLE, torch.ones(3, 2)), (TRIANGLE - 1, torch.ones(3, 2))],
                "edges of graph 1 must join its nodes 0 to 2, got an edge from -1 to 0",
            ),
            ([(TRIANGLE, torch.ones(2, 2))], "its nodes 0 to 1, got an edge from 0 to 2"),
            ([(NO_EDGES, torch.ones(0, 2))], "graph 0 has no nodes: leave it out"),
            ([(TRIANGLE, None), (NO_EDGES, None)], "graph 1 has no nodes: leave it out"),
            (
                [(TRIANGLE, torch.ones(3, 1)), (TRIANGLE, torch.tensor([[1.0], [1.0], [np.nan]]))],
                "features must be finite, got NaN or infinity at node 2 of graph 1",
            ),
            ([(TRIANGLE, torch.full((3, 1), torch.inf))], "NaN or infinity at node 0 of graph 0"),
        ],
    )
    def test_bad_graphs_are_named(self, items: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Graphs().collect(items)

    def test_other_features_than_the_first_are_an_error(self) -> None:
        domain = Graphs(features=4)
        with pytest.raises(ValueError, match=r"nodes must have 4 features like the .*, got 3"):
            domain.collect(random_graphs(2))
        with pytest.raises(ValueError, match=r"nodes must have 4 features like the .*, got 3"):
            domain.fit_statistics(Graphs().collect(random_graphs(2)))


class TestCollection:
    @given(st.integers(1, 8), st.integers(0, 99), st.data())
    def test_take_is_what_pyg_makes(self, count: int, seed: int, data: st.DataObject) -> None:
        pairs = random_graphs(count, seed=seed)
        indices = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
        batch = Graphs().collect(pairs).take(torch.tensor(indices))
        expected = Batch.from_data_list(
            [Data(x=pairs[index][1], edge_index=pairs[index][0]) for index in indices]
        )
        assert_same(batch, expected)
        assert len(batch) == len(indices)

    def test_take_of_nothing_is_empty(self) -> None:
        batch = Graphs().collect(random_graphs(3)).take(torch.empty(0, dtype=torch.int64))
        assert len(batch) == 0
        assert batch.x.shape == (0, 3)

    def test_take_copies(self) -> None:
        graphs = Graphs().collect(random_graphs(3))
        batch, again = graphs.take(torch.arange(3)), graphs.take(torch.arange(3))
        batch.x.zero_(), batch.edge_index.zero_(), batch.ptr.zero_(), batch.graph.zero_()
        assert_same(graphs.take(torch.arange(3)), again)

    def test_select_and_extend(self) -> None:
        graphs = Graphs().collect(random_graphs(6))
        more = Graphs().collect(random_graphs(4, seed=1))
        both = graphs.extend(more)
        assert (len(graphs), len(more), len(both)) == (6, 4, 10)
        assert_same(
            both.take(torch.tensor([7, 2])),
            both.select(torch.tensor([7, 2])).take(torch.tensor([0, 1])),
        )
        assert_same(both.take(torch.arange(6, 10)), more.take(torch.arange(4)))
        with pytest.raises(ValueError, match=r"must have 3 features like the first ones, got 5"):
            graphs.extend(Graphs().collect(random_graphs(2, features=5)))

    def test_join_is_take_of_all(self) -> None:
        graphs = Graphs().collect(random_graphs(9))
        parts = [graphs.take(torch.arange(*ends)) for ends in ((0, 4), (4, 5), (5, 9))]
        assert_same(Graphs().join(parts), graphs.take(torch.arange(9)))

    def test_to_a_device(self) -> None:
        batch = Graphs().collect(random_graphs(2)).take(torch.arange(2)).to("meta")
        assert batch.x.is_meta
        assert batch.edge_index.is_meta
        assert batch.graph.is_meta
        assert batch.ptr.is_meta


class TestEncoder:
    def test_is_the_formula(self) -> None:
        """Against D^(-1/2) (A + I) D^(-1/2) X W + b with dense matrices, graph by graph."""
        pairs = [*random_graphs(12), (NO_EDGES, torch.ones(1, 3)), (NO_EDGES, torch.ones(4, 3))]
        graphs = Graphs().collect(pairs)
        for domain in (Graphs(hidden=8), Graphs(hidden=2, layers=3)):
            encoder = domain.fit_statistics(graphs).encoder().double()
            batch = graphs.take(torch.arange(len(pairs)))
            batch = GraphBatch(batch.x.double(), batch.edge_index, batch.graph, batch.ptr)
            nodes = batch.x.shape[0]
            adjacency = torch.eye(nodes, dtype=torch.float64)
            adjacency[batch.edge_index[1], batch.edge_index[0]] += 1.0
            scale = adjacency.sum(dim=1).rsqrt().diag()
            x, sums = batch.x, []
            for layer in encoder.layers:
                weight, bias = layer.linear.weight, layer.linear.bias
                x = torch.relu(scale @ adjacency @ scale @ x @ weight.T + bias)
                x = (x - x.mean(0)) / (x.var(0, unbiased=False) + layer.norm.eps).sqrt()
                sums.append(torch.stack([x[batch.graph == g].sum(0) for g in range(len(batch))]))
            torch.testing.assert_close(encoder(batch), torch.cat(sums, dim=1))

    def test_is_pyg_s_convolution_also_with_directed_edges(self) -> None:
        directed = [(edge_index[:, ::2], x) for edge_index, x in random_graphs(20)]
        batch = Graphs().collect(directed).take(torch.arange(20))
        for hidden in (2, 8):
            encoder = Graphs(features=3, hidden=hidden, layers=1).encoder()
            layer = encoder.layers[0]
            convolution = GCNConv(3, hidden)
            convolution.lin.weight = layer.linear.weight
            convolution.bias = layer.linear.bias
            layer.norm.eval()
            x = layer.norm(torch.relu(convolution(batch.x, batch.edge_index)))
            expected = torch.zeros(20, hidden).index_add(0, batch.graph, x)
            torch.testing.assert_close(encoder(batch), expected)

    def test_shape_and_start(self) -> None:
        graphs = Graphs().collect(random_graphs(5))
        encoder = Graphs().fit_statistics(graphs).encoder()
        assert encoder(graphs.take(torch.arange(5))).shape == (5, 64)
        assert not any(layer.linear.bias.any() for layer in encoder.layers)
        with pytest.raises(ValueError, match=r"features is not known yet: give Graphs\(features"):
            Graphs().encoder()

    def test_has_second_derivatives(self) -> None:
        graphs = Graphs().collect(random_graphs(5))
        encoder = Graphs().fit_statistics(graphs).encoder()
        loss = encoder(graphs.take(torch.arange(5))).square().sum()
        weight = encoder.layers[0].linear.weight
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.square().sum(), weight)
        assert curvature.abs().sum() > 0

    def test_graphs_of_one_node_and_no_edge(self) -> None:
        lonely = Graphs().collect([(NO_EDGES, torch.randn(1, 2)) for _ in range(4)])
        domain = Graphs().fit_statistics(lonely)
        batch = lonely.take(torch.arange(4))
        embeddings = domain.encoder()(domain.join(domain.views(batch, Generator().manual_seed(0))))
        assert embeddings.shape == (8, 64)
        assert embeddings.isfinite().all()


class TestBytes:
    def test_round_trip(self) -> None:
        pairs = [*random_graphs(10), (NO_EDGES, torch.tensor([[1e-42, -0.0, 3.4e38]]))]
        graphs = Graphs().collect(pairs)
        indices = torch.tensor([10, 3, 3, 0])
        blobs = Graphs().pack(graphs, indices)
        again = Graphs().unpack(blobs)
        assert isinstance(again, GraphCollection)
        assert again.x.numpy().tobytes() == graphs.select(indices).x.numpy().tobytes()
        assert_same(again.take(torch.arange(4)), graphs.take(indices))
        assert Graphs().pack(again, torch.arange(4)) == blobs
        assert [len(blob) for blob in blobs] == (graphs.sizes()[indices] + 8).tolist()

    def test_equal_graphs_give_equal_bytes(self) -> None:
        edge_index, x = random_graphs(20)[-1]
        graphs = Graphs().collect([(edge_index, x), (shuffled(edge_index), x), (edge_index, x + 1)])
        first, second, other = Graphs().pack(graphs, torch.arange(3))
        assert first == second != other

    @given(st.integers(0, 200), st.integers(1, 255))
    def test_any_changed_byte_is_found(self, position: int, change: int) -> None:
        graphs = Graphs().collect([(TRIANGLE, torch.ones(3, 2))])
        (blob,) = Graphs().pack(graphs, torch.tensor([0]))
        changed = bytearray(blob)
        changed[position % len(blob)] ^= change
        with pytest.raises(ValueError, match="packed graph 1 is damaged"):
            Graphs().unpack([blob, bytes(changed)])

    @pytest.mark.parametrize("length", [0, 3, 10, 50])
    def test_too_few_bytes(self, length: int) -> None:
        (blob,) = Graphs().pack(Graphs().collect([(TRIANGLE, torch.ones(3, 2))]), torch.tensor([0]))
        with pytest.raises(ValueError, match="packed graph 0 is damaged"):
            Graphs().unpack([blob[:length]])

    def test_of_several_widths(self) -> None:
        blobs = [
            Graphs().pack(Graphs().collect([(TRIANGLE, torch.ones(3, w))]), torch.tensor([0]))[0]
            for w in (2, 3)
        ]
        with pytest.raises(ValueError, match="packed graph 1 has 3 features, the first one 2"):
            Graphs().unpack(blobs)
        with pytest.raises(ValueError, match=r"nodes must have 3 features like the .*, got 2"):
            Graphs(features=3).unpack(blobs[:1])

    def test_of_nothing(self) -> None:
        with pytest.raises(ValueError, match="there are no packed graphs: give at least one"):
            Graphs().unpack([])

    def test_header(self) -> None:
        (blob,) = Graphs().pack(Graphs().collect([(TRIANGLE, torch.ones(3, 2))]), torch.tensor([0]))
        assert struct.unpack("<4s4I", blob[:20]) == (b"ICG2", 3, 6, 2, 0)


class TestDomain:
    def test_keeps_the_contract(self) -> None:
        check_domain(Graphs(), random_graphs(8))
        check_domain(Graphs(), [(TRIANGLE, None), (TRIANGLE[:, :2], None)] * 2)

    def test_fits_the_statistics_of_the_first_graphs(self) -> None:
        domain = Graphs(hidden=4)
        graphs = domain.collect(random_graphs(2))
        assert domain.fit_statistics(graphs) == Graphs(hidden=4, features=3, node_labels=())
        assert domain.features is None
        with pytest.raises(ValueError, match=r"give what collect\(\) returns, got list"):
            domain.fit_statistics([])  # type: ignore[arg-type]

    def test_graphs_of_other_nodes_but_as_many_bytes(self) -> None:
        path = (TRIANGLE[:, ::3], torch.ones(3, 2))
        graphs = Graphs().collect([path, path, (NO_EDGES, torch.ones(5, 2))])
        assert len(set(graphs.sizes().tolist())) == 1
        assert Graphs().fit_statistics(graphs).features == 2

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"features": 0}, "features must be at least 1, got 0"),
            ({"hidden": 0}, "hidden must be at least 1, got 0"),
            ({"layers": 0}, "layers must be at least 1, got 0"),
            ({"steps": 0}, "steps must be at least 1, got 0"),
            ({"drop": 1.5}, r"drop must be in \[0, 1\], got 1.5"),
            ({"mask": -0.1}, r"mask must be in \[0, 1\], got -0.1"),
            ({"mask": float("nan")}, r"mask must be in \[0, 1\], got nan"),
            ({"walkers": 0.0}, "walkers must be at least 1e-06, got 0.0"),
            ({"per": "node"}, 'per must be "graph" or "batch", got \'node\''),
        ],
    )
    def test_bad_settings(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Graphs(**settings)

    def test_needs_no_pyg(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor does importing it, see ``tests/test_package.py``."""
        for name in [name for name in sys.modules if name.startswith("torch_geometric")]:
            monkeypatch.setitem(sys.modules, name, None)
        edges = torch.tensor([[0, 1], [1, 0]])
        graphs = Graphs().collect([(edges, torch.eye(2)), (edges, torch.ones(2, 2))])
        domain = Graphs().fit_statistics(graphs)
        both = domain.join(domain.views(graphs.take(torch.arange(2)), Generator()))
        assert domain.encoder()(both).shape == (4, 64)
