"""Two random views of every graph in a batch, and of several batches, all at once.

By NumPy, but for draws and features: its calls take half the time of torch's on so few numbers.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from incontrast.domains.graphs.collection import GraphBatch

Numbers = NDArray[np.int64]

_WALK = 2  # of the changes: 0 drops nodes, 1 masks their features


def two_views(
    batch: GraphBatch,
    counts: Sequence[int],
    generators: Sequence[Generator],
    *,
    drop: float,
    mask: float,
    walkers: float,
    steps: int,
    per: Literal["graph", "batch"],
) -> list[GraphBatch]:
    """Two views of every graph of several batches, as ``Graphs`` describes them.

    ``batch`` has the graphs of all batches, ``counts`` how many are of each, and each batch has a
    generator. The result is a batch for each: first views of all its graphs, then second ones.
    """
    # Views are in the order of the result; a *place* is the index of a node among all their nodes.
    graph_ends = np.cumsum([0, *counts])  # of batches
    spans = list(pairwise(graph_ends.tolist()))
    nodes_ptr = batch.ptr.numpy()
    node_ends = nodes_ptr.take(graph_ends).tolist()  # of batches
    graph = np.concatenate([np.arange(*span) for span in spans for _ in range(2)])  # of each view
    sizes = (nodes_ptr[1:] - nodes_ptr[:-1]).take(graph)
    ptr = np.concatenate([[0], sizes.cumsum()])  # where the places of each view begin
    shift = ptr[:-1] - nodes_ptr.take(graph)  # from a node to its place, by view
    draws = [
        torch.randint(3, (2 * count if per == "graph" else 2,), generator=generator).numpy()
        for count, generator in zip(counts, generators, strict=True)
    ]
    kinds = np.concatenate(draws)  # the change of each view
    if per == "batch":
        kinds = kinds.repeat(np.repeat(counts, 2))
    # One draw serves for dropping and for masking, since no graph undergoes both. A graph to
    # walk on loses all nodes here, and gets those back that are visited.
    limits = np.array((drop, -mask, 2.0), np.float32)  # by change
    limit = limits.take(kinds).repeat(sizes)
    chance = _uniform(generators, [2 * (last - first) for first, last in pairwise(node_ends)])
    keep = chance >= limit  # by place
    masked = np.flatnonzero(chance < -limit)
    walks = np.flatnonzero(kinds == _WALK)  # views
    roots = _random_within(sizes, walks, graph_ends, generators)
    roots += nodes_ptr.take(graph.take(walks))
    count = np.ceil(sizes.take(walks).astype(np.float32) * np.float32(walkers)).astype(np.int64)
    ends = np.concatenate([[0], count.cumsum()]).take(walks.searchsorted(2 * graph_ends)).tolist()
    luck = _uniform(generators, [last - first for first, last in pairwise(ends)], steps)
    visited = _visited(batch, roots.repeat(count), luck)
    visited += shift.take(walks).repeat(count)
    keep[visited.reshape(-1)] = True
    kept = np.flatnonzero(keep)
    new_ptr = kept.searchsorted(ptr)
    empty = np.flatnonzero(new_ptr[1:] == new_ptr[:-1])
    if len(empty):
        keep[ptr.take(empty) + _random_within(sizes, empty, graph_ends, generators)] = True
        kept = np.flatnonzero(keep)
        new_ptr = kept.searchsorted(ptr)
    new_sizes = new_ptr[1:] - new_ptr[:-1]
    number = np.full(len(keep), -1)  # of the node at each place, if it is kept
    number[kept] = np.arange(len(kept))
    kept -= shift.repeat(new_sizes)  # from places to nodes
    x = batch.x.numpy().take(kept, axis=0, mode="clip")
    x[number.take(masked)] = 0.0
    edges = batch.edge_index.numpy()
    edge_ends = edges[0].searchsorted(node_ends) if len(counts) > 1 else [0, edges.shape[1]]
    views = []
    for (start, stop), nodes, of_batch in zip(
        spans, pairwise(node_ends), pairwise(edge_ends), strict=True
    ):
        part = slice(2 * start, 2 * stop)
        first, last = new_ptr[part.start], new_ptr[part.stop]
        # Node v is at place nodes[0] + v in the first views, at nodes[1] + v in the second ones.
        columns = (
            x[first:last],
            _induced(edges[:, slice(*of_batch)], [number[node:] for node in nodes], first),
            np.arange(2 * (stop - start)).repeat(new_sizes[part]),
            new_ptr[part.start : part.stop + 1] - first,
        )
        views.append(GraphBatch(*map(torch.from_numpy, columns)))
    return views


def _visited(batch: GraphBatch, root: Numbers, luck: NDArray[np.float32]) -> Numbers:
    """(steps + 1, walkers) nodes that walkers from these roots visit."""
    nodes = batch.x.shape[0]
    source, neighbour = batch.edge_index.numpy()
    degree = np.bincount(source, minlength=nodes)
    first = degree.cumsum() - degree  # where the edges of each node begin
    if nodes and degree.min() == 0:
        # A walker that has nowhere to go stays: an edge to itself, behind all others.
        first = np.where(degree == 0, np.arange(nodes) + len(source), first)
        neighbour = np.concatenate([neighbour, np.arange(nodes)])
    degrees = degree.astype(np.float32)
    trail = np.empty((len(luck) + 1, len(root)), dtype=np.int64)
    trail[0] = root
    # A draw is at least half a unit in the last place below 1, and so is its product with a degree
    # below that degree: rounding never leads to the edges of the next node.
    for here, there, share in zip(trail, trail[1:], luck, strict=False):
        edge = (degrees.take(here, mode="clip") * share).astype(np.int64)
        edge += first.take(here, mode="clip")
        neighbour.take(edge, out=there, mode="clip")
    return trail


def _induced(edge_index: Numbers, numbers: Sequence[Numbers], first: int) -> Numbers:
    """The edges of both views by the new numbers of their nodes, minus ``first``.

    ``numbers`` has the new number of each node for each view, -1 if the node is dropped.
    """
    both = np.empty((2, 2, edge_index.shape[1]), dtype=np.int64)
    for end, nodes in zip(both, edge_index, strict=True):
        for view, number in zip(end, numbers, strict=True):
            number.take(nodes, out=view, mode="clip")
    source, target = both.reshape(2, -1)
    kept = np.flatnonzero(source | target >= 0)
    result = np.empty((2, len(kept)), dtype=np.int64)
    source.take(kept, out=result[0], mode="clip")
    target.take(kept, out=result[1], mode="clip")
    if first:
        result -= first
    return result


def _random_within(
    sizes: Numbers, views: Numbers, ends: Numbers, generators: Sequence[Generator]
) -> Numbers:
    """A random node of each of these views, counted from its first; ``ends`` of the batches."""
    chance = _uniform(generators, np.diff(views.searchsorted(2 * ends)).tolist())
    within: Numbers = (chance * sizes.take(views).astype(np.float32)).astype(np.int64)
    return within


def _uniform(
    generators: Sequence[Generator], counts: Sequence[int], *rows: int
) -> NDArray[np.float32]:
    """(*rows, sum of counts) numbers from 0 to 1, so many of each generator."""
    drawn = [
        torch.rand(*rows, count, generator=generator).numpy()
        for count, generator in zip(counts, generators, strict=True)
    ]
    return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=-1)
