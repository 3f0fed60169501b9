"""Label-free signs of collapse: effective rank, alignment, uniformity."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def effective_rank(embeddings: Tensor) -> float:
    """How many directions normalised embeddings use: 1 when collapsed to a line, at most d.

    The exponential of the entropy of the normalised singular values (Roy & Vetterli 2007) of the
    centred embeddings; 1 when all of them are one point.

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    unit = normalize(embeddings.double())
    values = torch.linalg.svdvals(unit - unit.mean(dim=0))
    total = values.sum()
    if total <= 1e-9 * len(unit):
        return 1.0
    shares = values / total
    return float(torch.exp(-torch.xlogy(shares, shares).sum()))


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance between the two views of an item on the unit sphere; 0 is perfect.

    Wang & Isola 2020.
    """
    return float((normalize(first) - normalize(second)).square().sum(dim=1).mean())


def uniformity(embeddings: Tensor, *, rows: int = 2048) -> float:
    """log of the mean of e^{−2‖a−b‖²} over pairs on the unit sphere; 0 is collapse, −4 uniform.

    Wang & Isola 2020. From ``rows`` items at most, evenly spaced.
    """
    stride = -(-len(embeddings) // rows) if len(embeddings) else 1
    unit = normalize(embeddings[::stride].double())
    if len(unit) < 2:
        raise ValueError(f"uniformity needs at least 2 items, got {len(unit)}")
    return float(torch.pdist(unit).square().mul(-2).exp().mean().log())
