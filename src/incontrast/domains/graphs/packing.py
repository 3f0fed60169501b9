"""A graph as bytes, for a memory on disk.

Little-endian: a mark, the counts of nodes, edges, features and bytes of node labels, a checksum of
the rest; then the sources and the targets of the edges as int32, the node features as float32, and
the labels that the last features stand for as JSON.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.reading import checked_graphs

_HEADER = struct.Struct("<4s5I")
_MARK = b"ICG2"


def pack_graphs(graphs: GraphCollection) -> list[bytes]:
    """Each graph as bytes."""
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
    """The graphs that ``pack_graphs`` turned into these bytes."""
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
        torch.tensor([0, *(len(x) for x in xs)]).cumsum(0),
        torch.tensor([0, *(edge_index.shape[1] for edge_index in edges)]).cumsum(0),
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
