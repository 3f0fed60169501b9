"""One training step against the encoder's own forward and backward pass on the same batch.

    python benchmarks/step.py

A step is everything: drawing items, views, forward, loss, backward, optimiser, averaging. Both are
timed in turns, so that noise of the machine hits both, and the median of their ratios is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Literal

import torch

import incontrast as ic
import real_data
from incontrast.randomness import seeded
from incontrast.training.contrast import Objective
from incontrast.training.engine import Engine
from incontrast.training.increment import Increment
from incontrast.training.loop import train
from incontrast.training.task import Task

ROUNDS = 9
SUPPORT = 3  # support steps of a meta step


def make_task(domain: ic.Domain, items: ic.Collection) -> Task:
    domain = domain.bind(items)
    old, new = ic.streams.by_growth(items, 0.3)
    with seeded(0, "benchmark"):
        encoder = domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(old, new, len(old)),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
    )


def plain_passes(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds per step of the encoder alone on as many batches as the strategy loads."""
    batches = []
    original = task.embed

    def remember(views: object, **settings: object) -> object:
        batches.append(views)
        return original(views, **settings)

    task.embed = remember  # type: ignore[method-assign]
    train(task, strategy, budget=ic.Budget(passes=task.passes + 1))  # one step, to know its size
    per_step = len(batches)
    size = sum(len(views) for views in batches)
    train(task, strategy, budget=ic.Budget(passes=task.passes + size * (steps - 1) + 1))
    task.embed = original  # type: ignore[method-assign]

    def run() -> float:
        task.encoder.train()
        begin = time.perf_counter()
        for views in batches:
            for parameter in task.encoder.parameters():
                parameter.grad = None
            task.encoder(views).square().mean().backward()
        return (time.perf_counter() - begin) / len(batches) * per_step

    return run


def whole_steps(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    def run() -> float:
        before = task.passes
        ran = train(task, strategy, budget=ic.Budget(passes=1 + task.passes))
        size = ran.passes - before
        ran = train(task, strategy, budget=ic.Budget(passes=task.passes + size * steps - 1))
        return ran.history[-1].seconds / ran.steps

    return run


def compare(name: str, task: Task, strategy: ic.Strategy, steps: int) -> None:
    encoder_alone = plain_passes(task, strategy, steps)
    step = whole_steps(task, strategy, steps)
    encoder_alone(), step()  # warm up
    report(name, [(encoder_alone(), step()) for _ in range(ROUNDS)])


def compare_meta(name: str, task: Task, order: Literal[1, 2], steps: int) -> None:
    meta = whole_steps(task, ic.ICL(meta=ic.Meta(order=order, steps=SUPPORT)), steps)
    plain = whole_steps(task, ic.ICL(), steps * (SUPPORT + 1))
    plain(), meta()  # warm up
    report(name, [((SUPPORT + 1) * plain(), meta()) for _ in range(ROUNDS)])


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    ratio = statistics.median(whole / base for base, whole in pairs)
    base, whole = (1000 * statistics.median(values) for values in zip(*pairs, strict=True))
    print(f"{name:<44}{base:>10.2f}{whole:>10.2f}{ratio:>8.2f}×")


def main() -> None:
    for threads in (1, 2):
        torch.set_num_threads(threads)
        print(f"\n{threads} thread(s) for torch's operations, medians of {ROUNDS} rounds")
        print(f"{'':<44}{'encoder':>10}{'step':>10}{'ratio':>9}   (ms, ms)")
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (512, 3, 32, 32), dtype=torch.uint8, generator=generator)
        colour = ic.Images(32)
        sets = {
            "ResNet-18, 32 px": (make_task(colour, colour.collect(pixels)), 3),
            "GCN, PROTEINS": (make_task(ic.Graphs(), real_data.graphs("PROTEINS").items), 40),
            "GCN, REDDIT-BINARY": (
                make_task(ic.Graphs(), real_data.graphs("REDDIT-BINARY").items),
                20,
            ),
        }
        for name, (task, steps) in sets.items():
            compare(f"{name}: step of NCE-I, 32 items", task, ic.WarmStart(), steps)
            compare(f"{name}: joint step of ICL, 32 + 32", task, ic.ICL(), steps)
        small = ic.Images(28, 1, encoder="small")
        grey = torch.randint(256, (1000, 28, 28), dtype=torch.uint8, generator=generator)
        print(f"{'':<44}{'plain':>10}{'meta':>10}{'ratio':>9}   (ms for the same encoder passes)")
        for name, task, steps in (
            ("GCN, PROTEINS", sets["GCN, PROTEINS"][0], 10),
            ("small encoder, 28 px", make_task(small, small.collect(grey)), 5),
        ):
            for order in (1, 2):
                compare_meta(f"{name}: order {order}, S = {SUPPORT}", task, order, steps)


if __name__ == "__main__":
    main()
