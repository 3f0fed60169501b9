"""Graphs in files: the text files of TU Dortmund (Morris et al. 2020), and JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incontrast.data.labelled import Labelled
from incontrast.data.tables import LARGEST, Table, check_length
from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.reading import checked_graphs, graph_of, read_graphs


def json_graphs(table: Table) -> GraphCollection:
    """The graphs of a .jsonl file, one in each line.

    ``edges`` are pairs of nodes, counted from 0, without a direction: each counts both ways, once.
    ``x`` has a row of features for each node. Where no graph has it, features are degree profiles,
    and ``nodes`` may tell their number (else the last one that has an edge is the last).
    """
    graphs: list[Any] = []
    places: list[str] = []
    for where, row in table.records():
        if isinstance(row, str):
            check_length(len(row), where, "give larger graphs as a TU folder")
        places.append(where)
        graphs.append(graph_of(row, where))
    return read_graphs(graphs, called=places.__getitem__)


def tu(root: str | Path, name: str, *, attributes: bool = False) -> Labelled:
    """Graphs with class labels: items are a ``GraphCollection``, labels are numbered from 0.

    Node labels become one-hot features, a column for each label that the data set has; a learner
    gives later data the columns of its first ones. Where a data set has no labels, the features of
    a node are its local degree profile. Edges that are listed twice count once, and self-loops are
    left out.

    Args:
        root: Folder with ``<name>_A.txt`` and the others; they may also be in ``<name>`` or
            ``<name>/raw`` below it.
        name: Name of the data set, such as ``PROTEINS``.
        attributes: Put the node attributes before the node labels.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file does not hold what it should; says which, and where.
    """
    folder = _find(Path(root), name)

    def path(kind: str) -> Path:
        return folder / f"{name}_{kind}.txt"

    graph_labels = _column(path("graph_labels"))
    node_ptr, graph = _graphs(path("graph_indicator"), len(graph_labels), path("graph_labels"))
    columns: list[NDArray[Any]] = []
    node_labels: list[tuple[int, ...]] = []
    if attributes:
        columns.append(_rows(path("node_attributes"), np.float32, len(graph)))
    if path("node_labels").exists():
        for column in _rows(path("node_labels"), np.int64, len(graph)).T:
            known, codes = np.unique(column, return_inverse=True)
            if len(known) * len(column) * 4 > LARGEST:
                raise ValueError(
                    f"{path('node_labels')} has {len(known)} different labels, too many for a "
                    "feature each: are they numbers of nodes?"
                )
            node_labels.append(tuple(known.tolist()))
            columns.append(np.zeros((len(column), len(known)), np.float32))
            columns[-1][np.arange(len(column)), codes] = 1.0
    edge_index, edge_ptr = _edges(path("A"), graph, node_ptr)
    items = checked_graphs(
        torch.from_numpy(np.concatenate(columns, axis=1)) if columns else None,
        edge_index,
        torch.from_numpy(node_ptr),
        edge_ptr,
        tuple(node_labels),
    )
    return Labelled.by_name(items, graph_labels)


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / name, root / name / "raw"):
        if (folder / f"{name}_A.txt").is_file():
            return folder
    raise FileNotFoundError(
        f"there is no {name}_A.txt in {root}, nor in {name} or {name}/raw below it"
    )


def _graphs(path: Path, count: int, labels: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the nodes of each graph begin and end, and the graph of each node."""
    graph = _column(path) - 1
    for wrong, what in (
        ((graph < 0) | (graph >= count), f"is none of the {count} graphs in {labels.name}"),
        (np.diff(graph, prepend=0) < 0, "follows a higher one: nodes must be listed by graph"),
    ):
        if wrong.any():
            node = int(wrong.argmax())
            raise ValueError(f"{path}, line {node + 1}: graph {graph[node] + 1} {what}")
    sizes = np.bincount(graph, minlength=count)
    if not sizes.all():
        raise ValueError(f"{path}: graph {int((sizes == 0).argmax()) + 1} of {count} has no nodes")
    return np.concatenate([[0], sizes.cumsum()]), graph


def _edges(
    path: Path, graph: NDArray[np.int64], node_ptr: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Edges by the node numbers of their graphs, each once, and where those of each graph lie."""
    edges = _read(path, np.int64, columns=2) - 1
    nodes = len(graph)
    outside = ((edges < 0) | (edges >= nodes)).any(axis=1)
    if outside.any():
        line = int(outside.argmax())
        raise ValueError(
            f"{path}, line {line + 1}: nodes are numbered from 1 to {nodes}, "
            f"got an edge from {edges[line, 0] + 1} to {edges[line, 1] + 1}"
        )
    source, target = edges.T
    crossing = graph[source] != graph[target]
    if crossing.any():
        line = int(crossing.argmax())
        raise ValueError(
            f"{path}, line {line + 1}: an edge must stay within one graph, got one from node "
            f"{source[line] + 1} of graph {graph[source[line]] + 1} to node {target[line] + 1} "
            f"of graph {graph[target[line]] + 1}"
        )
    keys = np.sort(source * nodes + target)  # much faster than np.unique, which hashes
    keys = keys[np.diff(keys, prepend=-1) > 0]
    source, target = np.divmod(keys, nodes)
    proper = source != target
    source, target = source[proper], target[proper]
    counts = np.bincount(graph[source], minlength=len(node_ptr) - 1)
    local = np.stack([source, target]) - node_ptr[graph[source]]
    return torch.from_numpy(local), torch.from_numpy(np.concatenate([[0], counts.cumsum()]))


def _column(path: Path) -> NDArray[np.int64]:
    column: NDArray[np.int64] = _read(path, np.int64, columns=1)[:, 0]
    return column


def _rows(path: Path, kind: type, nodes: int) -> NDArray[Any]:
    rows = _read(path, kind)
    if len(rows) != nodes:
        raise ValueError(f"{path} must have a line for each of {nodes} nodes, got {len(rows)}")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(f"{path}, line {int(finite.argmin()) + 1}: numbers must be finite")
    return rows


def _read(path: Path, kind: type, columns: int | None = None) -> NDArray[Any]:
    """A table of numbers: a row for each line, with commas between the columns."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    content = path.read_bytes().rstrip()
    if not content:
        raise ValueError(f"{path} is empty")
    table: NDArray[Any]
    try:
        table = np.loadtxt(path, dtype=kind, delimiter=",", comments=None, ndmin=2)
    except (ValueError, OverflowError):
        table = np.empty((0, 0))
    # NumPy skips empty lines, which would shift all that follow.
    if len(table) != content.count(b"\n") + 1 or columns not in (None, table.shape[1]):
        raise ValueError(_complaint(path, content, kind, columns))
    return table


def _complaint(path: Path, content: bytes, kind: type, columns: int | None) -> str:
    """What is wrong with the first line that cannot be read."""
    lines = content.decode(errors="replace").split("\n")
    expected = columns or len(lines[0].split(","))
    for number, line in enumerate(lines, start=1):
        cells = line.split(",")
        try:
            [kind(cell) for cell in cells]
        except (ValueError, OverflowError):
            wanted = "integers" if kind is np.int64 else "numbers"
            return f"{path}, line {number}: {wanted} must stand here, got {line[:60]!r}"
        if len(cells) != expected:
            return f"{path}, line {number}: there must be {expected} columns, got {len(cells)}"
    return f"{path} cannot be read as a table of numbers"
