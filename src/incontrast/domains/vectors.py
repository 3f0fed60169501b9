"""Feature vectors: an MLP encoder and two simple corruptions; torch only."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Domain, Part, TensorCollection

__all__ = ["Vectors"]


LIMIT = 5.0  # standard deviations from which on a feature counts by its logarithm: one that hardly
# ever varies has a tiny deviation, and the rare item in which it does would be off by thousands


@dataclass(frozen=True)
class Vectors(Domain):
    """Rows of ``dim`` numbers.

    Features are standardised by the mean and deviation of the first data. A view of an item drops
    each feature with probability ``drop`` (it becomes the mean) and adds Gaussian noise. What a
    view is depends on the item alone, never on the rest of its batch.

    Args:
        dim: Features per item.
        hidden: Units in each of the MLP's two hidden layers.
        out: Dimensions of an embedding.
        drop: Probability that a feature is dropped.
        noise: Size of the noise, in standard deviations of the feature.
        mean: Mean of each feature; None until the first data tells.
        std: Standard deviation of each feature; None until the first data tells.
    """

    dim: int
    _: KW_ONLY
    hidden: int = 128
    out: int = 64
    drop: float = 0.4
    noise: float = 0.1
    mean: tuple[float, ...] | None = field(default=None, repr=False)
    std: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("dim", "hidden", "out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.drop < 1.0:
            raise ValueError(f"drop must be a probability below 1, got {self.drop}")
        if self.noise < 0.0:
            raise ValueError(f"noise must not be negative, got {self.noise}")
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != self.dim:
                raise ValueError(f"{name} must have {self.dim} numbers, got {len(numbers)}")

    def fit_statistics(self, collection: Any) -> Vectors:
        if self.mean is not None and self.std is not None:
            return self
        deviation, mean = torch.std_mean(collection.data, dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        return replace(
            self,
            mean=tuple(mean.tolist()) if self.mean is None else self.mean,
            std=tuple(deviation.tolist()) if self.std is None else self.std,
        )

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
        # A copy: a buffer that its owner fills again next week must not change what is remembered.
        rows = rows.detach().to("cpu", torch.float32, copy=True)
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
            raise ValueError(
                f"vectors must be finite, got NaN or infinity in item {bad}: "
                "drop such rows or fill the gaps first"
            )
        return TensorCollection(rows)

    def prepare(self, batch: Tensor) -> Tensor:
        """Standardised features."""
        if self.mean is None or self.std is None:
            raise RuntimeError(
                "mean and std are not known yet: fit_statistics() the domain to data first"
            )
        mean, std = (
            torch.tensor(numbers, dtype=batch.dtype, device=batch.device)
            for numbers in (self.mean, self.std)
        )
        scaled = (batch - mean) / std
        beyond = (scaled.abs() - LIMIT).clamp(min=0.0)
        return scaled.clamp(-LIMIT, LIMIT) + scaled.sign() * beyond.log1p()

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return self._views(batch, generator, len(batch), slice(None))

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Tensor, Tensor]:
        return self._views(part.batch, generator, part.total, part.range)

    def _views(
        self, batch: Tensor, generator: Generator, total: int, mine: slice
    ) -> tuple[Tensor, Tensor]:
        """Views of ``batch``, which is this slice of a whole batch of ``total`` items."""
        rows = self.prepare(batch)
        size, where = (2, total, self.dim), generator.device
        chance = torch.rand(size, generator=generator, device=where)[:, mine].to(rows)
        noise = torch.randn(size, generator=generator, device=where)[:, mine].to(rows)
        first, second = rows * (chance >= self.drop) + self.noise * noise
        return first, second

    def encoder(self) -> nn.Module:
        """An MLP with two hidden layers and BatchNorm."""
        return nn.Sequential(
            nn.Linear(self.dim, self.hidden, bias=False),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden, bias=False),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.out),
        )
