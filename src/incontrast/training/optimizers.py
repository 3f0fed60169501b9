"""What takes the steps, once the schedule has said how far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number, given
from incontrast.extras import needed
from incontrast.import_path import as_import_path
from incontrast.names import NamedArguments

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
