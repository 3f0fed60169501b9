"""What an update is about: the old items at hand, the new ones, and how many were ever seen."""

from __future__ import annotations

from dataclasses import dataclass

from incontrast.domains.base import Collection

__all__ = ["Increment"]


@dataclass(frozen=True)
class Increment:
    """Old and new data of one update.

    Args:
        old: The old items at hand, a uniform sample of X (or all of it); None before the first fit.
        new: ΔX.
        seen: N, the items that X stands for, at least as many as ``old`` holds.
    """

    old: Collection | None
    new: Collection
    seen: int

    def __post_init__(self) -> None:
        if self.kept > self.seen:
            raise ValueError(
                f"seen must count every old item, got {self.seen} seen but {self.kept} at hand"
            )

    @property
    def kept(self) -> int:
        """Old items at hand."""
        return 0 if self.old is None else len(self.old)

    @property
    def complete(self) -> bool:
        """Whether every old item is at hand."""
        return self.kept == self.seen

    @property
    def growth_ratio(self) -> float:
        """α = ΔN / (N + ΔN), from items *seen*."""
        return len(self.new) / (self.seen + len(self.new))
