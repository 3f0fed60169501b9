"""Graphs in columns: a collection, and the batch that an encoder takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incontrast.domains.base import Collection

Numbers = NDArray[np.int64]
NodeLabels = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GraphBatch:
    """Graphs as one graph of many parts.

    Shapes:
        x: (nodes, features) float32.
        edge_index: (2, edges) int64, source and target as node numbers of the batch, sorted by
            source. An undirected edge is listed in both directions.
        graph: (nodes,) int64, the graph of each node, ascending.
        ptr: (graphs + 1,) int64, where the nodes of each graph begin and end.
    """

    x: Tensor
    edge_index: Tensor
    graph: Tensor
    ptr: Tensor

    def __len__(self) -> int:
        return self.ptr.shape[0] - 1

    def to(self, device: torch.device | str, /) -> GraphBatch:
        columns = (self.x, self.edge_index, self.graph, self.ptr)
        return GraphBatch(*(column.to(device) for column in columns))

    @property
    def device(self) -> torch.device:
        return self.x.device

    def __getitem__(self, part: slice) -> GraphBatch:
        start, stop, _ = part.indices(len(self))
        ptr = self.ptr[start : stop + 1]
        first, last = int(ptr[0]), int(ptr[-1])
        inside = (self.edge_index[0] >= first) & (self.edge_index[0] < last)
        return GraphBatch(
            self.x[first:last],
            self.edge_index[:, inside] - first,
            self.graph[first:last] - start,
            ptr - first,
        )

    @staticmethod
    def join(batches: Sequence[GraphBatch]) -> GraphBatch:
        """One batch with the graphs of all ``batches`` in order."""
        nodes = accumulate((len(batch.x) for batch in batches), initial=0)
        graphs = accumulate(map(len, batches), initial=0)
        columns = [
            (batch.x, batch.edge_index + node, batch.graph + graph, batch.ptr[1:] + node)
            for batch, node, graph in zip(batches, nodes, graphs, strict=False)
        ]
        x, edge_index, graph, ptr = zip(*columns, strict=True)
        ptr = (batches[0].ptr[:1], *ptr)
        return GraphBatch(torch.cat(x), torch.cat(edge_index, 1), torch.cat(graph), torch.cat(ptr))


class GraphCollection(Collection):
    """Many graphs, end to end, checked and with sorted edges.

    ``node_labels`` are the labels of which the last features are one-hot encodings: a group for
    each column of labels.

    Shapes:
        x: (nodes, features) float32
        edge_index: (2, edges) int32, the nodes of each graph from 0, sorted by source
        node_ptr, edge_ptr: (graphs + 1,) int64, where nodes and edges of each graph begin and end
    """

    def __init__(
        self,
        x: Tensor,
        edge_index: Tensor,
        node_ptr: Tensor,
        edge_ptr: Tensor,
        node_labels: NodeLabels = (),
    ) -> None:
        self.x, self.edge_index, self.node_labels = x, edge_index, node_labels
        self._ptr = torch.stack([node_ptr, edge_ptr])
        self.node_ptr, self.edge_ptr = self._ptr.unbind()

    @property
    def features(self) -> int:
        return self.x.shape[1]

    def sizes(self) -> Tensor:
        return 4 * (self.features * self.node_ptr.diff() + 2 * self.edge_ptr.diff() + 4)

    def __len__(self) -> int:
        return self.node_ptr.shape[0] - 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} graphs, {self.x.shape[0]} nodes of "
            f"{self.features} features, {self.edge_index.shape[1]} directed edges)"
        )

    def take(self, indices: Tensor) -> GraphBatch:
        return take_all([(self, indices)])

    def select(self, indices: Tensor) -> Self:
        x, edge_index, ptr = (torch.from_numpy(column) for column in _cut([(self, indices)]))
        return type(self)(x, edge_index, ptr[0], ptr[1], self.node_labels)

    def fitting(self, features: int | None, node_labels: NodeLabels | None) -> Self:
        """These graphs with the number of features and the node labels of the first graphs."""
        graphs = self if node_labels is None else self.with_labels(node_labels)
        if features not in (None, graphs.features):
            raise ValueError(
                f"nodes must have {features} features like the first ones, got {graphs.features}"
            )
        return graphs

    def with_labels(self, node_labels: NodeLabels) -> Self:
        """These graphs with a feature for each of these labels, of which none may be missing."""
        if self.node_labels == node_labels:
            return self
        groups = [len(group) for group in self.node_labels]
        if len(groups) != len(node_labels):
            raise ValueError(
                f"nodes must have {len(node_labels)} columns of labels like those of the first "
                f"graphs, got {len(groups)}"
            )
        attributes, *one_hot = torch.split(self.x, [self.features - sum(groups), *groups], dim=1)
        features = [attributes]
        for old, labels, known in zip(one_hot, self.node_labels, node_labels, strict=True):
            new = old.new_zeros(len(old), len(known))
            for column, label in zip(old.unbind(1), labels, strict=True):
                if label in known:
                    new[:, known.index(label)] = column
                elif bool(column.any()):
                    shown = ", ".join(map(str, known[:8])) + ", …" * (len(known) > 8)
                    raise ValueError(
                        f"the label {label} of nodes was not among the labels of the first graphs, "
                        f"{shown}: leave such graphs out, or fit again with "
                        "Graphs(node_labels=...) that lists every label there may be"
                    )
            features.append(new)
        x = torch.cat(features, dim=1)
        return type(self)(x, self.edge_index, self.node_ptr, self.edge_ptr, node_labels)

    def extend(self, other: Self) -> Self:
        other = other.fitting(self.features, self.node_labels)
        return type(self)(
            torch.cat([self.x, other.x]),
            torch.cat([self.edge_index, other.edge_index], dim=1),
            torch.cat([self.node_ptr, other.node_ptr[1:] + self.x.shape[0]]),
            torch.cat([self.edge_ptr, other.edge_ptr[1:] + self.edge_index.shape[1]]),
            self.node_labels,
        )


def take_all(sources: Sequence[tuple[GraphCollection, Tensor]]) -> GraphBatch:
    """The batch of the graphs at these places of several collections, in order."""
    x, edge_index, ptr = _cut(sources)
    nodes, edges = ptr[:, 1:] - ptr[:, :-1]
    edge_index = edge_index + ptr[0, :-1].repeat(edges)
    graph = np.arange(len(nodes)).repeat(nodes)
    return GraphBatch(*(torch.from_numpy(column) for column in (x, edge_index, graph, ptr[0])))


def _cut(
    sources: Sequence[tuple[GraphCollection, Tensor]],
) -> tuple[NDArray[np.float32], NDArray[np.int32], Numbers]:
    """Nodes and edges of these graphs, end to end, and where each graph begins and ends.

    NumPy's calls take half the time of torch's on so few numbers. Copying the range of each graph
    is faster than looking up each of its rows.
    """
    xs, edge_indices = [], []
    sizes = [np.zeros((2, 1), dtype=np.int64)]
    for graphs, indices in sources:
        places, ptr = indices.numpy(), graphs._ptr.numpy()
        first, last = ptr.take(places, axis=1), ptr.take(places + 1, axis=1)
        sizes.append(last - first)
        nodes, edges = (
            [slice(*ends) for ends in zip(*column, strict=True)]
            for column in zip(first.tolist(), last.tolist(), strict=True)
        )
        x, edge_index = graphs.x.numpy(), graphs.edge_index.numpy()
        xs += [x[:0], *(x[part] for part in nodes)]
        edge_indices += [edge_index[:, :0], *(edge_index[:, part] for part in edges)]
    ends = np.concatenate(sizes, axis=1).cumsum(axis=1)
    return np.concatenate(xs), np.concatenate(edge_indices, axis=1), ends
