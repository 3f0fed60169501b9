"""Graphs of users, of JSON or of a memory on disk, checked and brought into columns."""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incontrast.domains.graphs.collection import GraphCollection, NodeLabels
from incontrast.text import counted

MOST_NODES = 2**24  # of graphs without features, which a few bytes of text can ask for
_HEADER, _MARK = struct.Struct("<4s5I"), b"ICG2"  # of a graph as bytes
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def read_graphs(items: Iterable[tuple[str, Any]]) -> GraphCollection:
    """A collection of graphs, each with its name in messages.

    A graph is PyG's ``Data``, a pair (edge_index, x) where x may be None, or a dictionary out of
    JSON: ``edges`` are pairs of nodes, which count in both directions, once; ``x`` has a row of
    features for each node. Instead of ``x``, there may be the number of ``nodes``; by default, the
    last node is the last one with an edge.
    """
    graphs = [(name, *_read_graph(item, name)) for name, item in items]
    if not graphs:
        raise ValueError("there are no graphs: give at least one")
    names, edge_indices, features, sizes = zip(*graphs, strict=True)
    widths = ["no features" if x is None else counted(x.shape[1], "feature") for x in features]
    for name, width in zip(names, widths, strict=True):
        if width != widths[0]:
            raise ValueError(
                f"nodes of {names[0]} have {widths[0]}, those of {name} have {width}: "
                "give all graphs the same features"
            )
    if features[0] is None and sum(sizes) > MOST_NODES:
        largest = max(sizes)
        raise ValueError(
            f"graphs without features must have {MOST_NODES} nodes at most in all, got {sum(sizes)}"
            f", of which {names[sizes.index(largest)]} has {largest}: is the number of a node "
            "wrong? Else divide the data, or give the nodes features"
        )
    return _collection(
        None if features[0] is None else torch.cat(features).float(),
        torch.cat([edge_index.long() for edge_index in edge_indices], dim=1),
        _pointer(sizes),
        _pointer(edge_index.shape[1] for edge_index in edge_indices),
        (),
        names,
    )


def _read_graph(item: Any, name: str) -> tuple[Tensor, Tensor | None, int]:
    """Edges, features and the number of nodes of a graph."""
    nodes = None
    from_json = isinstance(item, dict) and "edges" in item
    rule = "edge_index must be integers of shape (2, edges)"
    if from_json:
        edges, x, nodes = item["edges"], item.get("x"), item.get("nodes")
        rule = "edges must be pairs of node numbers"
        edges = np.empty((0, 2), np.int64) if edges == [] else edges
        if nodes is not None and (type(nodes) is not int or nodes < 1):
            raise ValueError(f"{name}: nodes must be a number of at least 1, got {nodes!r:.40}")
    elif hasattr(item, "edge_index"):
        edges, x = item.edge_index, item.x
        if x is None and "num_nodes" in item:
            nodes = int(item.num_nodes)
    elif isinstance(item, tuple | list) and len(item) == 2:
        edges, x = item
    else:
        raise ValueError(
            f"{name} must be a torch_geometric Data, a pair (edge_index, x), or "
            f'{{"edges": [[0, 1], …], "x": [[…], …]}}, got {type(item).__name__}'
        )
    edges = _tensor(edges, f"{name}: {rule}")
    if edges.dim() != 2 or edges.shape[from_json] != 2 or edges.dtype not in _INTEGERS:
        raise ValueError(f"{name}: {rule}, got {edges.dtype} of shape {tuple(edges.shape)}")
    if from_json:
        edges = edges[edges[:, 0] != edges[:, 1]]
        edges = torch.unique(torch.cat([edges, edges.flip(1)]), dim=0).T
    if x is not None:
        rule = "x must be a row of numbers for each node"
        x = _tensor(x, f"{name}: {rule}", torch.float64 if from_json else None)
        if x.dim() != 2 or x.is_complex():
            raise ValueError(f"{name}: {rule}, got {x.dtype} of shape {tuple(x.shape)}")
        nodes = x.shape[0]
    if nodes is None:
        nodes = int(edges.max()) + 1 if edges.numel() else 0
    return edges, x, nodes


def _tensor(value: Any, rule: str, dtype: torch.dtype | None = None) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=dtype).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{rule}, got {type(value).__name__}") from error


def _pointer(sizes: Iterable[int]) -> Tensor:
    return torch.tensor(list(accumulate(sizes, initial=0)))


def _collection(
    x: Tensor | None,
    edge_index: Tensor,
    node_ptr: Tensor,
    edge_ptr: Tensor,
    node_labels: NodeLabels,
    names: Sequence[str],
) -> GraphCollection:
    """A collection of these columns, checked, with sorted edges and without gaps in features."""
    sizes = node_ptr.diff()
    if bool((sizes == 0).any()):
        raise ValueError(f"{names[int((sizes == 0).nonzero()[0])]} has no nodes: leave it out")
    edge_graph = torch.repeat_interleave(edge_ptr.diff())
    outside = ((edge_index < 0) | (edge_index >= sizes[edge_graph])).any(dim=0)
    if bool(outside.any()):
        edge = int(outside.nonzero()[0])
        graph = int(edge_graph[edge])
        raise ValueError(
            f"edges of {names[graph]} must join its nodes 0 to {int(sizes[graph]) - 1}, "
            f"got an edge from {int(edge_index[0, edge])} to {int(edge_index[1, edge])}"
        )
    if x is not None and not bool(torch.isfinite(x).all()):
        node = int((~torch.isfinite(x)).any(dim=1).nonzero()[0])
        graph = int(torch.searchsorted(node_ptr, node, right=True)) - 1
        raise ValueError(
            f"features must be finite, got NaN or infinity at node {node - int(node_ptr[graph])} "
            f"of {names[graph]}: drop such graphs or fill the gaps first"
        )
    offset = node_ptr[edge_graph]
    order = (edge_index[0] + offset) * int(sizes.max()) + edge_index[1]
    if bool((order.diff() < 0).any()):
        edge_index = edge_index[:, order.argsort()]
    if x is None:
        x = local_degree_profile(edge_index + offset, int(node_ptr[-1]))
    edge_index = edge_index.int().contiguous()
    return GraphCollection(x.contiguous(), edge_index, node_ptr, edge_ptr, node_labels)


def local_degree_profile(edge_index: Tensor, nodes: int) -> Tensor:
    """(nodes, 5) float32 features for nodes that have none (Cai and Wang 2018).

    The degree, and minimum, maximum, mean and standard deviation of the neighbours' degrees, which
    are 0 for a node without neighbours.
    """
    source, target = edge_index
    degree = torch.bincount(source, minlength=nodes).double()
    of_neighbour = degree[target]

    def over_neighbours(values: Tensor, reduce: str) -> Tensor:
        zeros = torch.zeros_like(degree)
        return zeros.scatter_reduce(0, source, values, reduce, include_self=False)

    minimum, maximum, mean = (over_neighbours(of_neighbour, r) for r in ("amin", "amax", "mean"))
    variance = over_neighbours((of_neighbour - mean[source]).square(), "mean")
    return torch.stack([degree, minimum, maximum, mean, variance.sqrt()], dim=1).float()


def pack_graphs(graphs: GraphCollection) -> list[bytes]:
    """Each graph as bytes, for a memory on disk.

    Little-endian: a mark, the counts of nodes, edges, features and bytes of node labels, a checksum
    of the rest; then the sources and the targets of the edges as int32, the node features as
    float32, and the labels that the last features stand for as JSON.
    """
    x = graphs.x.numpy().astype("<f4", copy=False)
    edge_index = graphs.edge_index.numpy().astype("<i4", copy=False)
    labels = json.dumps(graphs.node_labels).encode() if graphs.node_labels else b""
    blobs = []
    for nodes, edges in zip(
        pairwise(graphs.node_ptr.tolist()), pairwise(graphs.edge_ptr.tolist()), strict=True
    ):
        rows, pairs = x[slice(*nodes)], edge_index[:, slice(*edges)]
        content = pairs.tobytes() + rows.tobytes() + labels
        counts = (len(rows), pairs.shape[1], rows.shape[1], len(labels))
        blobs.append(_HEADER.pack(_MARK, *counts, _checksum(counts, content)) + content)
    return blobs


def unpack_graphs(blobs: Sequence[bytes]) -> GraphCollection:
    if not blobs:
        raise ValueError("there are no packed graphs: give at least one")
    names = [f"packed graph {number}" for number in range(len(blobs))]
    xs, edges, labels = zip(*map(_unpack, blobs, names), strict=True)
    for name, x, label in zip(names, xs, labels, strict=True):
        if x.shape[1] != xs[0].shape[1] or label != labels[0]:
            raise ValueError(
                f"{name} has {x.shape[1]} features, the first one {xs[0].shape[1]}, or other labels"
            )
    return _collection(
        torch.from_numpy(np.concatenate(xs).astype(np.float32)),
        torch.from_numpy(np.concatenate(edges, axis=1).astype(np.int64)),
        _pointer(map(len, xs)),
        _pointer(edge_index.shape[1] for edge_index in edges),
        tuple(tuple(group) for group in json.loads(labels[0] or "[]")),
        names,
    )


def _unpack(blob: bytes, name: str) -> tuple[NDArray[np.float32], NDArray[np.int32], bytes]:
    """Features, edges and labels of a graph."""
    if len(blob) < _HEADER.size or blob[:4] != _MARK:
        raise ValueError(f"{name} is damaged: its first bytes are not a graph's")
    _, *counts, checksum = _HEADER.unpack_from(blob)
    nodes, edges, features, labels = counts
    content = memoryview(blob)[_HEADER.size :]
    size = 4 * (2 * edges + nodes * features) + labels
    if len(content) != size or _checksum(counts, content) != checksum:
        raise ValueError(
            f"{name} is damaged: it has {len(content)} bytes instead of {size}, or a wrong checksum"
        )
    edge_index = np.frombuffer(content, "<i4", 2 * edges).reshape(2, edges)
    x = np.frombuffer(content, "<f4", nodes * features, 8 * edges).reshape(nodes, features)
    return x, edge_index, bytes(content[size - labels :])


def _checksum(counts: Sequence[int], content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<4I", *counts)))
