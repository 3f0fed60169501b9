"""How maps between two spaces are fitted to pairs of embeddings, all in closed form.

An update moves embeddings only a little. So every map is a correction of the identity or of a
rotation, and ridge regression shrinks the correction where there are few pairs.
"""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from incontrast.compat.adapter import Adapter, Kind

PENALTIES = (0.1, 1.0)  # in pairs: a penalty of n halves a correction that n pairs determine
RANKS = (4, 16, 64)  # of linear corrections
UNITS = 256  # squares of linear forms
CENTRES, GROUP = 1024, 3  # largest number of units of a residual map; items a centre is the mean of
MAX_RESIDUAL_PAIRS = 4000
RESIDUAL_PENALTIES = (1e-2, 1e-1)
NARROW, RANK = 128, 32  # up to so many dimensions, so many main directions have squares;
WIDE_RANKS = (16, 48)  # in wider spaces, where more would take too long, these
SMALLEST = 1e-9  # relative size of what is added to a matrix, so that it is not singular


class Pairs:
    """Unit vectors of the same items by two versions, (n, d) and (n, e), and their statistics."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.source, self.target = source, target
        self.source_mean, self.target_mean = source.mean(0), target.mean(0)
        # In float64: the differences of vectors that are nearly equal have few digits.
        self.centred = (source - self.source_mean).double()
        self.centred_target = (target - self.target_mean).double()
        # Sums of products, (d, d) and (d, e), and what one pair adds to the former.
        self.covariances = self.centred.T @ self.centred, self.centred.T @ self.centred_target
        self.variance = max(self.covariances[0].trace().item() / len(source), SMALLEST)
        # (d, e) the orthonormal matrix that brings source closest to target (Procrustes).
        left, _, right = torch.linalg.svd(source.T @ target, full_matrices=False)
        self.rotation: Tensor = left @ right
        width = source.shape[1]
        self.identity = torch.eye(width) if width == target.shape[1] else None

    def correction(self, prior: Tensor, penalty: float) -> Tensor:
        """(d, e) in float64, what linear ridge regression adds to a matrix."""
        square, cross = self.covariances
        return _solve(square, cross - square @ prior.double(), penalty * self.variance)


def _solve(square: Tensor, cross: Tensor, penalty: float | Tensor) -> Tensor:
    """(f, e) solution of ridge regression; the penalty is a number or (f, f)."""
    identity = torch.eye(len(square), dtype=square.dtype)
    penalised = square + (penalty * identity if isinstance(penalty, float) else penalty)
    # The penalty itself is singular if there are more squares than the directions determine.
    penalised += SMALLEST * penalised.diagonal().mean() * identity
    return torch.cholesky_solve(cross, torch.linalg.cholesky(penalised))


def ridge(features: Tensor, target: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """(f, e) weights and (e,) offsets; the penalty is relative to the mean variance of features."""
    pairs = Pairs(features, target)
    square, cross = pairs.covariances
    weight = _solve(square, cross, penalty * square.diagonal().mean().item() + SMALLEST).float()
    return weight, pairs.target_mean - pairs.source_mean @ weight


def candidates(kind: Kind, pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Maps of one kind with different ranks and penalties; quadratic and residual ones draw."""
    if kind == "none":
        if pairs.identity is not None:
            yield Adapter(kind, {})
    elif kind == "orthogonal":
        yield Adapter(kind, {"weight": pairs.rotation})
    elif kind == "low-rank":
        prior = torch.zeros_like(pairs.rotation) if pairs.identity is None else pairs.identity
        weight = pairs.correction(prior, PENALTIES[0])
        axes = _main_axes(weight.T @ pairs.covariances[0] @ weight)  # reduced-rank regression
        for rank in (rank for rank in RANKS if 2 * rank <= min(weight.shape)):
            across, up = weight @ axes[:, :rank], axes[:, :rank].T
            offset = pairs.target_mean - pairs.source_mean.double() @ (prior.double() + across @ up)
            yield _adapter(kind, across=across, up=torch.cat([up, offset[None]]))
    elif kind == "affine":
        for penalty in PENALTIES:
            weight = pairs.rotation + pairs.correction(pairs.rotation, penalty).float()
            offset = pairs.target_mean - pairs.source_mean @ weight
            yield _adapter(kind, weight=weight, up=offset[None])
    elif kind == "quadratic":
        yield from _quadratic(pairs, draws)
    else:
        yield from _residual(pairs, draws)


def _quadratic(pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Maps with squares of random linear forms of the main directions.

    To fit the weights of the squares is ridge regression with the kernel (1 + x·y)², in the Nyström
    approximation.
    """
    ranks = (RANK,) if pairs.source.shape[1] <= NARROW else WIDE_RANKS
    for rank in ranks:
        squares = _Squares(pairs, rank, draws)
        for penalty in PENALTIES:
            if pairs.identity is not None:
                yield squares.adapter(pairs.identity, penalty, matrix=False)
            if rank == ranks[-1]:
                yield squares.adapter(pairs.rotation, penalty, matrix=True)


class _Squares:
    """Squares of random linear forms of the main directions of a space."""

    def __init__(self, pairs: Pairs, rank: int, draws: Generator) -> None:
        self.pairs, self.rank = pairs, rank
        axes = _main_axes(pairs.covariances[0])[:, :rank]
        main = pairs.centred @ axes  # (n, k)
        scale = main.square().sum(1).mean().sqrt().clamp(min=SMALLEST)
        self.down, main = axes / scale, main / scale
        # Forms distributed like the vectors approximate the kernel as well as vectors would.
        covariance = main.T @ main / len(main) + 1e-6 * torch.eye(main.shape[1]).double()
        noise = torch.randn(main.shape[1], UNITS, generator=draws).double()
        self.forms = torch.linalg.cholesky(covariance) @ noise
        self.shift = 1.0 - pairs.source_mean.double() @ self.down @ self.forms
        self.kernel = (1.0 + self.forms.T @ self.forms).square()
        units = (1.0 + main @ self.forms).square()  # (n, u)
        self.mean = units.mean(0)
        units = units - self.mean
        square, cross = pairs.covariances
        mixed = pairs.centred.T @ units
        rows = torch.cat([square, mixed], 1), torch.cat([mixed.T, units.T @ units], 1)
        self.square = torch.cat(rows)  # covariances of vectors and squares together
        self.cross = torch.cat([cross, units.T @ pairs.centred_target])

    def adapter(self, prior: Tensor, penalty: float, *, matrix: bool) -> Adapter:
        """Ridge regression on vectors and squares together, reduced to the best bottleneck.

        With ``matrix``, the linear correction has full rank, and the bottleneck the squares only.
        """
        pairs, width = self.pairs, len(prior)
        penalties = torch.zeros_like(self.square)
        penalties[:width, :width] = PENALTIES[0] * pairs.variance * torch.eye(width)
        penalties[width:, width:] = penalty * self.kernel
        cross = self.cross - self.square[:, :width] @ prior.double()
        both = _solve(self.square, cross, penalties)
        linear = pairs.correction(prior, PENALTIES[0]) if matrix else 0.0
        both[:width] -= linear  # the rest goes through the bottleneck
        axes = _main_axes(both.T @ self.square @ both)[:, : self.rank]
        across, outer = both[:width] @ axes, both[width:] @ axes
        weight = prior.double() + linear + across @ axes.T
        offset = pairs.target_mean - pairs.source_mean.double() @ weight
        offset = offset - self.mean @ outer @ axes.T
        return _adapter(
            "quadratic",
            **({"weight": weight} if matrix else {"across": across}),
            down=self.down,
            forms=self.forms,
            shift=self.shift,
            outer=outer,
            up=torch.cat([axes.T, offset[None]]),
        )


def _residual(pairs: Pairs, draws: Generator) -> Iterator[Adapter]:
    """Kernel ridge regression (Nyström) of what a rotation leaves: neighbours move alike."""
    some = torch.randperm(len(pairs.source), generator=draws)[:MAX_RESIDUAL_PAIRS]
    source, target = pairs.source[some], pairs.target[some]
    distinct = torch.unique(source, dim=0)
    some = torch.randperm(len(distinct), generator=draws)[:CENTRES]
    # Centres are means of neighbours, so that no item's embedding is saved with a version.
    nearest = (distinct[some] @ distinct.T).topk(min(GROUP, len(distinct)), dim=1).indices
    centres = torch.nn.functional.normalize(distinct[nearest].mean(dim=1)).double()
    units, kernel = ((rows.double() @ centres.T - 1.0).exp() for rows in (source, centres))
    cross = units.T @ (target - source @ pairs.rotation).double()
    for penalty in RESIDUAL_PENALTIES:
        out = _solve(units.T @ units, cross, penalty * kernel)
        yield _adapter("residual", weight=pairs.rotation, centres=centres.T, out=out)


def _adapter(kind: Kind, **tensors: Tensor) -> Adapter:
    return Adapter(kind, {name: tensor.float().contiguous() for name, tensor in tensors.items()})


def _main_axes(square: Tensor) -> Tensor:
    """(e, e) eigenvectors as columns, those of the largest eigenvalues first."""
    axes: Tensor = torch.linalg.eigh(square).eigenvectors.flip(1)
    return axes
