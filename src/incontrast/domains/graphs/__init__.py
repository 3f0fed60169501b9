"""Graphs: collections, views and an encoder."""

from incontrast.domains.graphs.domain import Graphs

__all__ = ["Graphs"]
