"""Graphs as JSON lines: ``{"edges": [[0, 1], [1, 2]], "x": [[0.5], [1.0], [0.0]]}``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incontrast.domains.graphs.collection import GraphCollection
from incontrast.domains.graphs.reading import read_graphs

LONGEST = 64 * 2**20  # characters of a line, which take many times as much memory once read


def json_graphs(path: str | Path) -> GraphCollection:
    """The graphs of a file with one in each line; empty lines are skipped.

    ``edges`` are pairs of nodes, counted from 0, without a direction: each counts both ways, once.
    ``x`` has a row of features for each node. Where no graph has it, features are degree profiles,
    and ``nodes`` may tell their number (else the last one that has an edge is the last).

    Raises:
        ValueError: Names the file and the line, and what is wrong with it.
    """
    path = Path(path)
    graphs: list[Any] = []
    lines: list[str] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST), ""), start=1):
                if len(line) == LONGEST:
                    raise ValueError(
                        f"{path}, line {number} has more than {LONGEST // 2**20} MiB, the most "
                        "that a graph may have: give larger ones as a TU folder"
                    )
                if line.strip():
                    lines.append(f"{path}, line {number}")
                    graphs.append(_graph(line, lines[-1]))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from error
    if not graphs:
        raise ValueError(f"{path} holds no graph: give one in each line")
    return read_graphs(graphs, called=lines.__getitem__)


def _graph(line: str, where: str) -> tuple[Tensor, Tensor | None, int | None]:
    """(2, edges) both ways, (nodes, features) or None, and the number of nodes if it is told."""
    try:
        graph = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(graph, dict) or "edges" not in graph:
        raise ValueError(f'{where} must be {{"edges": [[0, 1], …], "x": [[…], …]}}')
    rule = "edges must be pairs of node numbers"
    pairs = _tensor(graph["edges"], None, where, rule)
    pairs = pairs.long().reshape(0, 2) if pairs.numel() == 0 else pairs
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"{where}: {rule}, got shape {tuple(pairs.shape)} of {pairs.dtype}")
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    both = torch.unique(torch.cat([pairs, pairs.flip(1)]), dim=0) if len(pairs) else pairs
    x = None
    if graph.get("x") is not None:
        x = _tensor(graph["x"], torch.float64, where, "x must be a row of numbers for each node")
    nodes = graph.get("nodes")
    if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1):
        raise ValueError(f"{where}: nodes must be a number of at least 1, got {nodes!r:.40}")
    return both.T, x, nodes


def _tensor(value: Any, dtype: torch.dtype | None, where: str, rule: str) -> Tensor:
    try:
        return torch.tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{where}: {rule}") from error
