"""Maps from one embedding space into another, all of them fitted in closed form.

Versions of an encoder are kin: an update moves embeddings by little. So every map is a correction
of something simple, and a penalty (ridge) takes it back to that where there are few pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

Kind = Literal["none", "orthogonal", "low-rank", "affine", "residual"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # simplest first

PENALTIES = (1e-3, 1e-2, 1e-1)  # shares of the mean variance of a feature
RANKS = (4, 16, 64)
HIDDEN = 512  # units of the residual network, at most


@dataclass(frozen=True, eq=False)
class Adapter:
    """A map of embeddings: (n, d) in, (n, e) unit vectors out, to be compared by cosine.

    Args:
        kind: Which map. ``none`` leaves directions as they are; ``orthogonal`` turns them;
            ``low-rank`` adds a correction of low rank; ``affine`` is any matrix and an offset;
            ``residual`` adds to that a network whose hidden layer is drawn at random.
        tensors: What it consists of: ``weight`` (d, e), ``bias`` (e,), ``down`` (d, r) and ``up``
            (r, e), ``hidden`` (d, h), ``hidden_bias`` (h,) and ``out`` (h, e).
    """

    kind: Kind
    tensors: dict[str, Tensor]

    @torch.no_grad()
    def __call__(self, vectors: Tensor) -> Tensor:
        parts = self.tensors
        unit = normalize(vectors.float())
        mapped = unit @ parts["weight"] if "weight" in parts else unit
        if "up" in parts:
            correction = (unit @ parts["down"]) @ parts["up"]
            mapped = mapped + correction if mapped.shape == correction.shape else correction
        if "out" in parts:
            active = torch.addmm(parts["hidden_bias"], unit, parts["hidden"]).relu_()
            mapped = torch.addmm(mapped, active, parts["out"])
        if "bias" in parts:
            mapped = mapped + parts["bias"]
        return normalize(mapped)


def candidates(kind: Kind, source: Tensor, target: Tensor, draws: Generator) -> Iterator[Adapter]:
    """Adapters of a kind, of several strengths, fitted on pairs.

    Args:
        kind: Which map.
        source: (n, d) unit vectors.
        target: (n, e) unit vectors of the same items.
        draws: Draws the hidden layer.
    """
    width, square = source.shape[1], source.shape[1] == target.shape[1]
    if kind == "none":
        if square:
            yield Adapter(kind, {})
    elif kind == "orthogonal":
        yield _adapter(kind, weight=_rotation(source, target))
    elif kind == "low-rank":
        residual = target - source if square else target
        for weight, bias in ridge(source, residual, PENALTIES[1:2]):
            # Reduced-rank regression: the directions in which what is fitted varies most.
            fitted = (source - source.mean(0)) @ weight
            basis = torch.linalg.eigh(fitted.T @ fitted).eigenvectors.flip(1)
            for rank in (rank for rank in RANKS if rank < min(width, target.shape[1])):
                top = basis[:, :rank]
                yield _adapter(kind, down=weight @ top, up=top.T, bias=bias)
    elif kind == "affine":
        rotation = _rotation(source, target)
        for weight, bias in ridge(source, target - source @ rotation, PENALTIES):
            yield _adapter(kind, weight=rotation + weight, bias=bias)
    else:
        rotation = _rotation(source, target)
        hidden = torch.randn(width, min(HIDDEN, 4 * width), generator=draws)
        hidden_bias = torch.randn(hidden.shape[1], generator=draws) / 2
        features = torch.cat([source, (source @ hidden + hidden_bias).relu()], dim=1)
        for weight, bias in ridge(features, target - source @ rotation, PENALTIES):
            yield _adapter(
                kind,
                weight=rotation + weight[:width],
                bias=bias,
                hidden=hidden,
                hidden_bias=hidden_bias,
                out=weight[width:],
            )


def _adapter(kind: Kind, **tensors: Tensor) -> Adapter:
    return Adapter(kind, {name: tensor.contiguous() for name, tensor in tensors.items()})


def _rotation(source: Tensor, target: Tensor) -> Tensor:
    """(d, e) with orthonormal rows or columns that brings source nearest to target (Procrustes)."""
    left, _, right = torch.linalg.svd(source.T @ target, full_matrices=False)
    rotation: Tensor = left @ right
    return rotation


def ridge(
    features: Tensor, target: Tensor, penalties: tuple[float, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(f, e) weights and (e,) offsets of ridge regression, for each penalty."""
    centre, offset = features.mean(0), target.mean(0)
    centred = features - centre
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    right = vectors.T @ (centred.T @ (target - offset))
    for penalty in penalties:
        floor = penalty * values.mean() + 1e-9
        weight = vectors @ (right / (values.clamp(min=0.0) + floor)[:, None])
        yield weight, offset - centre @ weight
