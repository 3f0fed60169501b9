"""Two random views of every graph in a batch, all at once.

By NumPy, but for draws and features: its calls take half the time of torch's on so few numbers.
"""

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
    generator: Generator,
    *,
    drop: float,
    mask: float,
    walkers: float,
    steps: int,
    per: Literal["graph", "batch"],
) -> GraphBatch:
    """Two views of every graph; ``Graphs`` says what they are.

    Both are made in one pass over 2n graphs: all first views, then all second ones.
    """
    graphs, nodes = len(batch), batch.x.shape[0]
    ptr = batch.ptr.numpy()
    ptr = np.concatenate([ptr[:-1], ptr + nodes])  # (2n + 1,) of both copies
    sizes = ptr[1:] - ptr[:-1]
    kinds = _drawn(torch.randint, 3, (2 * graphs if per == "graph" else 2,), generator=generator)
    if per == "batch":
        kinds = kinds.repeat(graphs)
    # One draw serves for dropping and for masking, since no graph undergoes both. A graph to
    # walk on loses all nodes here, and gets those back that are visited.
    limits = np.array((drop, -mask, 2.0), np.float32)  # by change
    limit = limits.take(kinds).repeat(sizes)
    chance = _drawn(torch.rand, 2 * nodes, generator=generator)
    keep = chance >= limit
    masked = np.flatnonzero(chance < -limit)
    walks = np.flatnonzero(kinds == _WALK)
    roots = _random_nodes(ptr, sizes, walks, generator)
    count = np.ceil(sizes.take(walks).astype(np.float32) * np.float32(walkers)).astype(np.int64)
    keep[_visited(batch, roots.repeat(count), steps, generator)] = True
    rows = np.flatnonzero(keep)
    new_ptr = rows.searchsorted(ptr)
    sizes_after = new_ptr[1:] - new_ptr[:-1]
    if graphs and sizes_after.min() == 0:
        emptied = np.flatnonzero(sizes_after == 0)
        keep[_random_nodes(ptr, sizes, emptied, generator)] = True
        rows = np.flatnonzero(keep)
        new_ptr = rows.searchsorted(ptr)
        sizes_after = new_ptr[1:] - new_ptr[:-1]
    number = np.full(2 * nodes, -1)  # of each node in its view, if it is kept
    number[rows] = np.arange(len(rows))
    rows[new_ptr[graphs] :] -= nodes
    x = batch.x.numpy().take(rows, axis=0, mode="clip")
    x[number.take(masked)] = 0.0
    return GraphBatch(
        torch.from_numpy(x),
        torch.from_numpy(_induced(batch.edge_index.numpy(), number.reshape(2, -1))),
        torch.from_numpy(np.arange(2 * graphs).repeat(sizes_after)),
        torch.from_numpy(new_ptr),
    )


def _visited(batch: GraphBatch, root: Numbers, steps: int, generator: Generator) -> Numbers:
    """The nodes, with repetitions, that walkers from these nodes of 2n graphs come by."""
    nodes = batch.x.shape[0]
    luck = _drawn(torch.rand, steps, len(root), generator=generator)
    copy = np.where(root >= nodes, nodes, 0)  # both copies have the edges of the batch
    source, neighbour = batch.edge_index.numpy()
    degree = np.bincount(source, minlength=nodes)
    first = degree.cumsum() - degree  # where the edges of each node begin
    if nodes and degree.min() == 0:
        # A walker that has nowhere to go stays: an edge to itself, behind all others.
        first = np.where(degree == 0, np.arange(nodes) + len(source), first)
        neighbour = np.concatenate([neighbour, np.arange(nodes)])
    degrees = degree.astype(np.float32)
    trail = np.empty((steps + 1, len(root)), dtype=np.int64)
    np.subtract(root, copy, out=trail[0])
    # A draw is at least half a unit in the last place below 1, and so is its product with a degree
    # below that degree: rounding never leads to the edges of the next node.
    for here, there, share in zip(trail, trail[1:], luck, strict=False):
        edge = (degrees.take(here, mode="clip") * share).astype(np.int64)
        edge += first.take(here, mode="clip")
        neighbour.take(edge, out=there, mode="clip")
    trail += copy
    return trail.reshape(-1)


def _induced(edge_index: Numbers, number: Numbers) -> Numbers:
    """The edges of both views by the new numbers of their nodes, which are -1 where dropped."""
    source, target = (number.take(e, axis=1, mode="clip").reshape(-1) for e in edge_index)
    kept = np.flatnonzero(source | target >= 0)
    result = np.empty((2, len(kept)), dtype=np.int64)
    source.take(kept, out=result[0], mode="clip")
    target.take(kept, out=result[1], mode="clip")
    return result


def _random_nodes(ptr: Numbers, sizes: Numbers, graphs: Numbers, generator: Generator) -> Numbers:
    """A random node of each of these graphs."""
    chance = _drawn(torch.rand, len(graphs), generator=generator)
    within = chance * sizes.take(graphs).astype(np.float32)
    return ptr.take(graphs) + within.astype(np.int64)


def _drawn(draw: Any, *arguments: Any, generator: Generator) -> NDArray[Any]:
    numbers: Tensor = draw(*arguments, generator=generator)
    return numbers.numpy()
