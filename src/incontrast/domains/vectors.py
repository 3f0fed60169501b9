"""Feature vectors: an MLP encoder and two simple corruptions; torch only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Domain, TensorCollection

__all__ = ["Vectors"]


@dataclass(frozen=True)
class Vectors(Domain):
    """Rows of ``dim`` numbers.

    A view replaces each feature, with probability ``corruption``, by the same feature of another
    item of the batch (SCARF, Bahri et al. 2022), and adds Gaussian noise of ``noise`` standard
    deviations of that feature within the batch. Both keep the scale of every feature, so the rows
    need not be standardised first.

    Args:
        dim: Features per item.
        hidden: Units in each of the MLP's two hidden layers.
        out: Dimensions of an embedding.
        corruption: Probability that a feature is replaced.
        noise: Relative size of the Gaussian noise.
    """

    dim: int
    _: KW_ONLY
    hidden: int = 128
    out: int = 64
    corruption: float = 0.2
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("dim", "hidden", "out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.corruption < 1.0:
            raise ValueError(f"corruption must be a probability below 1, got {self.corruption}")
        if self.noise < 0.0:
            raise ValueError(f"noise must not be negative, got {self.noise}")

    def collect(self, items: Any) -> TensorCollection:
        """Take a (n, dim) array or tensor, or a list of rows; all numbers must be finite."""
        if isinstance(items, TensorCollection):
            rows = items.data
        else:
            try:
                rows = torch.as_tensor(np.asarray(items) if isinstance(items, list) else items)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"vectors must form a (n, {self.dim}) table of numbers, "
                    f"got {type(items).__name__}: {error}"
                ) from error
        if len(rows) == 0:
            raise ValueError("there are no items: give at least one vector")
        if rows.dim() != 2 or rows.shape[1] != self.dim:
            raise ValueError(
                f"vectors must have shape (n, {self.dim}), got {tuple(rows.shape)}: "
                "give one row of features per item"
            )
        rows = rows.to(torch.float32)
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
            raise ValueError(
                f"vectors must be finite, got NaN or infinity in item {bad}: "
                "drop such rows or fill the gaps first"
            )
        return TensorCollection(rows)

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Two corrupted copies of every row."""
        first, second = self._corrupt(batch.repeat(2, 1), generator).chunk(2)
        return first, second

    def _corrupt(self, rows: Tensor, generator: Generator) -> Tensor:
        def draw(kind: Any) -> Tensor:
            drawn: Tensor = kind(rows.shape, generator=generator, device=generator.device)
            return drawn.to(rows.device)

        count = rows.shape[0]
        # The feature of a random other row: an offset of 1..count-1, so never the row itself.
        offset = 1 + (draw(torch.rand) * max(count - 1, 1)).long()
        donor = (torch.arange(count, device=rows.device)[:, None] + offset) % count
        mixed = torch.where(draw(torch.rand) < self.corruption, rows.gather(0, donor), rows)
        if self.noise and count > 1:
            mixed = mixed + draw(torch.randn) * (self.noise * rows.std(dim=0))
        return mixed

    def encoder(self) -> nn.Module:
        """Two hidden layers with BatchNorm; the first BatchNorm standardises the input."""
        return nn.Sequential(
            nn.BatchNorm1d(self.dim),
            nn.Linear(self.dim, self.hidden, bias=False),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden, bias=False),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.out),
        )

    def unpack(self, blobs: Sequence[bytes]) -> TensorCollection:
        for blob in blobs:
            if len(blob) != 4 * self.dim:
                raise ValueError(
                    f"a packed vector must have {4 * self.dim} bytes, got {len(blob)}: "
                    "it is damaged or has another dim"
                )
        rows = np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(-1, self.dim)
        return TensorCollection(torch.from_numpy(rows.copy()))
