"""No step waits for the device: training runs on one that cannot be read from.

Tensors on torch's ``meta`` device have shapes but no values. Whatever needs a value on the host,
``item()``, ``bool()``, ``nonzero()``, a copy to the CPU, raises an error there, where an
accelerator would make the host wait.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import incontrast as ic
from incontrast.loss import Objective
from incontrast.strategies.hard_negatives import HardSampler
from incontrast.training.averages import train_mode
from incontrast.training.engine import Engine, _Pinned
from incontrast.training.loop import UNLIMITED, UNREAD, Training
from incontrast.training.task import Increment, Task

OLD, NEW = 60, 50
ADAM = functools.partial(torch.optim.Adam, foreach=True)  # fused Adam knows no such device


def vectors() -> tuple[ic.Domain, Any, int]:
    rows = torch.randn(OLD + NEW, 5, generator=Generator().manual_seed(0))
    return ic.Vectors(5), ic.Vectors(5).collect(rows), 1


def images() -> tuple[ic.Domain, Any, int]:
    domain = ic.Images(8, 3, encoder="small", views=ic.ImageViews(blur=0.5))
    draws = Generator().manual_seed(0)
    pixels = torch.randint(256, (OLD + NEW, 8, 8, 3), generator=draws, dtype=torch.uint8)
    return domain, domain.collect(pixels), 1


def graphs() -> tuple[ic.Domain, Any, int]:
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    items = [(path, torch.randn(3, 2)) for _ in range(OLD + NEW)]
    return ic.Graphs(hidden=4), ic.Graphs().collect(items), 0  # the thread that makes views copies


def texts(encoder: str = "transformer") -> tuple[ic.Domain, Any, int]:
    items = ic.Text().collect([f"text {number} of some words" for number in range(OLD + NEW)])
    return ic.Text(encoder=encoder, width=32), items, 0


def bags_of_tokens() -> tuple[ic.Domain, Any, int]:
    return texts("ngrams")


KINDS = [vectors, images, graphs]


class Given(ic.Protection):
    """What is measured before the first step is given: numbers are what a device here lacks."""

    def factors(self, task: Task) -> dict[torch.nn.Parameter, Tensor]:
        weights = [p for p in task.encoder.parameters() if p.ndim > 1]
        return {p: torch.eye(p[0].numel(), device=p.device) for p in weights}


class GivenNeighbours(ic.HardNegatives):
    def sampler(self, task: Task) -> HardSampler:
        stored, new = task.increment.stored, task.increment.new_count
        rows = torch.arange(new)
        return HardSampler(torch.arange(stored), torch.rand(new, stored), rows, task.draws)


STRATEGIES = [
    ic.ICL(protection=Given(), hard_negatives=GivenNeighbours(), epoch_steps=1),  # ICL() itself
    ic.ICL(optimizer=ADAM, protection=Given(), hard_negatives=None, epoch_steps=1),
    ic.ICL(
        optimizer=ADAM,
        protection=None,
        hard_negatives=None,
        epoch_steps=1,
        retention=0.0,
        meta=ic.Meta(steps=1),
    ),
    ic.WarmStart(optimizer=ADAM),
    ic.FineTune(optimizer=ADAM),
    ic.Distill(optimizer=ADAM),
    ic.Replay(optimizer=ADAM, lr=ic.Cosine(1e-3)),
]


def training(kind: Any, strategy: ic.Strategy, device: str) -> Training:
    domain, items, _ = kind()
    domain = domain.fit_statistics(items)
    old, new = items.select(torch.arange(OLD)), items.select(torch.arange(OLD, OLD + NEW))
    task = Task(
        train_mode(domain.encoder().to(device)),
        domain,
        Increment(old, new, 2 * OLD),  # memory holds a sample of what was seen
        objective=Objective(),
        engine=Engine(device),
        seed=0,
        before=domain.encoder().to(device),
    )
    items = strategy.epoch_items(task.increment)
    return Training(task, strategy, items, UNLIMITED, (), None, None)


class Copies(TorchDispatchMode):
    """Counts what is copied from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        places = {leaf.device.type for leaf in tensors((args, kwargs))}
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            to = {leaf.device.type for leaf in tensors(result)}
            self.count += "cpu" in places and "meta" in to
        return result


def tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


@pytest.fixture
def fused_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused Adam's kernel where there is none, and norms of layers of before the first step."""

    def kernel(weights: list[Tensor], gradients: list[Tensor], *_: Any, **how: Any) -> None:
        torch._foreach_add_(weights, gradients, alpha=-how["lr"])

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    monkeypatch.setattr("incontrast.training.optimizers.spectral_norm", lambda weights: 1.0)


@pytest.mark.usefixtures("fused_steps")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}-{s.lr}")
@pytest.mark.parametrize("kind", [*KINDS, texts, bags_of_tokens], ids=lambda kind: kind.__name__)
def test_no_step_waits_for_the_device(kind: Any, strategy: ic.Strategy) -> None:
    run = training(kind, strategy, "meta")
    assert run.epoch() is None
    assert 1 < run.steps < UNREAD  # losses are read after so many steps, all at once


@pytest.mark.usefixtures("fused_steps")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_step_copies_its_batch_to_the_device_and_nothing_else(kind: Any) -> None:
    run = training(
        kind, ic.ICL(protection=Given(), hard_negatives=GivenNeighbours(), epoch_steps=1), "meta"
    )
    run.epoch()  # constants are moved once
    steps = run.steps
    with Copies() as copies:
        run.epoch()
    assert copies.count == (run.steps - steps) * kind()[2]


def test_what_goes_to_an_accelerator_goes_by_way_of_pinned_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No device here has pinned memory, nor CUDA: it is seen which calls are made."""
    calls: list[Any] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append((func.__name__, kwargs or None))
            moves = func in (Tensor.pin_memory, Tensor.to)
            return args[0] if moves else func(*args, **(kwargs or {}))

    rows = torch.ones(3, 2)
    with Watch(), _Pinned():
        rows.to("cuda")
        rows.to(torch.float64)  # stays where it is
        rows.to("cuda", torch.float64, False)  # says how by itself
    found = [call for call in calls if call[0] in ("pin_memory", "to")]
    plain = ("to", None)
    assert found == [("pin_memory", None), ("to", {"non_blocking": True}), plain, plain]


def test_waiting_is_noticed() -> None:
    """The test can fail: a strategy that reads its loss is found out."""

    class Reading(ic.FineTune):
        def loss(self, *arguments: Any) -> Tensor:
            loss = super().loss(*arguments)
            return loss * (1.0 if loss.item() > 0 else 2.0)

    with pytest.raises(RuntimeError, match="meta"):
        training(vectors, Reading(optimizer=ADAM), "meta").epoch()
