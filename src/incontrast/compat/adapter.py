"""A map from one embedding space into another, and how it is applied to one vector or many."""

from __future__ import annotations

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

ROWS = 512  # vectors that are mapped at a time: as many as stay in a core's cache
SMALLEST = 1e-12  # length of a vector


@dataclass(frozen=True, eq=False)
class Adapter:
    """A map of embeddings: (n, d) in, (n, e) unit vectors out, to be compared by cosine.

    Of a unit vector z it gives zW + [zA + (zDF + s)²O, 1]U, divided by its length: a matrix, and
    a correction through a bottleneck. Squares are of each number, so that the map is quadratic.
    What a kind of map lacks is left out; where both spaces are as wide, zW is z if there is no W.

    Args:
        kind: ``none`` leaves directions as they are; ``orthogonal`` turns them (W); ``low-rank``
            adds a linear correction (A, U); ``affine`` is any matrix and an offset (W, U);
            ``quadratic`` adds squares of linear forms of the vector's main directions (D, F, s, O)
            to one of the last two; ``residual`` adds to a turn exp(zC - 1), units that are the
            nearer to 1 the nearer z is to their centre: ten times slower.
        tensors: ``weight`` W (d, e), ``across`` A (d, r), ``down`` D (d, k), ``forms`` F (k, u),
            ``shift`` s (u,), ``outer`` O (u, r), ``up`` U (r + 1, e); of ``residual`` ``centres``
            C (d, u) and ``out`` (u, e).
    """

    kind: Kind
    tensors: dict[str, Tensor]

    @property
    def cost(self) -> int:
        """Multiplications for a vector."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def rounded(self) -> Adapter:
        """With numbers as they are saved: in half precision, but for those of a residual.

        A residual's are large and cancel out.
        """
        if self.kind == "residual":
            return self
        most = torch.finfo(torch.half).max
        half = {name: part.clamp(-most, most).half() for name, part in self.tensors.items()}
        return Adapter(self.kind, {name: part.float() for name, part in half.items()})

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
        if "centres" in parts:
            rows = rows / _lengths(rows, SMALLEST)
        if "weight" in parts:
            torch.mm(rows, parts["weight"], out=out)
        if "up" in parts:
            lengths = _lengths(rows, SMALLEST)
            correction = self._correction(rows, lengths)
            if "weight" in parts:
                out.addmm_(correction, parts["up"])
            elif rows.shape == out.shape:
                torch.addmm(rows, correction, parts["up"], out=out)
            else:
                torch.mm(correction, parts["up"], out=out)
        elif "weight" not in parts:
            out.copy_(rows)
        if "centres" in parts:
            out.addmm_((rows @ parts["centres"]).sub_(1.0).exp_(), parts["out"])
        out.div_(_lengths(out, SMALLEST**2))

    def _correction(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """(n, r + 1) what the bottleneck has, and 1, as long as the rows are."""
        parts, rank = self.tensors, len(self.tensors["up"]) - 1
        found = torch.empty(len(rows), rank + 1)
        found[:, rank:] = 1.0
        inner = found[:, :rank]
        if self._narrow is not None:
            narrow = (rows @ self._narrow).div_(lengths)
            if "across" in parts:
                inner.copy_(narrow[:, :rank])
            else:
                inner.zero_()
            if "forms" in parts:
                units = torch.addmm(
                    parts["shift"], narrow[:, -len(parts["forms"]) :], parts["forms"]
                )
                inner.addmm_(units.mul_(units), parts["outer"])
        return found.mul_(lengths)

    @cached_property
    def _narrow(self) -> Tensor | None:
        """(d, r + k) both products with the vector in one."""
        found = [self.tensors[name] for name in ("across", "down") if name in self.tensors]
        return torch.cat(found, dim=1) if found else None

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """As NumPy has them, those that are multiplied by the same vector in one."""
        parts = dict(self.tensors)
        if self._narrow is not None:
            parts["narrow"] = self._narrow
        return {name: tensor.numpy() for name, tensor in parts.items()}

    def _one(self, row: NDArray[Any]) -> NDArray[Any]:
        """As ``_map``: a single vector would wait for PyTorch's calls rather than for numbers."""
        parts = self._arrays
        row = row / max(math.sqrt(row.dot(row)), SMALLEST)
        mapped: NDArray[Any] = row
        if "weight" in parts:
            mapped = row.dot(parts["weight"])
        if "up" in parts:
            correction = parts["up"][-1]
            if "narrow" in parts:
                narrow = row.dot(parts["narrow"])
                inner = narrow[: len(parts["up"]) - 1] if "across" in parts else 0.0
                if "forms" in parts:
                    units = narrow[-len(parts["forms"]) :].dot(parts["forms"])
                    units += parts["shift"]
                    units *= units
                    inner = inner + units.dot(parts["outer"])
                correction = np.dot(inner, parts["up"][:-1]) + correction
            mapped = mapped + correction if len(mapped) == len(correction) else correction
        if "centres" in parts:
            mapped = mapped + np.exp(row.dot(parts["centres"]) - 1.0).dot(parts["out"])
        return mapped / max(math.sqrt(mapped.dot(mapped)), SMALLEST**2)


LAST = ("weight", "up")  # tensors whose columns are those of the result


def _lengths(rows: Tensor, smallest: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return lengths.clamp_(min=smallest)
