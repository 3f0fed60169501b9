"""BatchNorm over the items of all processes.

torch's ``SyncBatchNorm`` needs an accelerator, equal shares and a converted module, and has no
second derivative. Here ``torch.nn.functional.batch_norm`` itself is answered differently inside a
block, so that encoders stay as they are, whoever wrote them, also under ``functional_call``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from incontrast.training.collectives import all_reduce, all_reduce_


class SynchronisedBatchNorm(TorchFunctionMode):
    """A block in which BatchNorm in training mode sees the items of all processes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.batch_norm:
            func = synchronised_batch_norm
        return func(*args, **(kwargs or {}))


def synchronised_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.batch_norm``, with moments over all processes in training mode.

    Processes may have different numbers of values, or none.
    """
    if not training:
        return functional.batch_norm(
            input, running_mean, running_var, weight, bias, False, momentum, eps
        )
    mean, variance, count = _moments(input.detach())
    if input.numel() < 2 * len(mean) and count < 2:  # read only where it may be: no wait
        raise ValueError(
            f"BatchNorm needs at least 2 values per channel in training, got {int(count)} in all "
            "processes"
        )
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    result: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
        input, weight, bias, mean, variance, count, eps
    )
    return result


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel, and values per channel, over all processes."""
    channels = x.shape[1]
    here = x.numel() // channels
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    # Single sums of squares would cancel in single precision; in double precision they may.
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
    if here:
        # BatchNorm's own moments: var_mean takes four times as long on a CPU.
        mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
        mean = mean.double()
        sums[:channels] = mean * here
        sums[channels:-1] = (variance.double() + mean.square()) * here
        sums[-1] = here
    all_reduce_(sums)
    count = sums[-1]
    mean, square = (sums[:-1] / count.clamp_min(1.0)).chunk(2)
    variance = (square - mean.square()).clamp_(min=0.0)
    return mean.to(wide.dtype), variance.to(wide.dtype), count


class _Normalise(Function):
    """(x − mean) / √(variance + ε) · weight + bias, where the moments are those of all x."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps = eps  # type: ignore[attr-defined]
        if x.numel() == 0:  # torch's kernels divide by the number of items
            return torch.empty_like(x)
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Grad mode tells whether this derivative is to be differentiated again.
        rule = _differentiable_backward if torch.is_grad_enabled() else _fused_backward
        return *rule(gradient, (*ctx.saved_tensors, ctx.eps)), *(None,) * 4


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]  # x, weight, moments, count, ε


def _fused_backward(gradient: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """torch's backward for fixed moments, then what the moments add, with few passes over x."""
    x, weight, mean, variance, count, eps = inputs
    if x.numel() == 0:
        result, of_weight, of_bias = (torch.zeros_like(of) for of in (x, weight, weight))
    else:
        result, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, variance, None, None, False, eps, [True, True, True]
        )
    bias_mean, weight_mean = all_reduce_(torch.stack([of_bias, of_weight])) / count
    inverse = (variance + eps).rsqrt()
    slope = weight * inverse.square() * weight_mean
    shift = weight * inverse * bias_mean - mean * slope
    result.addcmul_(x, _per_channel(slope, x), value=-1)
    return result.sub_(_per_channel(shift, x)), of_weight, of_bias


def _differentiable_backward(gradient: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The same as a function of x, weight and gradient that has derivatives itself."""
    x, weight, _, _, count, eps = inputs
    others = [dimension for dimension in range(x.dim()) if dimension != 1]
    centred = x - _per_channel(all_reduce(x.sum(others)) / count, x)
    inverse = (all_reduce(centred.square().sum(others)) / count + eps).rsqrt()
    unit = centred * _per_channel(inverse, x)
    of_bias, of_weight = gradient.sum(others), (gradient * unit).sum(others)
    bias_mean, weight_mean = all_reduce(torch.stack([of_bias, of_weight])) / count
    inner = gradient - _per_channel(bias_mean, x) - unit * _per_channel(weight_mean, x)
    return inner * _per_channel(weight * inverse, x), of_weight, of_bias


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *(1,) * (x.dim() - 2))
