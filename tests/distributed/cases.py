"""What is trained by one process and by many: every kind of data, every kind of step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

import incontrast as ic
from incontrast.domains.graphs.collection import GraphCollection
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.progress import Progress
from incontrast.training.task import Increment, Task

OLD, NEW = 37, 41  # neither divides by 2 or 4, nor do the batches below
STEPS = 8


class WideImages(ic.Images):
    """Images whose views are of double precision."""

    def own_views(self, batch: Tensor, *others: Any) -> Tensor:
        return super().own_views(batch.double(), *others)


def vectors(wide: bool) -> tuple[ic.Domain, Any]:
    rows = torch.randn(OLD + NEW, 6, generator=Generator().manual_seed(1))
    rows[OLD:] += 1.0
    domain = ic.Vectors(6, hidden=16, out=8)
    items = ic.TensorCollection(rows.double() if wide else rows)
    return domain.fit_statistics(items), items


def images(wide: bool) -> tuple[ic.Domain, Any]:
    kind = WideImages if wide else ic.Images
    domain = kind(8, 1, encoder="small", views=ic.ImageViews(blur=0.5))
    return domain, domain.collect(pixels(OLD + NEW))


def pixels(count: int) -> Tensor:
    """Pictures of 8×8 pixels that need no file to be read: shades from edge to edge."""
    corners = torch.randint(256, (count, 1, 3, 3), generator=Generator().manual_seed(2))
    return nn.functional.interpolate(corners.float(), (8, 8), mode="bilinear").byte()


def graphs(wide: bool) -> tuple[ic.Domain, Any]:
    draws = Generator().manual_seed(3)
    pairs = []
    for _ in range(OLD + NEW):
        nodes = int(torch.randint(1, 12, (), generator=draws))
        upper = torch.triu(torch.rand(nodes, nodes, generator=draws) < 0.4, diagonal=1)
        edges = (upper | upper.T).nonzero().T
        pairs.append((edges, torch.randn(nodes, 4, generator=draws)))
    items = ic.Graphs().collect(pairs)
    if wide:
        items = GraphCollection(items.x.double(), items.edge_index, items.node_ptr, items.edge_ptr)
    return ic.Graphs(hidden=8, drop=0.6).fit_statistics(items), items


def texts(wide: bool) -> tuple[ic.Domain, Any]:
    lines = [f"{'many ' * (number % 5)}word {number}" for number in range(OLD + NEW)]
    items = ic.Text().collect(lines)
    domain = ic.Text(encoder="transformer", width=32, views=ic.TextViews(shuffle=2.0))
    return domain.fit_statistics(items), items


DATA = {"vectors": vectors, "images": images, "graphs": graphs, "texts": texts}
JOINT = ic.ICL(
    batch_size=11, old_batch_size=10, max_epochs=1, epoch_steps=STEPS, optimizer=ic.Adam()
)
STRATEGIES: dict[str, ic.Strategy] = {
    "NCE-I": ic.WarmStart(batch_size=21, max_epochs=2),
    "ICL, retention 0": replace(JOINT, retention=0.0),
    "ICL, retention 1": JOINT,
    "ICL, capped": replace(JOINT, optimizer=ic.ICL().optimizer),
    "meta, order 1": replace(JOINT, meta=ic.Meta(order=1, steps=2, lr=0.01)),
    "meta, order 2": replace(JOINT, meta=ic.Meta(steps=2, query="both", lr=0.01)),
    "distilled": ic.Distill(batch_size=11, max_epochs=2),
}


def gentle(strategy: ic.Strategy) -> ic.Strategy:
    """The same at a small learning rate, with ``plain`` steps."""
    settings: dict[str, Any] = {"lr": 1e-4, "optimizer": plain}
    if isinstance(strategy, ic.ICL) and strategy.meta is not None:
        settings["meta"] = replace(strategy.meta, lr=1e-3)
    return replace(strategy, **settings)


def plain(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimiser in Adam's place that does not amplify rounding.

    Adam divides a gradient by its own size, so that rounding is a whole step where it is nothing
    else; and whether a value is above ReLU's zero is all or nothing. In single precision both make
    large differences of the order of sums, in one process as well.
    """
    return torch.optim.SGD(parameters, momentum=0.9)


def trained(data: str, strategy: ic.Strategy, engine: Engine, *, wide: bool) -> dict[str, Tensor]:
    """Losses and gradients of every step, and the weights after all.

    Args:
        data: Which.
        strategy: How.
        engine: One process, or many.
        wide: In double precision.
    """
    domain, items = DATA[data](wide)
    order = torch.arange(len(items))
    old, new = items.select(order[:OLD]), items.select(order[OLD:])
    with seeded(0, "test"):
        encoder = domain.encoder()
    if wide:
        encoder = encoder.double()
    task = Task(
        encoder,
        domain,
        Increment(old, new, OLD),
        objective=Objective(),
        engine=engine,
        seed=0,
    )
    seen: dict[str, Tensor] = {}

    def look(progress: Progress) -> None:
        if progress.finished is None:
            seen[f"loss {progress.steps}"] = torch.tensor(progress.loss, dtype=torch.float64)
            for name, parameter in encoder.named_parameters():
                assert parameter.grad is not None
                seen[f"gradient {progress.steps} {name}"] = parameter.grad.clone()

    run = train(task, strategy, callbacks=[look])
    assert run.steps == STEPS, run.steps
    seen["passes"] = torch.tensor(run.forward_passes, dtype=torch.float64)
    return seen | {f"weight {name}": value for name, value in encoder.state_dict().items()}
