"""Which items to keep.

A policy gives every item a key when it arrives; memory keeps the items with the smallest keys. A
random key makes a reservoir (a uniform sample of everything seen), the negated time of arrival a
queue. Nothing else distinguishes the policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["KeepAll", "Policy", "Queue", "Reservoir"]


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """Limits of a memory.

    Args:
        items: Items at most; None for no limit.
        bytes: Bytes at most; None for no limit.
    """

    items: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("items", "bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"a memory's {name} must be at least 1, got {limit}")

    @abstractmethod
    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        """(n,) float64 keys for items with these ids, which count arrivals."""

    def can_hold(self, sizes: Tensor) -> Tensor:
        """(n,) whether each item of these sizes in bytes would fit by itself."""
        if self.bytes is None:
            return torch.ones(len(sizes), dtype=torch.bool)
        return sizes <= self.bytes

    def fits(self, sizes: Tensor) -> int:
        """How many of the items with these (n,) sizes in bytes fit, taken from the front."""
        count = len(sizes)
        if self.items is not None:
            count = min(count, self.items)
        if self.bytes is not None:
            count = min(count, int((sizes.cumsum(0) <= self.bytes).sum()))
        return count


@dataclass(frozen=True, kw_only=True)
class KeepAll(Policy):
    """Keep every item."""

    def __post_init__(self) -> None:
        if self.items is not None or self.bytes is not None:
            raise ValueError("KeepAll has no limit: use Reservoir or Queue for a limited memory")

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return torch.zeros(len(ids), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Reservoir(Policy):
    """Keep a uniform random sample of everything seen."""

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return torch.rand(len(ids), dtype=torch.float64, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Queue(Policy):
    """Keep the most recent items: what an update then calls X is the recent past."""

    def keys(self, ids: Tensor, generator: Generator) -> Tensor:
        return -ids.to(torch.float64)
