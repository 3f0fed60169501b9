"""Two random views of every graph in a batch, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor

from incontrast.domains.graph_collection import GraphBatch

__all__ = ["GraphViews"]

_DROP, _MASK, _WALK = range(3)
_KINDS = 3


@dataclass(frozen=True, kw_only=True)
class GraphViews:
    """What a random view of a graph is: one of three changes (You et al. 2020), each as likely.

    Args:
        drop: Probability that a node is dropped; one node at least stays.
        mask: Probability that the features of a node are set to zero.
        walkers: Walkers for each node of a graph, rounded up. They all set out from one random
            node; the nodes that they visit stay, with all edges between them.
        steps: Steps of each walker.
        per: Whether the change is drawn for every ``"graph"`` or once for the whole ``"batch"``;
            either way anew for each of the two views.
    """

    drop: float = 0.2
    mask: float = 0.2
    walkers: float = 0.2
    steps: int = 5
    per: Literal["graph", "batch"] = "graph"

    def __post_init__(self) -> None:
        for name in ("drop", "mask"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be a probability, got {getattr(self, name)}")
        if not 0.0 < self.walkers < float("inf"):
            raise ValueError(f"walkers must be a positive number, got {self.walkers}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.per not in ("graph", "batch"):
            raise ValueError(f'per must be "graph" or "batch", got {self.per!r}')

    def __call__(self, batch: GraphBatch, generator: Generator) -> tuple[GraphBatch, GraphBatch]:
        """Two views of every graph, made as 2n graphs in one pass: all first views, then second."""
        graphs, nodes = len(batch), batch.x.shape[0]
        draw = _Draw(generator, batch.x.device)
        kinds = draw.integers(_KINDS, (2, graphs if self.per == "graph" else 1))
        kinds = kinds.expand(2, graphs).reshape(-1)
        ptr = torch.cat([batch.ptr[:-1], batch.ptr + nodes])  # (2n + 1,) of both copies
        sizes = ptr[1:] - ptr[:-1]
        graph = torch.repeat_interleave(sizes, output_size=2 * nodes)
        # One draw serves for dropping and for masking, since no graph undergoes both. A graph to
        # walk on loses all nodes here, and gets those back that are visited.
        limits = torch.tensor((self.drop, -self.mask, 2.0), device=batch.x.device)
        limit = limits.index_select(0, kinds).index_select(0, graph)
        chance = draw.uniform(2 * nodes)
        keep = chance >= limit
        masked = _where(chance.add_(limit) < 0.0)
        keep.index_fill_(0, self._visited(batch, ptr, _where(kinds == _WALK), draw), True)
        count = keep.cumsum(0)
        new_ptr = _pointer(count, ptr)
        emptied = new_ptr[1:] == new_ptr[:-1]
        if bool(emptied.any()):
            saved = _where(emptied)
            keep.index_fill_(0, _random_nodes(ptr, saved, draw), True)
            count = keep.cumsum(0)
            new_ptr = _pointer(count, ptr)
        return _induced(batch, keep, count.sub_(1), new_ptr, masked)

    def _visited(self, batch: GraphBatch, ptr: Tensor, graphs: Tensor, draw: _Draw) -> Tensor:
        """The nodes, with repetitions, that random walks on some of the 2n graphs come by."""
        nodes = batch.x.shape[0]
        sizes = ptr.index_select(0, graphs + 1) - ptr.index_select(0, graphs)
        walker = torch.repeat_interleave((sizes * self.walkers).ceil_().long())
        root = _random_nodes(ptr, graphs, draw).index_select(0, walker)
        copy = (root >= nodes) * nodes  # both copies have the edges of the batch
        source, neighbour = batch.edge_index.unbind()
        degree = torch.zeros(nodes, dtype=torch.float64, device=root.device)
        degree.scatter_add_(0, source, degree.new_ones(()).expand(source.shape[0]))
        first = degree.cumsum(0).sub_(degree)  # where the edges of each node begin
        if not bool(degree.all()):
            # A walker that has nowhere to go stays: an edge to itself, behind all others.
            itself = torch.arange(nodes, device=root.device)
            first = torch.where(degree == 0.0, itself + source.shape[0], first)
            neighbour = torch.cat([neighbour, itself])
        trail = [root - copy]
        # Single-precision draws stay so far below 1 that no sum is rounded up to the next node.
        for luck in draw.uniform(self.steps, walker.shape[0]).double().unbind():
            here = trail[-1]
            edge = torch.addcmul(first.index_select(0, here), degree.index_select(0, here), luck)
            trail.append(neighbour.index_select(0, edge.long()))
        return torch.stack(trail).add_(copy).view(-1)


def _induced(
    batch: GraphBatch, keep: Tensor, number: Tensor, ptr: Tensor, masked: Tensor
) -> tuple[GraphBatch, GraphBatch]:
    """Both views, from the nodes of the 2n graphs to keep, their new numbers and those to mask."""
    nodes, edges = batch.x.shape[0], batch.edge_index.shape[1]
    rows = _where(keep)
    rows[int(ptr[len(batch)]) :] -= nodes
    x = batch.x.index_select(0, rows)
    x.index_fill_(0, number.index_select(0, masked), 0.0)
    graph = torch.repeat_interleave(ptr[1:] - ptr[:-1], output_size=rows.shape[0])
    ends = batch.edge_index.view(-1)
    kept = []  # the edges of each view
    for view in keep.view(2, nodes):
        both = view.index_select(0, ends)
        kept.append(_where(both[:edges] & both[edges:]))
    count = kept[0].shape[0]
    edge_index = ends.new_empty(2, count + kept[1].shape[0])
    # Piece by piece: index_select along one of two dimensions is several times slower.
    for end in range(2):
        column = batch.edge_index[end]
        for part, new, some in zip(
            (slice(count), slice(count, None)), number.view(2, nodes), kept, strict=True
        ):
            old = column.index_select(0, some)
            torch.index_select(new, 0, old, out=edge_index[end, part])
    return GraphBatch(x, edge_index, graph, ptr).halves(count)


def _random_nodes(ptr: Tensor, graphs: Tensor, draw: _Draw) -> Tensor:
    """A random node of each of these graphs."""
    first = ptr.index_select(0, graphs)
    size = ptr.index_select(0, graphs + 1) - first
    return (draw.uniform(graphs.shape[0]) * size).long() + first


def _pointer(count: Tensor, ptr: Tensor) -> Tensor:
    """Where each graph begins and ends among the nodes kept, of which ``count`` is the running
    number."""
    new_ptr = torch.zeros_like(ptr)
    torch.index_select(count, 0, ptr[1:] - 1, out=new_ptr[1:])
    return new_ptr


def _where(mask: Tensor) -> Tensor:
    """The positions at which a mask holds."""
    if mask.is_cpu:
        # NumPy has no branch per element: five times faster than nonzero() on random masks.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws from the generator, brought to the device of the data."""

    generator: Generator
    device: torch.device

    def uniform(self, *size: int) -> Tensor:
        where = self.generator.device
        return torch.rand(size, generator=self.generator, device=where).to(self.device)

    def integers(self, high: int, size: tuple[int, ...]) -> Tensor:
        where = self.generator.device
        return torch.randint(high, size, generator=self.generator, device=where).to(self.device)
