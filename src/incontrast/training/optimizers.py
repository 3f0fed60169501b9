"""What takes the steps, once the schedule has said how far, and what averages them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number
from incontrast.heads import named_parameters
from incontrast.import_path import as_import_path
from incontrast.names import NamedArguments

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimiser of a run, whose learning rate is set before every step.

``functools.partial(torch.optim.SGD, momentum=0.9)`` is one.
"""

LEAST = 1 / 32  # of a learning rate: a layer that begins next to nothing must be able to grow


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
        if self.max_norm is not None:
            check_number("(0, inf)", "None clips nothing", max_norm=self.max_norm)
        for part, factor in self.lr_factors.items():
            freeze = "freeze a part with requires_grad_(False)"
            check_number("(0, inf)", freeze, **{f"the factor of {part!r}": factor})
        share, advice = self.max_relative_update, "it is a share of a layer; None sets no cap"
        if share is not None:
            check_number("(0, 1]", advice, max_relative_update=share)


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
        return _FusedAdam(parameters, weight_decay=self.weight_decay, fused=True)


class _FusedAdam(torch.optim.AdamW):
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
        _check_dense(weights)
        zeros = torch.zeros_like(weights, memory_format=torch.preserve_format)
        state = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": zeros,
            "exp_avg_sq": zeros.clone(),
        }
        self.state[weights] = state
        return state


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
        return _Muon(parameters, self.momentum)


TABLE = "is_table"


def mark_tables(encoder: nn.Module) -> None:
    """Tell ``Muon`` which weights are looked up by number: a step uses few rows of them."""
    for module in encoder.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            setattr(module.weight, TABLE, True)


def _is_matrix(weights: Tensor) -> bool:
    if weights.ndim < 2 or not weights.numel() or getattr(weights, TABLE, False):
        return False
    return min(len(weights), weights[0].numel()) > 1


def _check_dense(weights: Tensor) -> None:
    if weights.grad is not None and weights.grad.is_sparse:
        raise ValueError(
            "the optimiser takes no sparse gradients: make the embedding with sparse=False, or "
            "give another, such as optimizer=torch.optim.SparseAdam"
        )


class _Muon(_FusedAdam):
    def __init__(self, parameters: list[nn.Parameter], momentum: float) -> None:
        matrices = [p for p in parameters if _is_matrix(p)]
        others = [p for p in parameters if not _is_matrix(p)]
        groups = [{"params": part} for part in (matrices, others) if part]
        super().__init__(groups, weight_decay=0.0, fused=True)
        self.momentum = momentum
        self.norms: dict[Tensor, float] = {
            p: max(_spectral_norm(p), NEXT_TO_NOTHING) for p in matrices
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
        past = [(self.state[p] or self._begin(p))["exp_avg"] for p in weights]
        torch._foreach_mul_(past, self.momentum)
        torch._foreach_add_(past, gradients)
        ahead = torch._foreach_add(gradients, past, alpha=self.momentum)
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

    def _begin(self, weights: Tensor) -> dict[str, Tensor]:
        if weights not in self.norms:
            return super()._begin(weights)
        _check_dense(weights)
        # Under torch's names, who expects a step of every parameter of AdamW
        self.state[weights] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weights)}
        state: dict[str, Tensor] = self.state[weights]
        return state


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
    gram = torch.bmm(x, x.mT)
    first = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b·G + c·G²
    if 2 * wide.shape[2] <= 3 * wide.shape[1]:
        x = torch.baddbmm(x, first, x, beta=a)
        gram = torch.bmm(x, x.mT)
        second = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        return torch.baddbmm(x, second, x, beta=a)
    # On Gram matrices alone until the end: of wide ones that is a fraction of the work.
    gram = torch.baddbmm(gram, first, gram, beta=a)
    gram = torch.baddbmm(gram, gram, first, beta=a)
    second = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    both = torch.baddbmm(first + second, second, first, beta=a)  # (a + second)·(a + first) − a²
    return torch.baddbmm(x, both, x, beta=a * a)


def protected(step: Tensor, factor: Tensor) -> Tensor:
    """A step (out, in, …) times a factor over patches or, where that is smaller, inputs.

    >>> factor = torch.diag(torch.tensor([0.0, 2.0]))
    >>> protected(torch.ones(1, 2, 3), factor).tolist()
    [[[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]]
    """
    if len(factor) == step[0].numel():
        return (step.flatten(1) @ factor).view_as(step)
    rows = step.movedim(1, -1)
    product: Tensor = rows.reshape(-1, len(factor)) @ factor
    return product.view(rows.shape).movedim(-1, 1)


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
        try:
            from prodigyopt import Prodigy as Optimizer
        except ImportError as error:
            raise ImportError(
                'Prodigy() needs prodigyopt: pip install "incontrast[prodigy]"'
            ) from error
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
        if isinstance(optimizer, _Muon):  # knows its steps: no need to find them by subtraction
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
    parts = {name[:end] for name in parameters for end in _ends_of_parts(name)}
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


def _ends_of_parts(name: str) -> list[int]:
    return [place for place, sign in enumerate(name) if sign == "."] + [len(name)]


def _cap(weights: Tensor, max_relative_update: float, protection: Tensor | None = None) -> float:
    if weights.ndim < 2 or not weights.numel() or not torch.isfinite(weights).all():
        return math.inf
    norm = _spectral_norm(weights)
    # A step that moves every weight by the learning rate has at most lr·√(number of weights).
    cap = max_relative_update * norm / math.sqrt(weights.numel())
    if protection is not None:  # which makes a step that goes everywhere so much longer
        cap /= float(protection.norm()) / math.sqrt(len(protection))
    return cap if cap > 0.0 else math.inf  # no cap for weights that are zero


def _spectral_norm(weights: Tensor) -> float:
    if not torch.isfinite(weights).all():  # the first step will say what is wrong
        return 0.0
    matrix = weights.detach().flatten(1).float().cpu()  # not every device has eigenvalues
    narrow = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return float(torch.linalg.eigvalsh(narrow @ narrow.T)[-1].clamp_min(0.0).sqrt())


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
