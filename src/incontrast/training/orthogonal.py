"""Orthogonalised matrices, and the products that they are made of."""

import torch
from torch import Tensor


def processor() -> str:
    """Its name; empty where this torch, or any, cannot tell."""
    try:
        return str(torch.cpu.get_capabilities().get("cpu_name", ""))
    except (AttributeError, RuntimeError):
        return ""


LARGE = 2**21  # multiplications of a product
ONE_DNN_IS_FASTER = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and "Intel" not in processor()
)
NEXT_TO_NOTHING = 1e-3  # the least norm of a layer: one that begins as zeros must be able to grow
COEFFICIENTS = 3.4445, -4.7750, 2.0315  # Jordan's


def orthogonalised(wide: Tensor) -> Tensor:
    """(n, rows, columns) matrices, none of them tall, with singular values brought to about 1.

    That holds of those above a tenth of a matrix's norm. Smaller ones, which are mostly noise, grow
    up to twelve-fold. Two of Newton and Schulz's iterations X ← (a + b·G + c·G²)·X, where G is
    X·Xᵀ; five, as is usual, are no better here and take half as long again.
    """
    a, b, c = COEFFICIENTS
    lengths = torch.linalg.vector_norm(wide, dim=(1, 2), keepdim=True)
    x = wide / lengths.clamp_min_(1e-30)
    gram = products(x, x.mT)
    first = product_plus(gram, gram, gram, b, c)  # b·G + c·G²
    if 2 * wide.shape[2] <= 3 * wide.shape[1]:
        x = product_plus(x, first, x, a)
        gram = products(x, x.mT)
        second = product_plus(gram, gram, gram, b, c)
        return product_plus(x, second, x, a)
    # On Gram matrices alone until the end: of wide ones that is a fraction of the work.
    gram = product_plus(gram, first, gram, a)
    gram = product_plus(gram, gram, first, a)
    second = product_plus(gram, gram, gram, b, c)
    both = product_plus(first + second, second, first, a)  # (a + second)·(a + first) − a²
    return product_plus(x, both, x, a * a)


def protected(step: Tensor, factor: Tensor) -> Tensor:
    """A step (out, in, …) times a symmetric factor over patches or, where that is smaller, inputs.

    >>> factor = torch.diag(torch.tensor([0.0, 2.0]))
    >>> protected(torch.ones(1, 2, 3), factor).tolist()
    [[[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]]
    """
    if len(factor) == step[0].numel():
        return products(step.flatten(1)[None], factor[None]).view_as(step)
    rows = step.movedim(1, -1)
    product = products(rows.reshape(1, -1, len(factor)), factor[None])
    return product.view(rows.shape).movedim(-1, 1)


def products(left: Tensor, right: Tensor) -> Tensor:
    """(n, r, m) · (n, m, c): large ones by oneDNN, small ones together.

    On AMD's processors oneDNN is twice as fast as torch's MKL, but takes 10 µs to begin; on Intel's
    MKL is the faster one at any size.
    """
    if _large(left, right):
        found = [_one_dnn(a, b) for a, b in zip(left, right, strict=True)]
        return torch.stack(found) if len(found) > 1 else found[0][None]
    return torch.bmm(left, right)


def product_plus(
    addend: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float = 1.0
) -> Tensor:
    """β·addend + α·left·right."""
    if _large(left, right):
        found = products(left, right)
        return (found if alpha == 1.0 else found.mul_(alpha)).add_(addend, alpha=beta)
    return torch.baddbmm(addend, left, right, beta=beta, alpha=alpha)


def _large(left: Tensor, right: Tensor) -> bool:
    if not ONE_DNN_IS_FASTER or left.shape[1] * left.shape[2] * right.shape[2] < LARGE:
        return False
    return left.is_cpu and left.dtype == torch.float32 == right.dtype


def _one_dnn(left: Tensor, right: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
    return product


def spectral_norm(weights: Tensor) -> float:
    if not torch.isfinite(weights).all():  # the first step will say what is wrong
        return 0.0
    matrix = weights.detach().flatten(1).float().cpu()  # not every device has eigenvalues
    narrow = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return float(torch.linalg.eigvalsh(narrow @ narrow.T)[-1].clamp_min(0.0).sqrt())
