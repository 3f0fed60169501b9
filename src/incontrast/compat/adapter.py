"""A map from one embedding space into another."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["none", "orthogonal", "low-rank", "affine", "quadratic", "residual"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # simplest first
PARTS = {"weight", "across", "down", "forms", "shift", "outer", "up", "centres", "out"}

CHUNK = 512  # vectors mapped at a time: they stay in a core's cache
MIN_LENGTH = 1e-12


@dataclass(frozen=True, eq=False)
class Adapter:
    """A map of (n, d) embeddings to (n, e) unit vectors, which are compared by cosine.

    A unit vector z becomes zW + [zA + (zDF + s)²O, 1]U, normalised: a matrix, and a correction
    through a bottleneck, in which linear forms of z are squared element by element. A kind of map
    has some of these tensors. Without W, and if d = e, zW is z.

    Args:
        kind: ``none`` changes nothing; ``orthogonal`` is a rotation (W); ``low-rank`` adds a linear
            correction (A, U); ``affine`` is any matrix and an offset (W, U); ``quadratic`` adds
            squares of linear forms of the main directions (D, F, s, O) to z or zW; ``residual``
            adds exp(zC - 1)V to a rotation, whose units are close to 1 near their centres C. It is
            ten times slower than the others.
        tensors: ``weight`` W (d, e), ``across`` A (d, r), ``down`` D (d, k), ``forms`` F (k, u),
            ``shift`` s (u,), ``outer`` O (u, r), ``up`` U (r + 1, e), ``centres`` C (d, u),
            ``out`` V (u, e).
    """

    kind: Kind
    tensors: dict[str, Tensor]

    @property
    def cost(self) -> int:
        """Multiplications per vector."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def rounded(self) -> "Adapter":
        """The map with the numbers that are saved: in half precision, except for a residual map.

        The numbers of a residual map are large and cancel out.
        """
        if self.kind == "residual":
            return self
        largest = torch.finfo(torch.half).max
        half = {name: part.clamp(-largest, largest).half() for name, part in self.tensors.items()}
        return Adapter(self.kind, {name: part.float() for name, part in half.items()})

    def __call__(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """Map (n, d) vectors of any length, on the CPU.

        Args:
            vectors: What to map.
            out: (n, e) memory for the result; to allocate it may take longer than to map.
        """
        rows = vectors.detach().float()
        if out is None and len(rows) == 1:
            return torch.from_numpy(self._map_one(rows.numpy()[0])[None])
        if out is None:
            last = self.tensors.get("weight", self.tensors.get("up", rows))
            out = torch.empty(len(rows), last.shape[1])
        for first in range(0, len(rows), CHUNK):
            self._map(rows[first : first + CHUNK], out[first : first + CHUNK])
        return out

    def _map(self, rows: Tensor, out: Tensor) -> None:
        """Map vectors of any length: scaling the correction takes less time than scaling them."""
        parts = self.tensors
        if "centres" in parts:
            rows = rows / _lengths(rows, MIN_LENGTH)
        if "weight" in parts:
            torch.mm(rows, parts["weight"], out=out)
        elif rows.shape == out.shape:
            out.copy_(rows)
        else:
            out.zero_()
        if "up" in parts:
            out.addmm_(self._correction(rows), parts["up"])
        if "centres" in parts:
            out.addmm_((rows @ parts["centres"]).sub_(1.0).exp_(), parts["out"])
        out.div_(_lengths(out, MIN_LENGTH**2))

    def _correction(self, rows: Tensor) -> Tensor:
        """(n, r + 1) the values in the bottleneck, and 1, times the length of the vectors."""
        parts, rank = self.tensors, len(self.tensors["up"]) - 1
        lengths = _lengths(rows, MIN_LENGTH)
        inner = torch.zeros(len(rows), rank)
        if self._inwards is not None:
            narrow = (rows @ self._inwards).div_(lengths)
            if "across" in parts:
                inner = narrow[:, :rank]
            if "forms" in parts:
                main = narrow[:, -len(parts["forms"]) :]
                units = torch.addmm(parts["shift"], main, parts["forms"])
                inner = torch.addmm(inner, units.square_(), parts["outer"])
        return torch.cat([inner, torch.ones(len(rows), 1)], dim=1).mul_(lengths)

    def _map_one(self, row: NDArray[Any]) -> NDArray[Any]:
        """As ``_map``, for one vector: NumPy's calls take a third of the time of PyTorch's."""
        parts = self._arrays
        row = row / max(math.sqrt(row.dot(row)), MIN_LENGTH)
        mapped = row.dot(parts["weight"]) if "weight" in parts else row
        if "up" in parts:
            up, correction = parts["up"][:-1], parts["up"][-1]
            if "across" in parts:
                correction = correction + row.dot(parts["across"]).dot(up)
            if "forms" in parts:
                units = row.dot(parts["down"]).dot(parts["forms"]) + parts["shift"]
                correction = correction + (units * units).dot(parts["outer"]).dot(up)
            mapped = mapped + correction if len(mapped) == len(correction) else correction
        if "centres" in parts:
            mapped = mapped + np.exp(row.dot(parts["centres"]) - 1.0).dot(parts["out"])
        return mapped / max(math.sqrt(mapped.dot(mapped)), MIN_LENGTH**2)

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}

    @cached_property
    def _inwards(self) -> Tensor | None:
        """(d, r + k) A and D side by side: one product is faster than two."""
        found = [self.tensors[name] for name in ("across", "down") if name in self.tensors]
        return torch.cat(found, dim=1) if found else None


def _lengths(rows: Tensor, least: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return lengths.clamp_(min=least)
