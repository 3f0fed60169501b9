"""Two random views of every graph in a batch, and of several batches, all at once.

By NumPy, but for draws and features: its calls take half the time of torch's on so few numbers.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

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
    """Two views of every graph of several batches; ``Graphs`` says what they are.

    The graphs of ``batch`` are those of batches of so many graphs as ``counts`` says, each with a
    generator of its own. The result is a batch for each: all first views, then all second ones.
    What is called a place below is that of a node among those of all views, batch by batch.
    """
    ends = np.cumsum([0, *counts])  # of batches, in graphs
    spans = list(pairwise(ends.tolist()))
    nodes_ptr = batch.ptr.numpy()
    node_ends = nodes_ptr.take(ends).tolist()
    of = np.concatenate([np.arange(*span) for span in spans for _ in range(2)])  # graph of a view
    sizes = (nodes_ptr[1:] - nodes_ptr[:-1]).take(of)
    ptr = np.concatenate([[0], sizes.cumsum()])  # where the places of each view begin
    each = [2 * count if per == "graph" else 2 for count in counts]
    kinds = _drawn(generators, each, lambda n, draws: torch.randint(3, (n,), generator=draws))
    if per == "batch":
        kinds = kinds.repeat(np.repeat(counts, 2))
    # One draw serves for dropping and for masking, since no graph undergoes both. A graph to
    # walk on loses all nodes here, and gets those back that are visited.
    limits = np.array((drop, -mask, 2.0), np.float32)  # by change
    limit = limits.take(kinds).repeat(sizes)
    chance = _drawn(generators, [2 * (last - first) for first, last in pairwise(node_ends)])
    keep = chance >= limit
    masked = np.flatnonzero(chance < -limit)
    walks = np.flatnonzero(kinds == _WALK)
    roots = _random_within(sizes, walks, ends, generators)
    roots += nodes_ptr.take(of.take(walks))
    count = np.ceil(sizes.take(walks).astype(np.float32) * np.float32(walkers)).astype(np.int64)
    before = np.concatenate([[0], count.cumsum()]).take(walks.searchsorted(2 * ends)).tolist()
    each = [last - first for first, last in pairwise(before)]
    luck = _drawn(generators, each, lambda n, draws: torch.rand(steps, n, generator=draws))
    visited = _visited(batch, roots.repeat(count), luck)
    visited += (ptr.take(walks) - nodes_ptr.take(of.take(walks))).repeat(count)
    keep[visited.reshape(-1)] = True
    rows = np.flatnonzero(keep)
    new_ptr = rows.searchsorted(ptr)
    sizes_after = new_ptr[1:] - new_ptr[:-1]
    if len(of) and sizes_after.min() == 0:
        emptied = np.flatnonzero(sizes_after == 0)
        keep[ptr.take(emptied) + _random_within(sizes, emptied, ends, generators)] = True
        rows = np.flatnonzero(keep)
        new_ptr = rows.searchsorted(ptr)
        sizes_after = new_ptr[1:] - new_ptr[:-1]
    number = np.full(len(keep), -1)  # of each node among all views, if it is kept
    number[rows] = np.arange(len(rows))
    for (start, stop), *nodes in zip(spans, node_ends, node_ends[1:], strict=False):
        for begin, first in zip((2 * start, start + stop), nodes, strict=True):
            rows[new_ptr[begin] : new_ptr[begin + stop - start]] -= first  # places to nodes
    x = batch.x.numpy().take(rows, axis=0, mode="clip")
    x[number.take(masked)] = 0.0
    edges = batch.edge_index.numpy()
    edge_ends = edges[0].searchsorted(node_ends) if len(counts) > 1 else [0, edges.shape[1]]
    views = []
    for (start, stop), ends_of, own in zip(
        spans, pairwise(node_ends), pairwise(edge_ends), strict=True
    ):
        part = slice(2 * start, 2 * stop)
        first, last = new_ptr[part.start], new_ptr[part.stop]
        columns = (
            x[first:last],
            _induced(edges[:, slice(*own)], [number[end:] for end in ends_of], first),
            np.arange(2 * (stop - start)).repeat(sizes_after[part]),
            new_ptr[part.start : part.stop + 1] - first,
        )
        views.append(GraphBatch(*map(torch.from_numpy, columns)))
    return views


def _visited(batch: GraphBatch, root: Numbers, luck: NDArray[np.float32]) -> Numbers:
    """(steps + 1, walkers) nodes that walkers from these nodes come by."""
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
    """The edges of both views by the new numbers of their nodes, which are -1 where dropped.

    ``numbers`` are those of each view, by its nodes; they count from ``first``.
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
    """A random node of each of these views, counted from its first; ``ends`` are of batches."""
    chance = _drawn(generators, np.diff(views.searchsorted(2 * ends)).tolist())
    within: Numbers = (chance * sizes.take(views).astype(np.float32)).astype(np.int64)
    return within


def _uniform(count: int, draws: Generator) -> Tensor:
    return torch.rand(count, generator=draws)


def _drawn(
    generators: Sequence[Generator],
    counts: Sequence[int],
    draw: Callable[[int, Generator], Tensor] = _uniform,
) -> NDArray[Any]:
    """So many numbers by each generator, end to end."""
    arrays = [draw(n, draws).numpy() for n, draws in zip(counts, generators, strict=True)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
