"""How maps between spaces are fitted to pairs, each kind in closed form.

Versions of an encoder are kin: an update moves embeddings by little. So every map is a correction
of something simple, and a penalty (ridge) takes it back to that where there are few pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Generator, Tensor

from incontrast.compat.adapter import Adapter, Kind

PENALTIES = (0.1, 1.0)  # in pairs: what is left of a direction with as many of them is halved
RANKS = (4, 16, 64)  # of linear corrections
UNITS = 256  # squares of linear forms
CENTRES, GROUP = 1024, 3  # units at most of a residual, each in the middle of so many items
MOST_FITTED = 4000  # items on which a residual is fitted
RESIDUAL_PENALTIES = (1e-2, 1e-1)
NARROW = 128  # dimensions up to which
RANK, WIDE_RANKS = 32, (16, 48)  # main directions have squares; above, where more take time
SMALLEST = 1e-9  # share of a penalty in the size of what it is added to, lest that be singular


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
    def rotation(self) -> Tensor:
        """(d, e) orthonormal rows or columns that bring source nearest to target (Procrustes)."""
        left, _, right = torch.linalg.svd(self.source.T @ self.target, full_matrices=False)
        rotation: Tensor = left @ right
        return rotation

    @cached_property
    def same(self) -> Tensor | None:
        """(d, d) what leaves vectors as they are, if both spaces are as wide."""
        width = self.source.shape[1]
        return torch.eye(width) if width == self.target.shape[1] else None

    @cached_property
    def centred(self) -> Tensor:
        """(n, d) in double: products of vectors that are alike lose all digits."""
        return (self.source - self.centre).double()

    @cached_property
    def goal(self) -> Tensor:
        """(n, e) likewise."""
        return (self.target - self.offset).double()

    @cached_property
    def covariances(self) -> tuple[Tensor, Tensor]:
        """(d, d) and (d, e) sums of products with the source."""
        return self.centred.T @ self.centred, self.centred.T @ self.goal

    @cached_property
    def spread(self) -> float:
        """Mean squared distance from the centre: what one pair adds to the covariances."""
        return max(self.covariances[0].trace().item() / len(self.source), SMALLEST)

    def correction(self, prior: Tensor, penalty: float) -> Tensor:
        """(d, e) in double, the linear correction of a matrix."""
        square, cross = self.covariances
        return _solved(square, cross - square @ prior.double(), penalty * self.spread)


def _solved(square: Tensor, cross: Tensor, penalty: float | Tensor) -> Tensor:
    """(f, e) of ridge regression; the penalty may be (f, f)."""
    identity = torch.eye(len(square), dtype=square.dtype)
    penalised = square + (penalty * identity if isinstance(penalty, float) else penalty)
    # Of both: the penalty is singular itself where many squares are of few directions.
    penalised += SMALLEST * penalised.diagonal().mean() * identity
    return torch.cholesky_solve(cross, torch.linalg.cholesky(penalised))


def ridge(features: Tensor, target: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """(f, e) weights and (e,) offsets, with a penalty as a share of a feature's mean variance."""
    pairs = Pairs(features, target)
    square, cross = pairs.covariances
    weight = _solved(square, cross, penalty * square.diagonal().mean().item() + SMALLEST).float()
    return weight, pairs.offset - pairs.centre @ weight


def candidates(kind: Kind, pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Adapters of a kind, of several strengths, fitted on pairs; draws are for quadratic ones."""
    if kind == "none":
        if pairs.same is not None:
            yield Adapter(kind, {})
    elif kind == "orthogonal":
        yield Adapter(kind, {"weight": pairs.rotation})
    elif kind == "low-rank":
        prior = torch.zeros_like(pairs.rotation) if pairs.same is None else pairs.same
        weight = pairs.correction(prior, PENALTIES[0])
        axes = _main_axes(weight.T @ pairs.covariances[0] @ weight)  # reduced-rank regression
        for rank in (rank for rank in RANKS if 2 * rank <= min(weight.shape)):
            across, up = weight @ axes[:, :rank], axes[:, :rank].T
            offset = pairs.offset - pairs.centre.double() @ (prior.double() + across @ up)
            yield _adapter(kind, across=across, up=torch.cat([up, offset[None]]))
    elif kind == "affine":
        for penalty in PENALTIES:
            weight = pairs.rotation + pairs.correction(pairs.rotation, penalty).float()
            yield _adapter(kind, weight=weight, up=(pairs.offset - pairs.centre @ weight)[None])
    elif kind == "quadratic":
        yield from _quadratic(pairs, draws)
    else:
        yield from _residual(pairs, draws)


def _quadratic(pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Beside the vector itself, everything in a bottleneck; beside a matrix, the squares in it.

    The squares are of random forms of the main directions, distributed as vectors are there: to
    fit their weights is ridge regression with the kernel (1 + x·y)², as Nyström approximates it.
    """
    narrow = pairs.source.shape[1] <= NARROW
    for rank in (RANK,) if narrow else WIDE_RANKS:
        squares = _Squares(pairs, min(rank, pairs.source.shape[1]), draws)
        last = narrow or rank == WIDE_RANKS[-1]
        for penalty in PENALTIES:
            if pairs.same is not None:
                yield squares.adapter(pairs.same, penalty, rank, matrix=False)
            if last:
                yield squares.adapter(pairs.rotation, penalty, rank, matrix=True)


class _Squares:
    """Squares of linear forms of the main directions of a space."""

    def __init__(self, pairs: Pairs, rank: int, draws: Generator) -> None:
        self.pairs = pairs
        axes = _main_axes(pairs.covariances[0])[:, :rank]
        main = pairs.centred @ axes
        scale = main.square().sum(1).mean().sqrt().clamp(min=SMALLEST)
        self.down, main = axes / scale, main / scale
        # Distributed as the vectors are, which makes them as good as vectors themselves.
        like = torch.linalg.cholesky(main.T @ main / len(main) + 1e-6 * torch.eye(rank).double())
        self.forms = like @ torch.randn(rank, UNITS, generator=draws).double()
        self.shift = 1.0 - pairs.centre.double() @ self.down @ self.forms
        units = (1.0 + main @ self.forms).square()
        self.mean = units.mean(0)
        self.kernel = (1.0 + self.forms.T @ self.forms).square()
        units = units - self.mean
        square, cross = pairs.covariances
        beside = pairs.centred.T @ units
        self.square = torch.cat(
            [torch.cat([square, beside], 1), torch.cat([beside.T, units.T @ units], 1)]
        )
        self.cross = torch.cat([cross, units.T @ pairs.goal])

    def adapter(self, prior: Tensor, penalty: float, rank: int, *, matrix: bool) -> Adapter:
        """Ridge regression on vectors and squares together, then the best bottleneck for it."""
        pairs, width = self.pairs, len(prior)
        penalties = torch.zeros_like(self.square)
        linear = PENALTIES[0] * pairs.spread
        penalties[:width, :width] = linear * torch.eye(width)
        penalties[width:, width:] = penalty * self.kernel
        cross = self.cross - self.square[:, :width] @ prior.double()
        both = _solved(self.square, cross, penalties)
        alone = pairs.correction(prior, PENALTIES[0]) if matrix else 0.0
        both[:width] -= alone  # what squares change in the linear part goes through with them
        axes = _main_axes(both.T @ self.square @ both)[:, : min(rank, prior.shape[1])]
        if matrix:
            weight = prior.double() + alone + both[:width] @ axes @ axes.T
            tensors = {"weight": weight}
        else:
            weight = prior.double() + both[:width] @ axes @ axes.T
            tensors = {"across": both[:width] @ axes}
        outer = both[width:] @ axes
        offset = pairs.offset - pairs.centre.double() @ weight - self.mean @ outer @ axes.T
        return _adapter(
            "quadratic",
            **tensors,
            down=self.down,
            forms=self.forms,
            shift=self.shift,
            outer=outer,
            up=torch.cat([axes.T, offset[None]]),
        )


def _residual(pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Kernel ridge regression (Nyström) of what a turn leaves: a vector moves as those near it."""
    some = torch.randperm(len(pairs.source), generator=draws)[:MOST_FITTED]
    source, target = pairs.source[some], pairs.target[some]
    known = torch.unique(source, dim=0)  # of items that come twice, one
    some = torch.randperm(len(known), generator=draws)[:CENTRES]
    # Between an item and those nearest to it: what is saved with a version is no item's embedding.
    nearest = (known[some] @ known.T).topk(min(GROUP, len(known)), dim=1).indices
    centres = torch.nn.functional.normalize(known[nearest].mean(dim=1)).double()
    units, kernel = ((rows.double() @ centres.T - 1.0).exp() for rows in (source, centres))
    cross = units.T @ (target - source @ pairs.rotation).double()
    for penalty in RESIDUAL_PENALTIES:
        out = _solved(units.T @ units, cross, penalty * kernel)
        yield _adapter("residual", weight=pairs.rotation, centres=centres.T, out=out)


def _adapter(kind: Kind, **tensors: Tensor) -> Adapter:
    return Adapter(kind, {name: tensor.float().contiguous() for name, tensor in tensors.items()})


def _main_axes(square: Tensor) -> Tensor:
    """(e, e) orthonormal columns, those in which rows of such products are longest first."""
    axes: Tensor = torch.linalg.eigh(square).eigenvectors.flip(1)
    return axes
