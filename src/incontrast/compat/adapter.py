"""Maps from one embedding space into another, all of them fitted in closed form.

Versions of an encoder are kin: an update moves embeddings by little. So every map is a correction
of something simple, and a penalty (ridge) takes it back to that where there are few pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Kind = Literal["none", "orthogonal", "low-rank", "affine", "residual"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # simplest first

PENALTIES = (1e-3, 1e-2, 1e-1)  # shares of the mean variance of a feature
RANKS = (4, 16, 32, 64)
UNITS = 1024  # of the residual network, at most
MOST_FITTED = 4000  # items on which it is fitted
GROUP = 3  # items in whose middle a unit is
UNIT_PENALTIES = (1e-2, 1e-1)  # of that network
ROWS = 1024  # vectors that are mapped at a time: as many as stay in a core's cache
NARROW = 128  # dimensions
SMALLEST = 1e-12  # length of a vector
SMALLEST_UNIT = 1e-9  # penalty of hidden units, lest items that are alike make them singular


@dataclass(frozen=True, eq=False)
class Adapter:
    """A map of embeddings: (n, d) in, (n, e) unit vectors out, to be compared by cosine.

    Args:
        kind: Which map. ``none`` leaves directions as they are; ``orthogonal`` turns them, in a
            wide space perhaps only in the plane where most of the turn is; ``low-rank`` adds a
            correction of low rank; ``affine`` is any matrix and an offset; ``residual`` adds to a
            turn a network, each hidden unit of which is the nearer to 1 the nearer a vector is to
            the middle of three items it was fitted on.
        tensors: What it consists of: ``weight`` (d, e), ``bias`` (e,), ``down`` (d, r) and ``up``
            (r, e), ``centres`` (d, u) and ``out`` (u, e).
    """

    kind: Kind
    tensors: dict[str, Tensor]

    @property
    def cost(self) -> int:
        """Multiplications for a vector."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def __call__(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """Map vectors.

        Args:
            vectors: (n, d) on the CPU, of any length but 0.
            out: (n, e) where to write them. Memory that is used again spares the time in which the
                system provides new pages, which is more than that of a map of low rank.
        """
        rows = vectors.detach() if vectors.requires_grad else vectors
        if rows.dtype is not torch.float32:
            rows = rows.float()
        if out is None and rows.shape[0] == 1:
            return torch.from_numpy(self._one(rows.numpy()[0])[None])
        if out is None:
            last = next((self.tensors[name] for name in LAST if name in self.tensors), rows)
            out = torch.empty(len(rows), last.shape[1])
        for part, mapped in zip(torch.split(rows, ROWS), torch.split(out, ROWS), strict=True):
            self._map(part, mapped)
        return out

    def _map(self, rows: Tensor, out: Tensor) -> None:
        """Offsets are as long as the vector, instead of a vector of length 1: one pass less."""
        parts = self.tensors
        lengths = _lengths(rows, SMALLEST) if "bias" in parts else None
        if "centres" in parts:
            rows = rows / _lengths(rows, SMALLEST)
        if "weight" in parts:
            torch.mm(rows, parts["weight"], out=out)
        elif "up" not in parts:
            out.copy_(rows)
        elif rows.shape == out.shape:
            torch.addmm(rows, rows @ parts["down"], parts["up"], out=out)
        else:
            torch.mm(rows @ parts["down"], parts["up"], out=out)
        if "centres" in parts:
            out.addmm_(_units(rows, parts["centres"]), parts["out"])
        if lengths is not None:
            out.addcmul_(lengths, parts["bias"])
        out.div_(_lengths(out, SMALLEST**2))

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """As NumPy has them; in a narrow space one matrix is quicker than two of low rank."""
        parts = dict(self.tensors)
        if "up" in parts and (width := len(parts["down"])) <= NARROW:
            weight = parts.pop("down") @ parts.pop("up")
            same = weight.shape == (width, width)
            parts["weight"] = weight + torch.eye(width) if same else weight
        return {name: tensor.numpy() for name, tensor in parts.items()}

    def _one(self, row: NDArray[Any]) -> NDArray[Any]:
        """As ``_map``: a single vector would wait for PyTorch's calls rather than for numbers."""
        parts = self._arrays
        mapped: NDArray[Any]
        if "centres" in parts:
            row = row / max(math.sqrt(row.dot(row)), SMALLEST)
        if "weight" in parts:
            mapped = row.dot(parts["weight"])
        elif "up" in parts:
            mapped = row.dot(parts["down"]).dot(parts["up"])
            if mapped.shape == row.shape:
                mapped += row
        else:
            mapped = row.copy()
        if "bias" in parts:
            mapped += max(math.sqrt(row.dot(row)), SMALLEST) * parts["bias"]
        if "centres" in parts:
            mapped += np.exp(row.dot(parts["centres"]) - 1.0).dot(parts["out"])
        mapped /= max(math.sqrt(mapped.dot(mapped)), SMALLEST**2)
        return mapped


LAST = ("weight", "up")  # tensors whose columns are those of the result
PARTS = {"weight", "bias", "down", "up", "centres", "out"}


def _units(rows: Tensor, centres: Tensor) -> Tensor:
    """(n, u) hidden units of (n, d) unit vectors, given (d, u) others."""
    return (rows @ centres).sub_(1.0).exp_()


def _centres(rows: Tensor, draws: Generator) -> Tensor:
    """(d, u) unit vectors amid rows, each between one of them and those nearest to it.

    So what is saved with a version is no item's embedding.
    """
    rows = torch.unique(rows, dim=0)  # of items that come twice, one
    some = rows[torch.randperm(len(rows), generator=draws)[:UNITS]]
    nearest = (some @ rows.T).topk(min(GROUP, len(rows)), dim=1).indices
    centres = rows[nearest].mean(dim=1)
    return (centres / _lengths(centres, SMALLEST)).T


def _lengths(rows: Tensor, smallest: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return lengths.clamp_(min=smallest)


class Pairs:
    """Items that two versions have embedded, and what every kind of map needs of them.

    Args:
        source: (n, d) unit vectors.
        target: (n, e) unit vectors of the same items.
    """

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.source, self.target = source, target
        self.centre, self.offset = source.mean(0), target.mean(0)

    @cached_property
    def square(self) -> Tensor:
        """(d, d) products of the source's columns."""
        return self.source.T @ self.source

    @cached_property
    def cross(self) -> Tensor:
        """(d, e) their products with the target's."""
        return self.source.T @ self.target

    @cached_property
    def rotation(self) -> Tensor:
        """(d, e) orthonormal rows or columns that bring source nearest to target (Procrustes)."""
        return _nearest_rotation(self.cross)

    @cached_property
    def covariances(self) -> tuple[Tensor, Tensor]:
        """(d, d) and (d, e) in double, centred first: products that are alike lose all digits."""
        centred = (self.source - self.centre).double()
        return centred.T @ centred, centred.T @ (self.target - self.offset).double()

    def corrections(
        self, prior: Tensor | None, penalties: tuple[float, ...]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Ridge regression of what a matrix leaves: (d, e) weights and (e,) offsets."""
        centre, offset, (square, cross) = self.centre, self.offset, self.covariances
        if prior is not None:
            cross, offset = cross - square @ prior.double(), offset - centre @ prior
        for penalty in penalties:
            floor = penalty * square.diagonal().mean() + 1e-9
            lower = torch.linalg.cholesky(square + floor * torch.eye(len(square)).double())
            weight = torch.cholesky_solve(cross, lower).float()
            yield weight, offset - centre @ weight


def candidates(kind: Kind, pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Adapters of a kind, of several strengths, fitted on pairs; draws are for hidden units."""
    source, target = pairs.source, pairs.target
    width, narrower = source.shape[1], min(source.shape[1], target.shape[1])
    same = torch.eye(width) if source.shape == target.shape else None
    if kind == "none":
        if same is not None:
            yield Adapter(kind, {})
    elif kind == "orthogonal":
        planes = [rank for rank in RANKS if same is not None and 4 * rank <= width]
        if planes:
            moved = pairs.rotation - torch.eye(width)
            axes = _main_axes(moved.T @ pairs.square @ moved + moved @ pairs.square @ moved.T)
        for rank in planes:
            plane = axes[:, :rank]
            turn = _nearest_rotation(plane.T @ pairs.cross @ plane) - torch.eye(rank)
            yield _adapter(kind, down=plane, up=turn @ plane.T)
        yield _adapter(kind, weight=pairs.rotation)
    elif kind == "low-rank":
        for weight, bias in pairs.corrections(same, PENALTIES[1:2]):
            # Reduced-rank regression: the directions in which what is fitted varies most.
            fitted = (source - pairs.centre) @ weight
            axes = _main_axes(fitted.T @ fitted)
            for rank in (rank for rank in RANKS if rank < narrower):
                top = axes[:, :rank]
                yield _adapter(kind, down=weight @ top, up=top.T, bias=bias)
    elif kind == "affine":
        for weight, bias in pairs.corrections(pairs.rotation, PENALTIES):
            yield _adapter(kind, weight=pairs.rotation + weight, bias=bias)
    else:
        if len(source) > MOST_FITTED:
            some = torch.randperm(len(source), generator=draws)[:MOST_FITTED]
            source, target = source[some], target[some]
        centres = _centres(source, draws)
        active, units = (_units(rows.double(), centres.double()) for rows in (source, centres.T))
        square, cross = active.T @ active, active.T @ (target - source @ pairs.rotation).double()
        least = SMALLEST_UNIT * square.diagonal().mean() * torch.eye(len(units)).double()
        for penalty in UNIT_PENALTIES:  # kernel ridge regression (Nyström): units are its kernel
            lower = torch.linalg.cholesky(square + penalty * units + least)
            out = torch.cholesky_solve(cross, lower).float()
            yield _adapter(kind, weight=pairs.rotation, centres=centres, out=out)


def _adapter(kind: Kind, **tensors: Tensor) -> Adapter:
    return Adapter(kind, {name: tensor.contiguous() for name, tensor in tensors.items()})


def _nearest_rotation(cross: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(cross, full_matrices=False)
    rotation: Tensor = left @ right
    return rotation


def _main_axes(products: Tensor) -> Tensor:
    """(d, d) orthonormal columns, those in which rows of such products are longest first."""
    axes: Tensor = torch.linalg.eigh(products).eigenvectors.flip(1)
    return axes


def ridge(
    features: Tensor, target: Tensor, penalties: tuple[float, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(f, e) weights and (e,) offsets of ridge regression, for each penalty."""
    return Pairs(features, target).corrections(None, penalties)
