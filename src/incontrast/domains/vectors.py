"""Feature vectors: an MLP encoder and two simple corruptions; torch only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset

from incontrast.bounds import check_number, check_whole, given
from incontrast.domains.arguments import ArgumentDomain
from incontrast.domains.base import (
    Part,
    TensorCollection,
    check_distinct,
    constant,
    dataset_items,
    tensor_of,
)
from incontrast.randomness import generator

STEPS = 8  # to a standard deviation, and to a factor of two of it


@dataclass(frozen=True)
class Vectors(ArgumentDomain):
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
        encoder: A module or a function that makes one, instead of the MLP: (n, dim) in, (n, d) out.
        views: Makes one view of (n, dim) standardised rows, instead of the above: a function of
            rows and a ``torch.Generator``, or a ``torch.nn.Module``.
        mean: Mean of each feature; None until the first data tells.
        std: Standard deviation of each feature; None until the first data tells.
        limit: Standard deviations from which on a feature counts by its logarithm; None for never.
            One that hardly ever varies has a tiny deviation, and the rare item in which it does
            would be off by thousands.
    """

    dim: int
    _: KW_ONLY
    hidden: int = 128
    out: int = 64
    drop: float = 0.4
    noise: float = 0.1
    encoder: Any = field(default_factory=NoneType)
    views: Any = field(default_factory=NoneType)
    mean: tuple[float, ...] | None = field(default=None, repr=False)
    std: tuple[float, ...] | None = field(default=None, repr=False)
    limit: float | None = 5.0

    kind = "vectors"

    def __post_init__(self) -> None:
        check_whole(1, dim=self.dim, hidden=self.hidden, out=self.out)
        check_number("[0, 1)", "with 1 no feature would be left", drop=self.drop)
        check_number("[0, inf)", noise=self.noise)
        check_number("(0, inf)", **given(limit=self.limit))
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != self.dim:
                raise ValueError(f"{name} must have {self.dim} numbers, got {len(numbers)}")
        super().__post_init__()

    @property
    def normalisation(self) -> str:
        """What is done to rows before the encoder sees them."""
        told = "rows minus mean, divided by std"
        if self.mean is None or self.std is None:
            told += ", of the first data where they are not given"
        return told if self.limit is None else f"{told}, beyond {self.limit:g} by their logarithm"

    def fit_statistics(self, collection: Any) -> Vectors:
        if self.mean is not None and self.std is not None:
            return self
        check_distinct(collection.data)
        deviation, mean = torch.std_mean(collection.data, dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        # Rounded, so that whoever has all other items cannot compute one that was forgotten.
        deviation = torch.exp2((STEPS * deviation.log2()).round() / STEPS)
        mean = (STEPS * mean / deviation).round() * deviation / STEPS
        return replace(
            self,
            mean=tuple(mean.tolist()) if self.mean is None else self.mean,
            std=tuple(deviation.tolist()) if self.std is None else self.std,
        )

    def collect(self, items: Any) -> TensorCollection:
        """Take a (n, dim) array or tensor, a list of rows, or a torch Dataset of rows or of tuples
        that begin with one; all numbers must be finite."""
        if isinstance(items, TensorCollection):
            items = items.data
        elif isinstance(items, Dataset):
            items = [np.asarray(row) for row in dataset_items(items)]
        try:
            array = items if isinstance(items, Tensor) else np.asarray(items)
            if isinstance(array, np.ndarray) and array.dtype.kind not in "fiub":
                raise ValueError(f"their type is {array.dtype}")
            rows = array if isinstance(array, Tensor) else tensor_of(array)
        except (TypeError, ValueError, RuntimeError) as error:
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

    def examples(self) -> TensorCollection | None:
        if self.mean is None or self.std is None:
            return None
        rows = torch.randn(4, self.dim, generator=generator(0, "examples"))
        return TensorCollection(rows * torch.tensor(self.std) + torch.tensor(self.mean))

    def prepare(self, batch: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            raise RuntimeError(
                "mean and std are not known yet: fit_statistics() the domain to data first"
            )
        mean, std = constant((self.mean, self.std), batch.dtype, batch.device)
        scaled: Tensor = (batch - mean).div_(std)
        if self.limit is None:
            return scaled
        inside = scaled.clamp(-self.limit, self.limit)
        beyond = scaled.abs().sub_(self.limit).clamp_(min=0.0).log1p_()
        return inside.addcmul_(scaled.sign_(), beyond)

    def sides(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.prepare(batch)
        return rows, rows

    def own_views(self, recipe: Any) -> Callable[..., Any] | None:
        return self._two_views if recipe is None else None

    def _two_views(self, batch: Tensor, generator: Generator, part: Part | None = None) -> Tensor:
        # (2, n, dim) changed in place: with many features, memory is what takes time.
        rows = self.prepare(batch)
        total, mine = (len(rows), slice(None)) if part is None else (part.total, part.range)
        size, where = (2, total, self.dim), rows.device
        kept = torch.rand(size, generator=generator, device=where)[:, mine].ge_(self.drop)
        noise = torch.randn(size, generator=generator, device=where)[:, mine].to(rows.dtype)
        return noise.mul_(self.noise).addcmul_(rows, kept.to(rows.dtype)).flatten(0, 1)

    def own_encoder(self) -> nn.Module:
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
