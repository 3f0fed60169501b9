"""Feature vectors: an MLP encoder and two simple corruptions; torch only."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset

from incontrast.bounds import check_number, check_whole, given
from incontrast.domains.arguments import ArgumentDomain, halves
from incontrast.domains.base import (
    Part,
    TensorCollection,
    check_distinct,
    constant,
    dataset_items,
    tensor_of,
)
from incontrast.randomness import generator

STEPS = 8  # statistics are rounded to so many steps per deviation, and per doubling of it


@dataclass(frozen=True)
class Vectors(ArgumentDomain):
    """Rows of ``dim`` numbers.

    Features are standardised by the mean and deviation of the first data. A view of an item drops
    each feature with probability ``drop`` (it becomes the mean) and adds Gaussian noise.

    Args:
        dim: Features per item.
        hidden: Units in each of the MLP's two hidden layers.
        out: Dimensions of an embedding.
        drop: Probability that a feature is dropped.
        noise: Size of the noise, in standard deviations of the feature.
        encoder: A module or a function that makes one, instead of the MLP: (n, dim) in, (n, d) out.
        views: Makes one view of (n, dim) standardised rows, instead of the above: a function of
            rows and a ``torch.Generator``, or a ``torch.nn.Module``.
        mean: Mean of each feature; None for that of the first data.
        std: Standard deviation of each feature; None for that of the first data.
        limit: Standard deviations beyond which a feature counts by its logarithm; None for no
            limit. Without it, a feature that is nearly constant could be off by thousands of its
            tiny deviations in a rare item.
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
        text = "rows minus mean, divided by std"
        if self.mean is None or self.std is None:
            text += ", of the first data where they are not given"
        return text if self.limit is None else f"{text}, beyond {self.limit:g} by their logarithm"

    def fit_statistics(self, collection: Any) -> Vectors:
        if self.mean is not None and self.std is not None:
            return self
        check_distinct(collection.data)
        deviation, mean = torch.std_mean(collection.data, dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        # Rounded, so that a forgotten item cannot be computed from all the others.
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
            rows = items if isinstance(items, Tensor) else _numbers(items)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"vectors must form a (n, {self.dim}) table of numbers, "
                f"got {type(items).__name__}: {error}"
            ) from error
        if rows.shape[:1] == (0,):
            raise ValueError("there are no items: give at least one vector")
        if rows.dim() != 2 or rows.shape[1] != self.dim:
            raise ValueError(
                f"vectors must have shape (n, {self.dim}), got {tuple(rows.shape)}: "
                "give one row of features per item"
            )
        # A copy: a buffer that is filled again later must not change the items in memory.
        rows = rows.detach().to("cpu", torch.float32, copy=True)
        finite = torch.isfinite(rows).all(dim=1)
        if not finite.all():
            raise ValueError(
                f"vectors must be finite, got NaN or infinity in item {finite.int().argmin()}: "
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

    def own_views(self, batch: Tensor, generator: Generator, part: Part | None = None) -> Tensor:
        rows = self.prepare(batch)
        total, own = (len(rows), slice(None)) if part is None else (part.total, part.range)
        size, where = (2, total, self.dim), rows.device
        # In place: with many features, most of the time goes into allocating memory.
        kept = torch.rand(size, generator=generator, device=where)[:, own].ge_(self.drop)
        noise = torch.randn(size, generator=generator, device=where)[:, own].to(rows.dtype)
        return noise.mul_(self.noise).addcmul_(rows, kept.to(rows.dtype)).flatten(0, 1)

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Tensor, Tensor]:
        if not self.usual_views:
            return super().views_of_part(part, generator)
        return halves(self.own_views(part.batch, generator, part))

    def own_encoder(self) -> nn.Module:
        """An MLP with two hidden layers and BatchNorm."""
        layers: list[nn.Module] = []
        for width in (self.dim, self.hidden):
            linear = nn.Linear(width, self.hidden, bias=False)
            layers += [linear, nn.BatchNorm1d(self.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, self.out))


def _numbers(items: Any) -> Tensor:
    array = np.asarray(items)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"their type is {array.dtype}")
    return tensor_of(array)
