"""The domain of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset

from incontrast.bounds import check_number, check_whole, given
from incontrast.domains.arguments import ArgumentDomain
from incontrast.domains.base import Collection, Sources, check_distinct, dataset_items
from incontrast.domains.graphs.collection import GraphBatch, GraphCollection, take_all
from incontrast.domains.graphs.encoder import GCN
from incontrast.domains.graphs.reading import pack_graphs, read_graphs, unpack_graphs
from incontrast.domains.graphs.views import two_views
from incontrast.randomness import generator


@dataclass(frozen=True, kw_only=True)
class Graphs(ArgumentDomain):
    """Graphs with features of their nodes; by default these are local degree profiles.

    A view of a graph is one of three changes with equal probability (You et al. 2020): nodes are
    dropped, features of nodes are set to zero, or only nodes that random walks visit are kept.

    Args:
        features: Features of each node; None takes the number of the first data.
        hidden: Units in each layer of the encoder.
        layers: Layers of the encoder; an embedding has ``layers * hidden`` dimensions.
        drop: Probability that a node is dropped; at least one node stays.
        mask: Probability that the features of a node are set to zero.
        walkers: Walkers for each node of a graph, rounded up. They start at one random node; the
            nodes that any of them visits stay, with all edges between them.
        steps: Steps of each walker.
        per: Whether the change is drawn for each ``"graph"`` or once for a whole ``"batch"``, in
            both cases independently for the two views.
        encoder: A module or a function that makes one, instead of the GCN: a ``GraphBatch`` of n
            graphs in, (n, d) out.
        views: A function of a ``GraphBatch`` and a ``torch.Generator``, or a ``torch.nn.Module``,
            that makes one view, instead of the above.
        node_labels: For graphs of ``tu``: the labels of which the last features are one-hot
            encodings, a group for each column of labels; None takes those of the first data.

    >>> triangle = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> graphs = Graphs().collect([(triangle, None), (path, None)])
    >>> domain = Graphs().fit_statistics(graphs)
    >>> first, second = domain.views(graphs.take(torch.tensor([1, 0])), Generator().manual_seed(0))
    >>> domain.encoder()(domain.join([first, second])).shape
    torch.Size([4, 64])
    """

    features: int | None = None
    hidden: int = 32
    layers: int = 2
    drop: float = 0.2
    mask: float = 0.2
    walkers: float = 0.2
    steps: int = 20
    per: Literal["graph", "batch"] = "graph"
    encoder: Any = field(default_factory=NoneType)
    views: Any = field(default_factory=NoneType)
    node_labels: tuple[tuple[int, ...], ...] | None = None

    kind = "graphs"
    views_on_cpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(1, hidden=self.hidden, layers=self.layers, steps=self.steps)
        check_whole(1, **given(features=self.features))
        check_number("[0, 1]", drop=self.drop, mask=self.mask)
        check_number("[1e-6, inf)", walkers=self.walkers)
        if self.per not in ("graph", "batch"):
            raise ValueError(f'per must be "graph" or "batch", got {self.per!r}')
        if self.node_labels is not None:
            labels = tuple(tuple(int(label) for label in group) for group in self.node_labels)
            object.__setattr__(self, "node_labels", labels)
        super().__post_init__()

    def collect(self, items: Any) -> GraphCollection:
        """Take ``torch_geometric`` ``Data`` in a list or a data set, pairs (edge_index, x) where x
        may be None, dictionaries as in a ``.jsonl`` file, or a ``GraphCollection``.

        In ``edge_index``, an undirected edge is two edges, one in each direction.
        """
        if isinstance(items, GraphCollection):
            return items.fitting(self.features, self.node_labels)
        if isinstance(items, Dataset) and not isinstance(items, Iterable):
            items = dataset_items(items)
        if not isinstance(items, Iterable) or isinstance(items, str):
            raise ValueError(f"graphs must be a list or a data set, got {type(items).__name__}")
        graphs = read_graphs((f"graph {number}", item) for number, item in enumerate(items))
        return graphs.fitting(self.features, self.node_labels)

    def collect_json(self, items: list[Any]) -> GraphCollection:
        return self.collect(items)

    def fit_statistics(self, collection: Collection) -> Graphs:
        if not isinstance(collection, GraphCollection):
            raise ValueError(f"give what collect() returns, got {type(collection).__name__}")
        graphs = collection.fitting(self.features, self.node_labels)
        count, nodes, edges = len(graphs), graphs.node_ptr.diff(), graphs.edge_ptr.diff()
        if bool((nodes == nodes[0]).all() and (edges == edges[0]).all()):
            check_distinct(graphs.x.view(count, -1), graphs.edge_index.T.reshape(count, -1))
        return replace(self, features=graphs.features, node_labels=graphs.node_labels)

    def examples(self) -> GraphCollection | None:
        if self.features is None:
            return None
        draws, path = generator(0, "examples"), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        return self.collect(
            [(path, torch.randn(3, self.features, generator=draws)) for _ in range(4)]
        )

    def own_views(self, batch: GraphBatch, generator: Generator) -> GraphBatch:
        return two_views(batch, [len(batch)], [generator], **self._settings())[0]

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("drop", "mask", "walkers", "steps", "per")}

    def views_in_a_row(
        self, batches: Sequence[Sources], generators: Sequence[Generator]
    ) -> list[GraphBatch] | None:
        sources = [source for batch in batches for source in batch]
        if not self.usual_views or not all(isinstance(s, GraphCollection) for s, _ in sources):
            return None  # items of a store are read batch by batch
        counts = [sum(len(places) for _, places in batch) for batch in batches]
        return two_views(take_all(sources), counts, generators, **self._settings())

    def own_encoder(self) -> nn.Module:
        if self.features is None:
            raise ValueError(
                "the number of node features is not known yet: give Graphs(features=...), or "
                "fit_statistics() to the first graphs"
            )
        return GCN(self.features, self.hidden, self.layers)

    def pack(self, collection: GraphCollection, indices: Tensor) -> list[bytes]:
        return pack_graphs(collection.select(indices))

    def unpack(self, blobs: Sequence[bytes]) -> GraphCollection:
        return unpack_graphs(blobs).fitting(self.features, self.node_labels)
