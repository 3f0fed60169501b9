"""Graphs as JSON lines: ``{"edges": [[0, 1], [1, 2]], "x": [[0.5], [1.0], [0.0]]}``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.reading import checked_graphs

__all__ = ["json_graphs"]


def json_graphs(path: str | Path) -> GraphCollection:
    """The graphs of a file with one in each line; empty lines are skipped.

    ``edges`` are pairs of nodes, counted from 0, without a direction: each counts both ways, once.
    ``x`` has a row of features for each node. Where no graph has it, features are degree profiles,
    and ``nodes`` may tell their number (else the last one that has an edge is the last).

    Raises:
        ValueError: Names the file and the line, and what is wrong with it.
    """
    path = Path(path)
    edges: list[Tensor] = []
    features: list[Tensor | None] = []
    sizes: list[int] = []
    with path.open(encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    graph = _graph(line, f"{path}, line {number}")
                    edges.append(graph[0])
                    features.append(graph[1])
                    sizes.append(graph[2])
                    _check_like_first(features, f"{path}, line {number}")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    if not edges:
        raise ValueError(f"{path} holds no graph: give one in each line")
    x = torch.cat([x for x in features if x is not None]) if features[0] is not None else None
    try:
        return checked_graphs(
            x,
            torch.cat(edges, dim=1),
            torch.tensor([0, *sizes]).cumsum(0),
            torch.tensor([0, *(pairs.shape[1] for pairs in edges)]).cumsum(0),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error} (graphs are counted from 0)") from error


def _graph(line: str, where: str) -> tuple[Tensor, Tensor | None, int]:
    """(2, edges) both ways, (nodes, features) or None, and the number of nodes."""
    try:
        graph = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(graph, dict) or "edges" not in graph:
        raise ValueError(f'{where} must be {{"edges": [[0, 1], …], "x": [[…], …]}}')
    pairs = _table(graph["edges"], torch.int64, where, "edges must be pairs of node numbers")
    if len(pairs) == 0:
        pairs = pairs.reshape(0, 2)
    if pairs.shape[1] != 2:
        raise ValueError(f"{where}: edges must be pairs of node numbers, got {pairs.shape[1]}")
    if len(pairs) and int(pairs.min()) < 0:
        raise ValueError(f"{where}: nodes are counted from 0, got {int(pairs.min())}")
    x: Tensor | None = None
    nodes = int(pairs.max()) + 1 if len(pairs) else 0
    if graph.get("x") is not None:
        x = _table(graph["x"], torch.float32, where, "x must be a row of numbers for each node")
        nodes = len(x)
    elif "nodes" in graph:
        if not isinstance(graph["nodes"], int) or isinstance(graph["nodes"], bool):
            raise ValueError(f"{where}: nodes must be a number, got {graph['nodes']!r}")
        nodes = graph["nodes"]
    if nodes < 1:
        raise ValueError(f"{where}: a graph needs at least one node")
    if len(pairs) and int(pairs.max()) >= nodes:
        raise ValueError(f"{where}: node {int(pairs.max())} has an edge, but there are {nodes}")
    proper = pairs[pairs[:, 0] != pairs[:, 1]]
    both = torch.cat([proper, proper.flip(1)])
    return torch.unique(both, dim=0).T if len(both) else both.T, x, nodes


def _table(value: Any, kind: torch.dtype, where: str, rule: str) -> Tensor:
    try:
        table = torch.tensor(value, dtype=torch.float64 if kind.is_floating_point else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: {rule}") from error
    if table.numel() == 0 and not kind.is_floating_point:
        return table.to(kind)
    if table.dim() != 2 or (not kind.is_floating_point and table.is_floating_point()):
        raise ValueError(f"{where}: {rule}, got shape {tuple(table.shape)}")
    return table.to(kind)


def _check_like_first(features: list[Tensor | None], where: str) -> None:
    first, last = features[0], features[-1]
    if (first is None) != (last is None):
        raise ValueError(f"{where}: either all graphs have x or none")
    if first is not None and last is not None and first.shape[1] != last.shape[1]:
        raise ValueError(
            f"{where}: nodes must have {first.shape[1]} features like the first, "
            f"got {last.shape[1]}"
        )
