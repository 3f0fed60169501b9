"""The steps of a run, capped, scaled by part and protected, and the mean of where they led."""

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from incontrast.heads import named_parameters
from incontrast.training.muon import OrthogonalSteps, protected, spectral_norm
from incontrast.training.optimizers import OptimizerFactory

LEAST = 1 / 32  # of a learning rate: a layer that begins next to nothing must be able to grow


class Stepper:
    """Takes the steps of a run, in one call of the optimiser for all layers.

    A layer at its cap goes back part of the way afterwards. Wherever a step is proportional to its
    learning rate, that is the same as a lower learning rate for this layer; a parameter group for
    each layer would cost an accelerator a launch for each. ``factors`` of the learning rate are
    applied in the same way, and so are the matrices of ``Protection.factors``.
    ``max_relative_update`` is as in ``Adam``; ``agreed`` gives all processes the caps of the first
    one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        max_relative_update: float | None = None,
        factors: Mapping[nn.Parameter, float] | None = None,
        protection: Mapping[nn.Parameter, Tensor] | None = None,
        agreed: Callable[[list[float]], list[float]] = lambda caps: caps,
    ) -> None:
        self.optimizer = optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.protection = dict(protection or {})
        if isinstance(optimizer, OrthogonalSteps):  # no need to find its steps by subtraction
            own = self.protection.keys() & optimizer.norms.keys()
            optimizer.protection = {p: self.protection.pop(p) for p in own}
        caps = [math.inf] * len(parameters)
        if max_relative_update is not None:
            caps = agreed(
                [_cap(p.detach(), max_relative_update, self.protection.get(p)) for p in parameters]
            )
        shares = [(factors or {}).get(p, 1.0) for p in parameters]
        self.capped = [
            (p, cap, factor)
            for p, cap, factor in zip(parameters, caps, shares, strict=True)
            if cap < math.inf or factor != 1.0 or p in self.protection
        ]
        self._before = [torch.empty_like(p) for p, _, _ in self.capped]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step with this learning rate, for every layer as far as its cap lets it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        moved = [
            (p, before, 1.0 - share)
            for (p, cap, factor), before in zip(self.capped, self._before, strict=True)
            if (share := factor if lr <= cap else min(factor, max(cap / lr, LEAST))) != 1.0
            or p in self.protection
        ]
        if not moved:
            self.optimizer.step()
            return
        weights, before, back = (list(column) for column in zip(*moved, strict=True))
        torch._foreach_copy_(before, weights)
        self.optimizer.step()
        if any(back):
            torch._foreach_lerp_(weights, before, back)
        for p, start, _ in moved:
            if p in self.protection:
                p.copy_(start + protected(p - start, self.protection[p]))


class ExponentialMovingAverage:
    """An exponential moving average of parameters.

    It begins as a mean of all iterates and becomes exponential once enough have gone by, so that it
    is not biased by where the weights began. ``decay`` is the weight of the past; 0 keeps the last
    iterate. The mean of a short run leans to its last iterates: with ``leaning`` 1 it is the plain
    mean, with 4 half of the weight is on the last sixth (polynomial-decay averaging, Shamir & Zhang
    2013).
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float, leaning: float = 1.0) -> None:
        self._parameters, self._decay, self._leaning = list(parameters), decay, leaning
        self.mean = [p.detach().clone() for p in parameters]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        weight = max(1.0 - self._decay, self._leaning / (self.steps + self._leaning))
        torch._foreach_lerp_(self.mean, self._parameters, weight)

    @torch.no_grad()
    def apply(self, parameters: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(parameters), self.mean)


def lr_factors_of(optimizer: OptimizerFactory, encoder: nn.Module) -> dict[nn.Parameter, float]:
    """The factor of the learning rate of each parameter whose name begins with a part."""
    wanted: Mapping[str, float] = getattr(optimizer, "lr_factors", {})
    if not wanted:
        return {}
    parameters = {name: p for name, p in named_parameters(encoder) if p.requires_grad}
    words = [name.split(".") for name in parameters]
    parts = {".".join(each[:end]) for each in words for end in range(1, len(each) + 1)}
    for part in wanted:
        if part not in parts:
            near = get_close_matches(part, parts, n=1) or sorted(parts)[:1]
            raise ValueError(
                f"no parameter that is trained has a name that begins with {part!r}, as "
                f"lr_factors has it: the nearest is {near[0]!r}"
            )
    found: dict[nn.Parameter, float] = {}
    for part in sorted(wanted, key=len):  # the longest one counts
        found |= {
            p: wanted[part] for n, p in parameters.items() if n == part or n.startswith(f"{part}.")
        }
    return found


def _cap(weights: Tensor, max_relative_update: float, protection: Tensor | None = None) -> float:
    if weights.ndim < 2 or not weights.numel() or not torch.isfinite(weights).all():
        return math.inf
    norm = spectral_norm(weights)
    # A step that moves every weight by the learning rate has at most lr·√(number of weights).
    cap = max_relative_update * norm / math.sqrt(weights.numel())
    if protection is not None:  # which makes a step that goes everywhere so much longer
        cap /= float(protection.norm()) / math.sqrt(len(protection))
    return cap if cap > 0.0 else math.inf  # no cap for weights that are zero
