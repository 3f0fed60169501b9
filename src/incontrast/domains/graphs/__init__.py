"""Graphs: from PyG data sets and pairs of arrays to views and encoders."""

from incontrast.domains.graphs.domain import Graphs

__all__ = ["Graphs"]
