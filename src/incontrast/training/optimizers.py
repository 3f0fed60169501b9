"""What takes the steps, once the schedule has said how far: capped, scaled by part, protected."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number, given
from incontrast.extras import needed
from incontrast.heads import named_parameters
from incontrast.import_path import as_import_path
from incontrast.names import NamedArguments
from incontrast.training.orthogonal import NEXT_TO_NOTHING, orthogonalised, protected, spectral_norm

LEAST = 1 / 32  # of a learning rate: a layer that begins next to nothing must be able to grow

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimiser of a run, whose learning rate is set before every step.

``functools.partial(torch.optim.SGD, momentum=0.9)`` is one.
"""


@dataclass(frozen=True, kw_only=True)
class _Steps(NamedArguments):
    """How far the steps of an optimiser go.

    Args:
        max_norm: Gradients are scaled down to this norm over all parameters; None clips nothing.
        lr_factors: Factors of the learning rate for parts of the encoder, by the beginnings of
            their parameters' names: ``{"layer1": 0.1, "head": 10.0}``. The longest one counts.
        max_relative_update: A layer's learning rate is capped where moving every weight by it
            changes the layer, as it is when a run begins, by this share in spectral norm; None
            sets no cap. Adam's first steps are like that: what is little for a narrow layer tears
            a wide one apart, whose weights are small and many (benchmarks/wide.py).
    """

    max_norm: float | None = None
    lr_factors: Mapping[str, float] = field(default_factory=dict, hash=False)
    max_relative_update: float | None = None

    def __post_init__(self) -> None:
        check_number("(0, inf)", "None clips nothing", **given(max_norm=self.max_norm))
        for part, factor in self.lr_factors.items():
            freeze = "freeze a part with requires_grad_(False)"
            check_number("(0, inf)", freeze, **{f"the factor of {part!r}": factor})
        advice = "it is a share of a layer; None sets no cap"
        check_number("(0, 1]", advice, **given(max_relative_update=self.max_relative_update))


@dataclass(frozen=True, kw_only=True)
class Adam(_Steps):
    """Kingma & Ba 2015, with torch's settings.

    Args:
        weight_decay: Decoupled, as in AdamW (Loshchilov & Hutter 2019).
    """

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("[0, inf)", weight_decay=self.weight_decay)

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return FusedAdam(parameters, weight_decay=self.weight_decay, fused=True)


class FusedAdam(torch.optim.AdamW):
    """torch's fused AdamW without the checks and records around each step.

    They take longer than the step itself where an encoder is small.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return
        states = [self.state[p] or self._begin(p) for p in weights]
        means, squares, steps = (
            [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            [p.grad for p in weights],
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it in its records

    def _begin(self, weights: Tensor) -> dict[str, Tensor]:
        check_dense([weights])
        zeros = torch.zeros_like(weights, memory_format=torch.preserve_format)
        state = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": zeros,
            "exp_avg_sq": zeros.clone(),
        }
        self.state[weights] = state
        return state


def check_dense(weights: Sequence[Tensor]) -> None:
    if any(p.grad is not None and p.grad.is_sparse for p in weights):
        raise ValueError(
            "the optimiser takes no sparse gradients: make the embedding with sparse=False, or "
            "give another, such as optimizer=torch.optim.SparseAdam"
        )


TABLE = "is_table"


def mark_tables(encoder: nn.Module) -> None:
    """Tell optimisers which weights are looked up by number: a step uses few rows of them."""
    for module in encoder.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            setattr(module.weight, TABLE, True)


@dataclass(frozen=True, kw_only=True)
class Muon(NamedArguments):
    """Steps that go equally far along all directions of a layer (Jordan et al. 2024).

    Adam's steps follow the few directions that most gradients share. Here the momentum of a layer
    becomes a matrix near it with about equal singular values, and the learning rate is relative: a
    step changes a layer by ``lr`` times the spectral norm that it had when the run began. Vectors
    (biases, BatchNorm), single rows and tables of embeddings take Adam's steps at the same ``lr``.

    Args:
        momentum: Weight of the past gradients; Nesterov's.
    """

    momentum: float = 0.6

    def __post_init__(self) -> None:
        check_number("[0, 1)", "it is the weight of the past", momentum=self.momentum)

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return OrthogonalSteps(parameters, self.momentum)


def _is_matrix(weights: Tensor) -> bool:
    if weights.ndim < 2 or not weights.numel() or getattr(weights, TABLE, False):
        return False
    return min(len(weights), weights[0].numel()) > 1


class OrthogonalSteps(FusedAdam):
    def __init__(self, parameters: list[nn.Parameter], momentum: float) -> None:
        matrices = [p for p in parameters if _is_matrix(p)]
        others = [p for p in parameters if not _is_matrix(p)]
        groups = [{"params": part} for part in (matrices, others) if part]
        super().__init__(groups, weight_decay=0.0, fused=True)
        self.momentum = momentum
        self.norms: dict[Tensor, float] = {
            p: max(spectral_norm(p), NEXT_TO_NOTHING) for p in matrices
        }
        self.protection: dict[Tensor, Tensor] = {}  # what steps are multiplied by

    def _step(self, group: dict[str, Any]) -> None:
        if group["params"][0] not in self.norms:
            super()._step(group)
            return
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return
        gradients = [p.grad for p in weights]
        if begun := [p for p in weights if not self.state[p]]:
            check_dense(begun)
        for p in begun:  # under torch's names, who expects a step of every parameter of AdamW
            self.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}
        past = [self.state[p]["exp_avg"] for p in weights]
        torch._foreach_lerp_(past, gradients, 1.0 - self.momentum)
        ahead = torch._foreach_lerp(gradients, past, self.momentum)  # whose length does not count
        # Those of one shape, lying or standing, are one batch: few and large operations.
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for p, step in zip(weights, ahead, strict=True):
            matrix = step.flatten(1)
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            alike.setdefault((wide.shape, p.dtype, p.device), []).append((p, wide))
        for members in alike.values():
            matrices = [wide for _, wide in members]
            steps = orthogonalised(
                torch.stack(matrices) if len(matrices) > 1 else matrices[0][None]
            )
            for (p, _), wide in zip(members, steps, strict=True):
                step = (wide if len(wide) == len(p) else wide.T).view_as(p)
                if p in self.protection:
                    step = protected(step, self.protection[p])
                p.add_(step, alpha=-group["lr"] * self.norms[p])


@dataclass(frozen=True, kw_only=True)
class Optimizer(_Steps):
    """Any other torch optimiser, with steps that are clipped, capped or scaled by part.

    Args:
        factory: Given parameters, a ``torch.optim.Optimizer``; also by import path,
            ``"torch.optim:SGD"``. Alone, without this class around it, it can be a strategy's
            ``optimizer`` too.
    """

    factory: OptimizerFactory | str

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "factory", as_import_path(self.factory))

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        assert callable(self.factory)
        return self.factory(parameters)


@dataclass(frozen=True)
class Prodigy(NamedArguments):
    """Mishchenko & Defazio 2024: Adam that estimates its own step size (extra ``prodigy``).

    Use it with ``lr=1.0``: the learning rate then only scales the estimate.
    """

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        with needed("Prodigy() needs prodigyopt", "prodigy"):
            from prodigyopt import Prodigy as Optimizer
        optimizer: torch.optim.Optimizer = Optimizer(parameters, use_bias_correction=True)
        return optimizer


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
