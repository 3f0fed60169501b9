"""What a reader gives: items, and their labels where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from incontrast.streams import pick


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items with their labels. Learning needs none; they are for evaluation.

    Args:
        items: What ``Domain.collect`` accepts: an array, a tensor, a collection, a list of paths.
        labels: (n,) int64, or None.
        classes: Names of the classes; ``classes[label]`` is the name of a label.

    >>> data = Labelled(np.arange(6).reshape(3, 2), np.array([0, 1, 1]), ("cat", "dog"))
    >>> len(data), data.select([2, 0]).labels
    (3, array([1, 0]))
    """

    items: Any
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.items):
            raise ValueError(
                f"every item needs one label, got {len(self.items)} items and "
                f"{len(self.labels)} labels"
            )

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: ArrayLike) -> Labelled:
        """These items and their labels, in this order; a mask of bools works too."""
        chosen = np.asarray(indices)
        if chosen.dtype == np.bool_:
            chosen = chosen.nonzero()[0]
        chosen = chosen.astype(np.int64)
        items = pick(self.items, torch.from_numpy(chosen))
        labels = None if self.labels is None else self.labels[chosen]
        return Labelled(items, labels, self.classes)
