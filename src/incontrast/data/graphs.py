"""Graphs in the text files of TU Dortmund (Morris et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from incontrast.data.labelled import Labelled
from incontrast.data.tables import LARGEST
from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.reading import local_degree_profile
from incontrast.text import counted


def tu(root: str | Path, name: str, *, attributes: bool = False) -> Labelled:
    """A data set in TU's format: items are a ``GraphCollection``, labels those of the graphs.

    Node labels become one-hot features, a column for each label in the data set; a learner gives
    later data the columns of its first ones. Without node labels, the features of a node are its
    local degree profile. Edges that are listed twice count once, and self-loops are left out.

    Args:
        root: Folder with ``<name>_A.txt`` and the others; they may also be in ``<name>`` or
            ``<name>/raw`` below it.
        name: Name of the data set, such as ``PROTEINS``.
        attributes: Put the node attributes before the node labels.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is damaged; names the file and the line.
    """
    root = Path(root)
    for folder in (root, root / name, root / name / "raw"):
        if (folder / f"{name}_A.txt").is_file():
            break
    else:
        raise FileNotFoundError(
            f"there is no {name}_A.txt in {root}, nor in {name} or {name}/raw below it"
        )

    def path(kind: str) -> Path:
        return folder / f"{name}_{kind}.txt"

    graph_labels = _read(path("graph_labels"), np.int64, columns=1)[:, 0]
    graph = _read_graph_of_nodes(path("graph_indicator"), len(graph_labels))
    count, nodes = len(graph_labels), len(graph)
    node_ptr = np.concatenate([[0], np.bincount(graph, minlength=count).cumsum()])
    features: list[NDArray[np.float32]] = []
    node_labels: list[tuple[int, ...]] = []
    if attributes:
        features.append(_read(path("node_attributes"), np.float32, nodes=nodes))
    if path("node_labels").exists():
        for column in _read(path("node_labels"), np.int64, nodes=nodes).T:
            labels, codes = np.unique(column, return_inverse=True)
            if len(labels) * nodes * 4 > LARGEST:
                raise ValueError(
                    f"{path('node_labels')} has {len(labels)} labels, too many for a feature each"
                )
            node_labels.append(tuple(labels.tolist()))
            features.append(np.zeros((nodes, len(labels)), np.float32))
            features[-1][np.arange(nodes), codes] = 1.0
    edges = _read_edges(path("A"), graph)
    edge_graph = graph[edges[0]]
    edge_ptr = np.concatenate([[0], np.bincount(edge_graph, minlength=count).cumsum()])
    if features:
        x = torch.from_numpy(np.concatenate(features, axis=1))
    else:
        x = local_degree_profile(torch.from_numpy(edges), nodes)
    local = (edges - node_ptr[edge_graph]).astype(np.int32)  # node numbers within each graph
    pointers = torch.from_numpy(node_ptr), torch.from_numpy(edge_ptr)
    items = GraphCollection(x, torch.from_numpy(local), *pointers, tuple(node_labels))
    return Labelled.by_name(items, graph_labels)


def _read_graph_of_nodes(path: Path, count: int) -> NDArray[np.int64]:
    """(nodes,) the graph of each node, from 0, ascending; each of ``count`` graphs has nodes."""
    graph = _read(path, np.int64, columns=1)[:, 0] - 1
    _refuse(
        path,
        (graph < 0) | (graph >= count),
        lambda line: f"graph {graph[line] + 1} is none of the {count} graphs with a label",
    )
    _refuse(
        path,
        np.diff(graph, prepend=0) < 0,
        lambda line: f"graph {graph[line] + 1} follows a higher one: list the nodes by graph",
    )
    empty = np.bincount(graph, minlength=count) == 0
    if empty.any():
        raise ValueError(f"{path}: graph {int(empty.argmax()) + 1} of {count} has no nodes")
    return graph


def _read_edges(path: Path, graph: NDArray[np.int64]) -> NDArray[np.int64]:
    """(2, edges) nodes of the edges, from 0; each edge once, sorted, without self-loops."""
    edges = _read(path, np.int64, columns=2) - 1
    nodes = len(graph)
    _refuse(
        path,
        ((edges < 0) | (edges >= nodes)).any(axis=1),
        lambda line: (
            f"nodes are numbered from 1 to {nodes}, got an edge from {edges[line, 0] + 1} "
            f"to {edges[line, 1] + 1}"
        ),
    )
    source, target = edges.T
    _refuse(
        path,
        graph[source] != graph[target],
        lambda line: (
            f"an edge must stay within one graph, got one from node {source[line] + 1} of "
            f"graph {graph[source[line]] + 1} to node {target[line] + 1} of graph "
            f"{graph[target[line]] + 1}"
        ),
    )
    keys = np.sort(source * nodes + target)  # much faster than np.unique, which hashes
    source, target = np.divmod(keys[np.diff(keys, prepend=-1) > 0], nodes)
    proper = source != target
    return np.stack([source[proper], target[proper]])


def _read(
    path: Path, dtype: type, *, columns: int | None = None, nodes: int | None = None
) -> NDArray[Any]:
    """The finite numbers of a file, with commas between columns; a line for each of ``nodes``."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    content = path.read_bytes().rstrip()
    if not content:
        raise ValueError(f"{path} is empty")
    table: NDArray[Any]
    try:
        table = np.loadtxt(path, dtype=dtype, delimiter=",", comments=None, ndmin=2)
    except (ValueError, OverflowError):
        table = np.empty((0, 0))
    # NumPy skips empty lines, which would shift all that follow.
    if len(table) != content.count(b"\n") + 1 or columns not in (None, table.shape[1]):
        raise ValueError(_first_damage(path, content, dtype, columns))
    if nodes not in (None, len(table)):
        raise ValueError(f"{path} must have a line for each of {nodes} nodes, got {len(table)}")
    if dtype is not np.int64:
        _refuse(path, ~np.isfinite(table).all(axis=1), lambda line: "numbers must be finite")
    return table


def _first_damage(path: Path, content: bytes, dtype: type, columns: int | None) -> str:
    """The message for the first line that cannot be read."""
    lines = content.decode(errors="replace").split("\n")
    columns = columns or len(lines[0].split(","))
    expected = counted(columns, "integer" if dtype is np.int64 else "number")
    for number, line in enumerate(lines, start=1):
        try:
            cells = [dtype(cell) for cell in line.split(",")]
        except (ValueError, OverflowError):
            cells = []
        if len(cells) != columns:
            return f"{path}, line {number} must have {expected}, got {line[:60]!r}"
    return f"{path} cannot be read as a table of numbers"


def _refuse(path: Path, wrong: NDArray[np.bool_] | np.bool_, reason: Callable[[int], str]) -> None:
    """Raise an error that names the first wrong line, if there is one."""
    if wrong.any():
        line = int(wrong.argmax())
        raise ValueError(f"{path}, line {line + 1}: {reason(line)}")
