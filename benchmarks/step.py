"""One training step against the encoder's own forward and backward pass on the same batch.

    python benchmarks/step.py

A step is everything: drawing items, views, forward, loss, backward, optimiser, averaging. Both are
timed in turns, so that noise of the machine hits both, and the median of their ratios is shown.
Times are of the processor, one thread: other programs disturb them little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

import torch

import incontrast as ic
import real_data
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, Task

ROUNDS = 9
SUPPORT = 3  # support steps of a meta step


def make_task(domain: ic.Domain, items: ic.Collection) -> Task:
    domain = domain.fit_statistics(items)
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


def one_step(task: Task, strategy: ic.Strategy) -> list[Any]:
    """The batches of views that one step embeds."""
    batches = task.view_batches(strategy.sample(task))
    meta = getattr(strategy, "meta", None)
    supports = 0 if meta is None else meta.support_steps(task.growth_ratio)
    return [batch.views for batch in islice(batches, 1 + supports)]


def encoder_alone(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds that the encoder takes for the batches of a step, forward and backward."""
    batches = [views for _ in range(steps) for views in one_step(task, strategy)]

    def run() -> float:
        task.encoder.train()
        begin = time.process_time()
        for views in batches:
            for parameter in task.encoder.parameters():
                parameter.grad = None
            task.encoder(views).square().mean().backward()
        return (time.process_time() - begin) / steps

    return run


def whole_steps(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds that a step takes."""
    size = sum(len(views) for views in one_step(task, strategy))

    def run() -> float:
        marks: list[float] = []  # after each step, and after each epoch
        budget = ic.Budget(forward_passes=task.forward_passes + size * steps + 1)
        train(
            task, strategy, budget=budget, callbacks=[lambda _: marks.append(time.process_time())]
        )
        return (marks[steps] - marks[0]) / steps  # without the calibration at the end

    return run


def compare(name: str, task: Task, strategy: ic.Strategy, steps: int, rounds: int) -> None:
    alone = encoder_alone(task, strategy, steps)
    step = whole_steps(task, strategy, steps)
    alone(), step()  # warm up
    report(name, [(alone(), step()) for _ in range(rounds)])


def compare_meta(name: str, task: Task, order: Literal[1, 2], steps: int) -> None:
    batches = {"batch_size": 32, "old_batch_size": 32}
    meta = whole_steps(task, ic.ICL(meta=ic.Meta(order=order, steps=SUPPORT), **batches), steps)
    plain = whole_steps(task, ic.ICL(**batches), steps * (SUPPORT + 1))
    plain(), meta()  # warm up
    report(name, [((SUPPORT + 1) * plain(), meta()) for _ in range(ROUNDS)])


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    ratio = statistics.median(whole / base for base, whole in pairs)
    base, whole = (1000 * statistics.median(values) for values in zip(*pairs, strict=True))
    print(f"{name:<46}{base:>10.2f}{whole:>10.2f}{ratio:>8.2f}×")


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    graphs = {name: real_data.graphs(name).items for name in ("PROTEINS", "REDDIT-BINARY")}
    proteins, reddit = (make_task(ic.Graphs(), items) for items in graphs.values())
    small = ic.Images(28, 1, encoder="small")
    grey = torch.randint(256, (1000, 28, 28), dtype=torch.uint8, generator=generator)
    digits = make_task(small, small.collect(grey))
    colour = ic.Images(32)
    pixels = torch.randint(256, (512, 3, 32, 32), dtype=torch.uint8, generator=generator)
    photos = make_task(colour, colour.collect(pixels))

    print(f"{'':<46}{'encoder':>10}{'step':>10}{'ratio':>9}   (ms)")
    joint = ic.ICL(batch_size=32, old_batch_size=32)
    for name, task, steps, rounds in (
        ("GCN, PROTEINS", proteins, 40, ROUNDS),
        ("GCN, REDDIT-BINARY", reddit, 20, ROUNDS),
        ("small encoder, 28 px", digits, 20, ROUNDS),
        ("ResNet-18, 32 px", photos, 1, 3),
    ):
        compare(f"{name}: NCE-I, 32 items", task, ic.WarmStart(), steps, rounds)
        compare(f"{name}: joint step, 32 + 32 items", task, joint, steps, rounds)
    wider = ic.ICL(batch_size=32, old_batch_size=64)
    compare("GCN, PROTEINS: ICL, 64 + 32 items", proteins, wider, 10, ROUNDS)

    print(f"\n{'':<46}{'plain':>10}{'meta':>10}{'ratio':>9}   (ms, same encoder passes)")
    for name, task, steps in (
        ("GCN, PROTEINS", proteins, 10),
        ("small encoder, 28 px", digits, 5),
    ):
        for order in (1, 2):
            compare_meta(f"{name}: order {order}, S = {SUPPORT}", task, order, steps)


if __name__ == "__main__":
    main()
