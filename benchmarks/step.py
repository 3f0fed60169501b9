"""One training step against the encoder's own forward and backward pass on the same batch.

    python benchmarks/step.py

A step is everything: drawing items, views, forward, loss, backward, optimiser, averaging, and for
the joint step what protects old items. Then the same items and views in a plain loop of torch, with
NT-Xent of pytorch-metric-learning and torch's Adam; in a plain loop with the very parts of the
step, which is as low as it can come with them; and meta steps against plain ones. Things that are
compared are timed in turns, so that noise of the machine hits both, and the median of their ratios
is shown. Times are of the processor, one thread: other programs disturb them little.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pytorch_metric_learning.losses import NTXentLoss
from torch.nn import functional

import incontrast as ic
import real_data
from incontrast.loss import Objective
from incontrast.memory.memory import StoredCollection
from incontrast.memory.store import Store
from incontrast.randomness import seeded
from incontrast.training.averages import ExponentialMovingAverage
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.optimizers import Stepper, mark_tables
from incontrast.training.task import Increment, Task, ViewBatch

ROUNDS = 7
SUPPORT = 3  # support steps of a meta step


class Case(NamedTuple):
    name: str
    task: Task
    steps: int
    rounds: int


def make_task(domain: ic.Domain, items: ic.Collection) -> Task:
    if not isinstance(items, StoredCollection):
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
        before=copy.deepcopy(encoder),
    )


def encoder_alone(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds that the encoder takes for the views of the steps before, forward and backward."""
    batches: list[Any] = []
    embed = Task.embed.__get__(task)

    def remembered(views: Any, **settings: Any) -> Any:
        batches.append(views)
        return embed(views, **settings)

    task.embed = remembered  # type: ignore[method-assign]

    def run() -> float:
        begin = time.process_time()
        for views in batches[-steps:]:
            for parameter in task.encoder.parameters():
                parameter.grad = None
            task.encoder(views).square().mean().backward()
        batches.clear()
        return (time.process_time() - begin) / steps

    return run


def epochs(task: Task, strategy: ic.Strategy) -> Iterator[ViewBatch]:
    """The batches of one epoch after the other."""
    while True:
        yield from task.view_batches(strategy.sample(task))


def plain_loop(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds of a step of the loop that one would write with torch and NT-Xent of others."""
    encoder = copy.deepcopy(task.encoder).train()
    optimizer = torch.optim.Adam(encoder.parameters())
    nt_xent = NTXentLoss(temperature=task.objective.temperature)
    batches = epochs(task, strategy)

    def run() -> float:
        begin = time.process_time()
        for batch in islice(batches, steps):
            labels = torch.arange(len(batch.views) // 2).repeat(2)
            loss = nt_xent(encoder(batch.views), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.process_time() - begin) / steps

    return run


def bare_loop(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds of a step of a plain loop with the same items, views, loss, optimiser and average.

    What a step takes beyond that is the loop's own: schedule, budget, callbacks, losses in order.
    """
    twin = copy.copy(task)
    twin.encoder = copy.deepcopy(task.encoder).train()
    twin.made_once = {}
    parameters = list(twin.encoder.parameters())
    mark_tables(twin.encoder)
    stepper = Stepper(strategy.optimizer(parameters), protection=strategy.prepare(twin))
    average = ExponentialMovingAverage(parameters, strategy.ema_decay)
    batches = epochs(twin, strategy)

    def run() -> float:
        begin = time.process_time()
        for batch in islice(batches, steps):
            first, second = twin.encoder(batch.views).view(2, len(batch.views) // 2, -1)
            loss = strategy.loss(twin, batch, first, second)
            for parameter in parameters:
                parameter.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
            stepper.step(1e-3)
            average.update()
        return (time.process_time() - begin) / steps

    return run


def whole_steps(task: Task, strategy: ic.Strategy, steps: int) -> Callable[[], float]:
    """Seconds that a step takes, after one that warms up."""

    def run() -> float:
        marks: list[float] = []

        def mark(progress: ic.Progress) -> None:
            if progress.finished is None:
                marks.append(time.process_time())
                if len(marks) > steps:
                    raise StopIteration

        with suppress(StopIteration):
            train(task, strategy, callbacks=[mark])
        return (marks[-1] - marks[0]) / steps

    return run


def compare(
    make: Callable[[Task, ic.Strategy, int], Callable[[], float]],
    case: Case,
    strategy: ic.Strategy,
) -> None:
    """A step against something else, which is timed whenever so many steps were taken."""
    other = make(case.task, strategy, case.steps)
    pairs: list[tuple[float, float]] = []
    taken, begin = 0, 0.0

    def turn(progress: ic.Progress) -> None:
        nonlocal taken, begin
        taken += progress.finished is None
        if progress.finished is not None or taken % case.steps:
            return
        step = (time.process_time() - begin) / case.steps
        pairs.append((other(), step))
        if len(pairs) > case.rounds:
            raise StopIteration
        begin = time.process_time()

    with suppress(StopIteration):
        train(case.task, strategy, callbacks=[turn])
    items = "32 + 32 items" if isinstance(strategy, ic.ICL) else "32 items"
    report(f"{case.name}, {items}", pairs[1:])  # the first warms up


def compare_meta(name: str, task: Task, order: Literal[1, 2], steps: int) -> None:
    settings = {"batch_size": 32, "old_batch_size": 32, "protection": None}
    meta = whole_steps(task, ic.ICL(meta=ic.Meta(order=order, steps=SUPPORT), **settings), steps)
    plain = whole_steps(task, ic.ICL(**settings), steps * (SUPPORT + 1))
    plain(), meta()  # warm up
    report(name, [((SUPPORT + 1) * plain(), meta()) for _ in range(ROUNDS)])


def compare_sources(steps: int = 10) -> None:
    """Steps on JPEG files and on items of a memory on disk, against the same from memory."""
    domain = ic.Images(64, encoder="small")
    draws = torch.Generator().manual_seed(0)
    coarse = torch.rand(512, 3, 16, 16, generator=draws)
    pixels = functional.interpolate(coarse, size=(128, 128), mode="bilinear").mul(255).byte()
    with TemporaryDirectory() as folder:
        for number, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
            Image.fromarray(image).save(f"{folder}/{number:04}.jpg", quality=90)
        files = domain.collect(folder)
        memory = domain.materialise(files, torch.arange(len(files)))
        every = torch.arange(len(memory))
        store = Store.create(Path(folder) / "store.db")
        store.append(0, domain.pack(memory, every), np.zeros(len(every)))
        stored = StoredCollection(store, domain, every, memory.sizes())
        for name, items in (("JPEG files", files), ("a workspace's store", stored)):
            runs = [
                whole_steps(make_task(domain, part), ic.WarmStart(), steps)
                for part in (memory, items)
            ]
            for run in runs * 4:
                run()  # warms up: files are decoded once, 200 of 512 in these steps at most
            report(f"small encoder, 64 px, {name}", [(runs[0](), runs[1]()) for _ in range(ROUNDS)])
        store.close()


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    ratio = statistics.median(whole / base for base, whole in pairs)
    base, whole = (1000 * statistics.median(values) for values in zip(*pairs, strict=True))
    print(f"{name:<46}{base:>10.2f}{whole:>10.2f}{ratio:>8.2f}×")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", default="", help="Part of a case's name.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of each but the slowest case.")
    settings = parser.parse_args()
    chosen, rounds = settings.case, settings.rounds
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
    rows = ic.Vectors(64)
    vectors = make_task(rows, rows.collect(torch.randn(1000, 64, generator=generator)))
    cases = (
        Case("MLP, 64 features", vectors, 50, rounds),
        Case("GCN, PROTEINS", proteins, 20, rounds),
        Case("GCN, REDDIT-BINARY", reddit, 10, rounds),
        Case("small encoder, 28 px", digits, 10, rounds),
        Case("ResNet-18, 32 px", photos, 1, 3),
    )
    cases = tuple(case for case in cases if chosen in case.name)

    joint = ic.ICL(batch_size=32, old_batch_size=32)
    print(f"{'':<46}{'encoder':>10}{'step':>10}{'ratio':>9}   (ms)")
    for case in cases:
        for strategy in (ic.WarmStart(), joint):
            compare(encoder_alone, case, strategy)

    print(f"\n{'':<46}{'theirs':>10}{'step':>10}{'ratio':>9}   (ms, plain loop with NT-Xent)")
    for case in cases:
        compare(plain_loop, case, ic.WarmStart())

    print(f"\n{'':<46}{'bare':>10}{'step':>10}{'ratio':>9}   (ms, plain loop with the same parts)")
    for case in cases:
        for strategy in (ic.WarmStart(), joint):
            compare(bare_loop, case, strategy)

    if chosen in "files":
        print(f"\n{'':<46}{'memory':>10}{'step':>10}{'ratio':>9}   (ms)")
        compare_sources()

    print(f"\n{'':<46}{'plain':>10}{'meta':>10}{'ratio':>9}   (ms, same encoder passes)")
    for case in cases:
        if case.task in (proteins, digits):
            for order in (1, 2):
                name = f"{case.name}: order {order}, S = {SUPPORT}"
                compare_meta(name, case.task, order, case.steps // 4)


if __name__ == "__main__":
    main()
