"""Steps that spare old items: small along what their activations use, large along the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, multi_head_attention_forward, unfold
from torch.overrides import TorchFunctionMode

from incontrast.bounds import check_number, check_whole
from incontrast.names import NamedArguments
from incontrast.training.engine import Engine
from incontrast.training.task import NONE, BatchIndices, Task

BATCH = 64  # old items that are embedded at a time
ROWS = 16_384  # inputs of a layer that are taken from one batch: neighbouring ones are alike
WIDEST = 1_152  # of a covariance over patches; a wider convolution has one over its channels
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


@dataclass(frozen=True, kw_only=True)
class Protection(NamedArguments):
    """How far steps go along the directions that old items use.

    A layer's weights meet its inputs a in W·a. Where old items have no inputs, W can change and
    old items stay where they are. With A = mean of a·aᵀ over old items and e = ``damping`` times
    the mean eigenvalue of A, a step ΔW becomes ``boost`` · ΔW · e(A + e)⁻¹: next to nothing along
    what old items use most, ``boost`` times as far along what they do not use. It is the input
    half of K-FAC (Martens & Grosse 2015) with old items' statistics, and a soft form of Adam-NSCL
    (Wang et al. 2021), which steps in the null space of A alone.

    The encoder of before tells A, from views of some old items. Weights of linear layers, of
    convolutions without groups and of ``nn.MultiheadAttention`` (of self-attention) are protected;
    all others step as they would.

    Args:
        damping: What counts as used: 0.1 protects more directions, 1 fewer.
        boost: Factor of the learning rate where old items have no inputs.
        items: Old items whose views are embedded to measure A.
    """

    damping: float = 0.3
    boost: float = 4.0
    items: int = 128

    def __post_init__(self) -> None:
        check_number("(0, inf)", "it is a share of the mean eigenvalue", damping=self.damping)
        check_number("(0, inf)", "1 is the learning rate itself", boost=self.boost)
        check_whole(1, items=self.items)

    def factors(self, task: Task) -> dict[nn.Parameter, Tensor]:
        """(m, m) for each protected weight of ``task.encoder``: what to multiply its steps by."""
        if task.before is None or not task.increment.stored:
            return {}
        pairs = list(zip(task.before.parameters(), task.encoder.parameters(), strict=True))
        watch = _InputCovariances([old for old, new in pairs if new.requires_grad and old.ndim > 1])
        draws = task.generator("protection")
        chosen = torch.randperm(task.increment.stored, generator=draws)[: self.items]
        batches = [BatchIndices(places, NONE) for places in torch.split(chosen, BATCH)]
        task.before.eval()
        with torch.no_grad():
            for batch in task.view_batches(batches, draws):
                with watch:
                    task.embed(batch.views, encoder=task.before)
        # A process may have had no input for a layer: the first one says which layers count.
        sizes = [len(watch.sums[old]) if old in watch.sums else 0 for old, _ in pairs]
        sizes = task.engine.broadcast(sizes)
        means = watch.means([old for old, _ in pairs], sizes, task.engine)
        measured = {new: mean for (_, new), mean in zip(pairs, means, strict=True) if len(mean)}
        # What is computed alike may still differ by a bit between processes.
        found = task.engine.broadcast([self._factor(mean.cpu()) for mean in measured.values()])
        return {
            new: factor.to(new.device, new.dtype)
            for new, factor in zip(measured, found, strict=True)
        }

    def _factor(self, covariance: Tensor) -> Tensor:
        """boost · e(A + e)⁻¹."""
        everywhere = self.boost * torch.eye(len(covariance), dtype=torch.float64)
        if not torch.isfinite(covariance).all():  # the first step will say what is wrong
            return everywhere
        used, directions = torch.linalg.eigh(covariance.double())
        e = self.damping * used.clamp_min(0.0).mean()
        if not 0.0 < float(e) < math.inf:  # a layer that old items do not reach
            return everywhere
        kept = self.boost * e / (used.clamp_min(0.0) + e)
        factor: Tensor = (directions * kept) @ directions.T
        return factor


class _InputCovariances(TorchFunctionMode):
    """Sums of a·aᵀ over the inputs of layers with these weights, and how many they are.

    It watches functions, not modules: an encoder may use a layer's weights without calling it.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self._weights = set(weights)
        self.sums: dict[Tensor, Tensor] = {}
        self.rows: dict[Tensor, Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if len(args) > 1 and isinstance(args[1], Tensor) and args[1] in self._weights:
            if function is linear:
                self._add(args[1], args[0].reshape(-1, args[0].shape[-1]))
            elif function in CONVOLUTIONS:
                inputs = _patches(function, *args, **kwargs)
                if inputs is not None:
                    self._add(args[1], inputs)
        if function is multi_head_attention_forward:
            self._add_attention(*args, **kwargs)
        return function(*args, **kwargs)

    def means(
        self, weights: Sequence[Tensor], sizes: Sequence[int], engine: Engine
    ) -> list[Tensor]:
        """(size, size) for each of these weights, over the inputs of all processes."""
        none = weights[0].new_zeros((), dtype=torch.float32)
        sums = [self.sums.get(w, none.expand(n, n)) for w, n in zip(weights, sizes, strict=True)]
        rows = [self.rows.get(weight, none) for weight in weights]
        # In one message.
        total = engine.all_reduce(torch.cat([part.reshape(-1) for part in (*sums, *rows)]))
        *sums, counts = torch.split(total, [*(n * n for n in sizes), len(rows)])
        each = zip(sums, sizes, counts.clamp_min(1.0), strict=True)
        return [part.view(n, n) / count for part, n, count in each]

    def _add_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **how: Any
    ) -> None:
        """The inputs of both projections; that of the second is the result with no projection."""
        packed, out = rest[2], rest[8]
        if query is key and key is value and packed in self._weights:
            self._add(packed, query.reshape(-1, query.shape[-1]))
        if out in self._weights:
            plain = [*rest[:8], torch.eye(len(out)).to(out), None, *rest[10:]]
            inner, _ = multi_head_attention_forward(query, key, value, *plain, **how)
            self._add(out, inner.reshape(-1, inner.shape[-1]))

    def _add(self, weight: Tensor, inputs: Tensor) -> None:
        inputs = inputs[:: max(-(-len(inputs) // ROWS), 1)].float()
        if weight not in self.sums:
            self.sums[weight] = inputs.new_zeros(inputs.shape[1], inputs.shape[1])
            self.rows[weight] = inputs.new_zeros(())
        self.sums[weight] += inputs.T @ inputs
        self.rows[weight] += len(inputs)


def _patches(
    function: Callable[..., Any],
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor | None:
    """(rows, in) or (rows, in · kernel): what the weights of a convolution are multiplied by."""
    if groups != 1:
        return None
    if images.ndim < weight.ndim:  # one without a batch
        images = images[None]
    if function is not torch.conv2d or isinstance(padding, str) or weight[0].numel() > WIDEST:
        return images.movedim(1, -1).flatten(0, -2)
    steps = (stride, stride) if isinstance(stride, int) else stride
    places = images.shape[0] * images.shape[2] * images.shape[3] / math.prod(steps)
    apart = max(math.isqrt(int(places / ROWS)), 1)  # a coarser grid of patches where there are many
    found = unfold(
        images, weight.shape[2:], dilation, padding, tuple(apart * step for step in steps)
    )
    return found.movedim(1, -1).flatten(0, -2)
