"""Two random views of every graph in a batch, all at once."""

from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor

from incontrast.domains.graphs.collection import GraphBatch

_WALK = 2  # of the changes: 0 drops nodes, 1 masks their features


def two_views(
    batch: GraphBatch,
    generator: Generator,
    *,
    drop: float,
    mask: float,
    walkers: float,
    steps: int,
    per: Literal["graph", "batch"],
) -> tuple[GraphBatch, GraphBatch]:
    """Two views of every graph; ``Graphs`` says what they are.

    Both are made in one pass over 2n graphs: all first views, then all second ones.
    """
    graphs, nodes = len(batch), batch.x.shape[0]
    kinds = torch.randint(3, (2 * graphs if per == "graph" else 2,), generator=generator)
    if per == "batch":
        kinds = kinds.repeat_interleave(graphs)
    ptr = torch.cat([batch.ptr[:-1], batch.ptr + nodes])  # (2n + 1,) of both copies
    graph = torch.repeat_interleave(ptr[1:] - ptr[:-1], output_size=2 * nodes)
    # One draw serves for dropping and for masking, since no graph undergoes both. A graph to
    # walk on loses all nodes here, and gets those back that are visited.
    limits = torch.tensor((drop, -mask, 2.0))  # by change
    limit = limits.index_select(0, kinds).index_select(0, graph)
    chance = torch.rand(2 * nodes, generator=generator)
    keep = chance >= limit
    masked = _where(chance < limit.neg_())
    walks = _where(kinds == _WALK)
    keep.index_fill_(0, _visited(batch, ptr, walks, generator, walkers, steps), True)
    number, new_ptr, sizes = _renumbered(keep, ptr)
    if graphs and int(sizes.min()) == 0:
        emptied = _where(sizes == 0)
        keep.index_fill_(0, _random_nodes(ptr, emptied, generator)[0], True)
        number, new_ptr, sizes = _renumbered(keep, ptr)
    rows = _where(keep)
    first = int(new_ptr[graphs])  # nodes of all first views
    rows[first:].sub_(nodes)
    x = batch.x.index_select(0, rows)
    x.index_fill_(0, number.index_select(0, masked), 0.0)
    graph = torch.repeat_interleave(sizes, output_size=rows.shape[0])
    edge_index, edges = _induced(batch.edge_index, keep.view(2, -1), number.view(2, -1))
    return GraphBatch(x, edge_index, graph, new_ptr).halves(first, edges)


def _visited(
    batch: GraphBatch,
    ptr: Tensor,
    graphs: Tensor,
    generator: Generator,
    walkers: float,
    steps: int,
) -> Tensor:
    """The nodes, with repetitions, that random walks on some of the 2n graphs come by."""
    nodes = batch.x.shape[0]
    root, sizes = _random_nodes(ptr, graphs, generator)
    walker = torch.repeat_interleave((sizes * walkers).ceil_().long())
    luck = torch.rand(steps, walker.shape[0], generator=generator)
    root = root.index_select(0, walker)
    here = root.remainder(max(nodes, 1))  # both copies have the edges of the batch
    copy = root - here
    source, neighbour = batch.edge_index.unbind()
    degree = torch.bincount(source, minlength=nodes)
    first = degree.cumsum(0).sub_(degree)  # where the edges of each node begin
    if nodes and int(degree.min()) == 0:
        # A walker that has nowhere to go stays: an edge to itself, behind all others.
        itself = torch.arange(nodes, device=root.device)
        first = torch.where(degree == 0, itself + source.shape[0], first)
        neighbour = torch.cat([neighbour, itself])
    # By NumPy, whose calls take half the time of torch's on so few numbers.
    degrees, begins, to = degree.float().numpy(), first.numpy(), neighbour.numpy()
    trail = np.empty((luck.shape[0] + 1, luck.shape[1]), dtype=np.int64)
    trail[0] = here.numpy()
    # A draw is at least half a unit in the last place below 1, and so is its product with a degree
    # below that degree: rounding never leads to the edges of the next node.
    for step, share in enumerate(luck.numpy()):
        at = trail[step]
        edge = (degrees.take(at) * share).astype(np.int64)
        edge += begins.take(at)
        to.take(edge, out=trail[step + 1], mode="clip")
    return torch.from_numpy(trail).add_(copy).view(-1)


def _induced(edge_index: Tensor, keep: Tensor, number: Tensor) -> tuple[Tensor, int]:
    """The edges of both views by the new numbers of their nodes, and how many the first has."""
    source, target = edge_index.unbind()
    first, second = (
        _where(view.index_select(0, source) & view.index_select(0, target)) for view in keep
    )
    count = first.shape[0]
    result = edge_index.new_empty(2, count + second.shape[0])
    # Piece by piece: index_select along one of two dimensions is several times slower.
    for part, edges, new in zip(
        result.tensor_split((count,), dim=1), (first, second), number, strict=True
    ):
        torch.index_select(new, 0, source.index_select(0, edges), out=part[0])
        torch.index_select(new, 0, target.index_select(0, edges), out=part[1])
    return result, count


def _random_nodes(ptr: Tensor, graphs: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """A random node of each of these graphs, and their sizes."""
    first = ptr.index_select(0, graphs)
    sizes = ptr.index_select(0, graphs + 1).sub_(first)
    chance = torch.rand(graphs.shape[0], generator=generator)
    return first.add_((chance * sizes).long()), sizes


def _renumbered(keep: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the nodes to keep: their new numbers, where each graph begins and ends, and its size."""
    count = torch.zeros(keep.shape[0] + 1, dtype=torch.int64, device=keep.device)
    torch.cumsum(keep, 0, out=count[1:])
    new_ptr = count.index_select(0, ptr)
    return count[:-1], new_ptr, new_ptr[1:] - new_ptr[:-1]


def _where(mask: Tensor) -> Tensor:
    """The positions at which a mask holds."""
    # NumPy has no branch per element: five times faster than nonzero() on random masks.
    return torch.from_numpy(mask.numpy().nonzero()[0])
