"""How much new items count in an update: more than their share at first, their share at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Emphasis:
    """The weight of new items in a step's loss; old ones have the rest.

    Old items begin at their optimum, new ones do not. With weight α the gradient of a few new
    items drowns in the noise of the old ones'. The weight comes down to α before the run ends: the
    last steps minimise exactly retraining's objective. Averaged weights lag behind: in a run of a
    few hundred steps most of their weight is on steps of before.

    Args:
        start: The weight that new items begin with, where it is more than α.
        until: The part of the run in which it falls to α, linearly.

    >>> emphasis = Emphasis(start=0.5, until=0.6)
    >>> tuple(round(emphasis.weight(0.05, done), 3) for done in (0.0, 0.3, 0.6, 1.0))
    (0.5, 0.275, 0.05, 0.05)
    >>> emphasis.weight(0.7, 0.0)
    0.7
    """

    start: float = 0.5
    until: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.start < 1.0:
            raise ValueError(
                f"start must be in (0, 1), got {self.start}: it is the weight of new items"
            )
        if not 0.0 < self.until <= 1.0:
            raise ValueError(f"until must be in (0, 1], got {self.until}: it is a part of the run")

    def weight(self, growth_ratio: float, done: float) -> float:
        """The weight of new items at a growth ratio α when this part of the run is done."""
        left = max(1.0 - done / self.until, 0.0)
        return growth_ratio + left * max(self.start - growth_ratio, 0.0)
