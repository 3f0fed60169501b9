"""What users or a memory on disk have as graphs, checked and brought into columns."""

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from incontrast.domains.base import dataset_items
from incontrast.domains.graphs.collection import GraphCollection, NodeLabels

MOST_NODES = 2**24  # of graphs without features, which a few bytes of text can ask for
_HEADER, _MARK = struct.Struct("<4s5I"), b"ICG2"  # of a graph as bytes
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def read_graphs(items: Any, called: Callable[[int], str] = "graph {}".format) -> GraphCollection:
    """A collection of what PyG calls ``Data``, or of pairs (edge_index, x) where x may be None.

    A pair may have a third part, the number of nodes where x is None.
    """
    if isinstance(items, Dataset) and not isinstance(items, Iterable):
        items = dataset_items(items)
    if not isinstance(items, Iterable) or isinstance(items, str):
        raise ValueError(
            f"graphs must come as a list or a data set, got {type(items).__name__}: "
            "give [graph] for a single one"
        )
    parts = [_parts(item, called(number)) for number, item in enumerate(items)]
    if not parts:
        raise ValueError("there are no graphs: give at least one")
    edge_indices, features, sizes = zip(*parts, strict=True)
    for number, x in enumerate(features):
        if (x is None) != (features[0] is None):
            some, none = (number, 0) if features[0] is None else (0, number)
            raise ValueError(
                "either all graphs have node features or none, "
                f"got some for {called(some)} and none for {called(none)}"
            )
        if x is not None and x.shape[1] != features[0].shape[1]:
            raise ValueError(
                f"nodes must have {features[0].shape[1]} features like those of {called(0)}, "
                f"got {x.shape[1]} in {called(number)}"
            )
    if features[0] is None and sum(sizes) > MOST_NODES:
        largest = max(sizes)
        raise ValueError(
            f"graphs without features must have {MOST_NODES} nodes at most in all, got {sum(sizes)}"
            f", of which {called(sizes.index(largest))} has {largest}: is the number of a node "
            "wrong? Else divide the data, or give the nodes features"
        )
    return checked_graphs(
        torch.cat(features).float() if features[0] is not None else None,
        torch.cat([edge_index.long() for edge_index in edge_indices], dim=1),
        _pointer(sizes),
        _pointer(edge_index.shape[1] for edge_index in edge_indices),
        called=called,
    )


def graph_of(graph: Any, where: str) -> tuple[Tensor, Tensor | None, int | None]:
    """What JSON tells of a graph: (2, edges) both ways, (nodes, features) or None, and the number
    of nodes if it is told."""
    if not isinstance(graph, dict) or "edges" not in graph:
        raise ValueError(f'{where} must be {{"edges": [[0, 1], …], "x": [[…], …]}}')
    rule = "edges must be pairs of node numbers"
    pairs = _numbers(graph["edges"], None, where, rule)
    pairs = pairs.long().reshape(0, 2) if pairs.numel() == 0 else pairs
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"{where}: {rule}, got shape {tuple(pairs.shape)} of {pairs.dtype}")
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    both = torch.unique(torch.cat([pairs, pairs.flip(1)]), dim=0) if len(pairs) else pairs
    x = None
    if graph.get("x") is not None:
        x = _numbers(graph["x"], torch.float64, where, "x must be a row of numbers for each node")
    nodes = graph.get("nodes")
    if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1):
        raise ValueError(f"{where}: nodes must be a number of at least 1, got {nodes!r:.40}")
    return both.T, x, nodes


def _numbers(value: Any, dtype: torch.dtype | None, where: str, rule: str) -> Tensor:
    try:
        return torch.tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{where}: {rule}") from error


def checked_graphs(
    x: Tensor | None,
    edge_index: Tensor,
    node_ptr: Tensor,
    edge_ptr: Tensor,
    node_labels: NodeLabels = (),
    *,
    called: Callable[[int], str] = "graph {}".format,
) -> GraphCollection:
    """A collection of these columns, with sorted edges; degree profiles where ``x`` is None."""
    nodes, sizes = int(node_ptr[-1]), node_ptr.diff()
    if bool((sizes == 0).any()):
        raise ValueError(f"{called(int((sizes == 0).nonzero()[0]))} has no nodes: leave it out")
    edge_graph = torch.repeat_interleave(edge_ptr.diff())
    outside = ((edge_index < 0) | (edge_index >= sizes[edge_graph])).any(dim=0)
    if bool(outside.any()):
        edge = int(outside.nonzero()[0])
        graph = int(edge_graph[edge])
        raise ValueError(
            f"edges of {called(graph)} must join its nodes 0 to {int(sizes[graph]) - 1}, "
            f"got an edge from {int(edge_index[0, edge])} to {int(edge_index[1, edge])}"
        )
    if x is not None and not bool(torch.isfinite(x).all()):
        node = int((~torch.isfinite(x)).any(dim=1).nonzero()[0])
        graph = int(torch.searchsorted(node_ptr, node, right=True)) - 1
        raise ValueError(
            f"features must be finite, got NaN or infinity at node {node - int(node_ptr[graph])} "
            f"of {called(graph)}: drop such graphs or fill the gaps first"
        )
    offset = node_ptr[edge_graph]
    order = (edge_index[0] + offset) * int(sizes.max()) + edge_index[1]
    if bool((order.diff() < 0).any()):
        edge_index = edge_index[:, order.argsort()]
    if x is None:
        x = local_degree_profile(edge_index + offset, nodes)
    edge_index = edge_index.int().contiguous()
    return GraphCollection(x.contiguous(), edge_index, node_ptr, edge_ptr, node_labels)


def local_degree_profile(edge_index: Tensor, nodes: int) -> Tensor:
    """Features for nodes that have none: their degree, and their neighbours' (Cai and Wang 2018).

    (nodes, 5) float32: degree, and minimum, maximum, mean and standard deviation of the degrees of
    the neighbours; all zero for a node without any.
    """
    source, target = edge_index
    degree = torch.bincount(source, minlength=nodes).double()
    of_neighbour = degree[target]
    none = torch.zeros_like(degree)

    def over_neighbours(values: Tensor, how: str) -> Tensor:
        return none.scatter_reduce(0, source, values, how, include_self=False)

    mean = over_neighbours(of_neighbour, "mean")
    columns = (
        degree,
        over_neighbours(of_neighbour, "amin"),
        over_neighbours(of_neighbour, "amax"),
        mean,
        over_neighbours((of_neighbour - mean[source]).square(), "mean").sqrt(),
    )
    return torch.stack(columns, dim=1).float()


def _parts(item: Any, name: str) -> tuple[Tensor, Tensor | None, int]:
    """Edges, features and the number of nodes of one graph."""
    nodes: int | None = None
    if hasattr(item, "edge_index"):
        edge_index, x = item.edge_index, item.x
        if x is None and "num_nodes" in item:
            nodes = int(item.num_nodes)
    elif isinstance(item, tuple | list) and len(item) in (2, 3):
        edge_index, x, nodes = (*item, None)[:3]
    else:
        raise ValueError(
            f"{name} must be a torch_geometric Data or a pair (edge_index, x), "
            f"got {type(item).__name__}"
        )
    edge_index = _tensor(edge_index, f"edge_index of {name}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.dtype not in _INTEGERS:
        raise ValueError(
            f"edge_index of {name} must be integers of shape (2, edges), "
            f"got {edge_index.dtype} of shape {tuple(edge_index.shape)}"
        )
    if x is not None:
        x = _tensor(x, f"features of {name}")
        if x.dim() != 2 or x.is_complex():
            raise ValueError(
                f"features of {name} must be numbers of shape (nodes, features), "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        nodes = x.shape[0]
    if nodes is None:
        nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    return edge_index, x, nodes


def _tensor(value: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what} must be a tensor or an array, got {type(value).__name__}"
        ) from error


def _pointer(sizes: Iterable[int]) -> Tensor:
    return torch.tensor(list(accumulate(sizes, initial=0)))


def pack_graphs(graphs: GraphCollection) -> list[bytes]:
    """Each graph as bytes, for a memory on disk.

    Little-endian: a mark, the counts of nodes, edges, features and bytes of node labels, a checksum
    of the rest; then the sources and the targets of the edges as int32, the node features as
    float32, and the labels that the last features stand for as JSON.
    """
    x = graphs.x.numpy().astype("<f4", copy=False)
    edge_index = graphs.edge_index.numpy().astype("<i4", copy=False)
    node_ptr, edge_ptr = graphs.node_ptr.tolist(), graphs.edge_ptr.tolist()
    labels = json.dumps(graphs.node_labels).encode() if graphs.node_labels else b""
    blobs = []
    for number in range(len(graphs)):
        rows = x[node_ptr[number] : node_ptr[number + 1]]
        edges = edge_index[:, edge_ptr[number] : edge_ptr[number + 1]]
        content = edges.tobytes() + rows.tobytes() + labels
        counts = (len(rows), edges.shape[1], rows.shape[1], len(labels))
        blobs.append(_HEADER.pack(_MARK, *counts, _checksum(counts, content)) + content)
    return blobs


def unpack_graphs(blobs: Sequence[bytes]) -> GraphCollection:
    if not blobs:
        raise ValueError("there are no packed graphs: give at least one")
    parts = [_unpack(blob, number) for number, blob in enumerate(blobs)]
    xs, edges, labels = zip(*parts, strict=True)
    for number, x in enumerate(xs):
        if x.shape[1] != xs[0].shape[1] or labels[number] != labels[0]:
            raise ValueError(
                f"packed graph {number} has {x.shape[1]} features, the first one {xs[0].shape[1]}, "
                "or others: they are not of one collection"
            )
    return checked_graphs(
        torch.from_numpy(np.concatenate(xs).astype(np.float32)),
        torch.from_numpy(np.concatenate(edges, axis=1).astype(np.int64)),
        _pointer(map(len, xs)),
        _pointer(edge_index.shape[1] for edge_index in edges),
        tuple(tuple(group) for group in json.loads(labels[0] or "[]")),
    )


def _unpack(blob: bytes, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32], bytes]:
    if len(blob) < _HEADER.size or blob[:4] != _MARK:
        raise ValueError(f"packed graph {number} is damaged: its first bytes are not a graph's")
    _, nodes, edges, features, labels, checksum = _HEADER.unpack_from(blob)
    content = memoryview(blob)[_HEADER.size :]
    size = 4 * (2 * edges + nodes * features) + labels
    if len(content) != size or _checksum((nodes, edges, features, labels), content) != checksum:
        raise ValueError(
            f"packed graph {number} is damaged: it has {len(content)} bytes where its header "
            f"tells {size}, or its checksum is wrong"
        )
    edge_index = np.frombuffer(content, "<i4", 2 * edges).reshape(2, edges)
    x = np.frombuffer(content, "<f4", nodes * features, 8 * edges).reshape(nodes, features)
    return x, edge_index, bytes(content[size - labels :])


def _checksum(counts: tuple[int, ...], content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<4I", *counts)))
