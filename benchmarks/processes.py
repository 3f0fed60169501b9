"""Items per second of one process and of several, and what the cost model says about it.

    python benchmarks/processes.py

Processes have one thread each. In every round the first process trains alone while the others
wait; then each trains by itself, all at the same time; then all train together. So noise of the
machine hits all three, and the second says what the machine has to give at that moment: on one that
others use as well, two processes may not get two cores. The medians of the ratios are shown, and by
processor time too, which other programs disturb less but which does not know of waiting. Before
that, small and large sums over processes are timed: from these and the time of one process,
``benchmarks/cost_model.py`` predicts the ratio. Where a step is too small to share, each process
does all of it: no faster than one. ``--always`` shares it nevertheless.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

import torch

import incontrast as ic
from cost_model import Link, Step, step_seconds
from incontrast.loss import Objective, increment_losses
from incontrast.randomness import seeded
from incontrast.training import fabric
from incontrast.training.averages import ExponentialMovingAverage
from incontrast.training.collectives import all_reduce_
from incontrast.training.engine import Engine, choose_engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, Task

ITEMS = 256


class Case(NamedTuple):
    name: str
    domain: ic.Images | ic.Vectors
    strategy: ic.ICL
    steps: int


CASES = (
    Case(
        "ResNet-18, 32 px, 32 + 32 items",
        ic.Images(32),
        ic.ICL(batch_size=32, old_batch_size=32),
        1,
    ),
    Case(
        "small encoder, 28 px, 64 + 32 items",
        ic.Images(28, 1, encoder="small"),
        ic.ICL(batch_size=32, old_batch_size=64),
        20,
    ),
    Case(
        "small encoder, 64 px, 128 + 128 items",
        ic.Images(64, encoder="small"),
        ic.ICL(batch_size=128, old_batch_size=128),
        2,
    ),
    Case(
        "vectors of 64, 16 + 48 items",
        ic.Vectors(64),
        ic.ICL(),
        50,
    ),
)


class Times(NamedTuple):
    """Seconds of a step."""

    clock: float
    processor: float


def make_task(domain: ic.Images | ic.Vectors, engine: Engine) -> Task:
    generator = torch.Generator().manual_seed(0)
    items: Any
    if isinstance(domain, ic.Vectors):
        items = domain.collect(torch.randn(ITEMS, domain.dim, generator=generator))
        domain = domain.fit_statistics(items)
    else:
        shape = (ITEMS, domain.channels, domain.size, domain.size)
        items = domain.collect(torch.randint(256, shape, generator=generator).to(torch.uint8))
    half = torch.arange(ITEMS // 2)
    with seeded(0, "benchmark"):
        encoder = domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(items.select(half), items.select(half + ITEMS // 2), ITEMS // 2),
        objective=Objective(),
        engine=engine,
        seed=0,
    )


def timed(case: Case, engine: Engine) -> Times:
    """Times of a step, after one that warms up."""
    marks: list[Times] = []

    def mark(progress: ic.Progress) -> None:
        if progress.finished is None:
            marks.append(Times(time.perf_counter(), time.process_time()))
            if len(marks) > case.steps:
                raise StopIteration

    with suppress(StopIteration):
        train(make_task(case.domain, engine), case.strategy, callbacks=[mark])
    first, last = marks[0], marks[-1]
    return Times(*((b - a) / case.steps for a, b in zip(first, last, strict=True)))


def link(engine: Engine) -> Link:
    """Seconds of a small sum over processes, and bytes per second of a large one."""

    def of(size: int, times: int) -> float:
        values = torch.zeros(size)
        taken = []
        for _ in range(times):
            engine.broadcast_float(0.0)
            begin = time.perf_counter()
            all_reduce_(values)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    small, large = of(64, 200), of(2**22, 9)
    return Link.measured(engine.processes, small, 2**24, large)


def common(case: Case, rounds: int = 5) -> float:
    """Seconds of what every process does for the whole batch: losses, optimiser, average."""
    items = case.strategy.batch_size + case.strategy.old_batch_size
    task = make_task(case.domain, Engine("cpu"))
    width = Step.of(task.encoder, items=items).width
    parameters = list(task.encoder.parameters())
    optimizer = torch.optim.Adam(parameters, fused=True)
    average = ExponentialMovingAverage(parameters, 0.99)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    taken = []
    for _ in range(rounds):
        first, second = torch.randn(2, items, width).requires_grad_()
        begin = time.process_time()
        losses = increment_losses(
            first,
            second,
            task.objective,
            old=case.strategy.old_batch_size,
            growth_ratio=task.growth_ratio,
            retention=case.strategy.retention,
        )
        torch.cat(losses).mean().backward()
        optimizer.step()
        average.update()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def work(rounds: int, chosen: str, always: bool) -> None:
    torch.set_num_threads(1)
    if always:
        fabric.PAYS = 0.0
    many, alone = choose_engine("cpu", "float32", None), Engine("cpu")
    path = link(many)
    if many.rank == 0:
        print(
            f"\n{many.processes} processes: a small sum takes {1e6 * path.latency:.0f} µs, "
            f"a large one moves {path.bandwidth / 1e6:.0f} MB/s",
            flush=True,
        )
    for case in CASES:
        if chosen not in case.name:
            continue
        rows = []
        for _ in range(rounds):
            many.broadcast_float(0.0)
            single = timed(case, alone) if many.rank == 0 else Times(0.0, 0.0)
            many.broadcast_float(0.0)
            apart = Times(*slowest(many, timed(case, alone)))
            many.broadcast_float(0.0)
            shared = Times(*slowest(many, timed(case, many)))
            rows.append((single, apart, shared))
        if many.rank == 0:
            report(case, rows, path, many.processes)


def slowest(engine: Engine, times: Times) -> list[float]:
    """The times of the slowest process: all wait for it."""
    table = torch.zeros(engine.processes, 2, dtype=torch.float64)
    table[engine.rank] = torch.tensor(times)
    return [float(value) for value in all_reduce_(table).max(dim=0).values]


def report(case: Case, rows: list[tuple[Times, Times, Times]], path: Link, processes: int) -> None:
    items = case.strategy.batch_size + case.strategy.old_batch_size
    one, many = (statistics.median(row[i].clock for row in rows) for i in (0, 2))
    quiet = statistics.median(row[0].processor for row in rows)  # as on an idle machine
    step = Step.of(case.domain.encoder(), items=items)
    cores = os.cpu_count() or 1
    share = common(case) / quiet
    expected = step_seconds(quiet, step, path, processes, cores=cores, common=share)
    figures = {
        "by the clock": [one.clock / shared.clock for one, _, shared in rows],
        "what there was": [processes * one.clock / apart.clock for one, apart, _ in rows],
        "of what there was": [apart.clock / shared.clock / processes for _, apart, shared in rows],
        "by processor time": [one.processor / shared.processor for one, _, shared in rows],
    }
    print(f"{case.name}\n  {items / one:.1f} items/s alone, {items / many:.1f} together")
    for name, values in figures.items():
        ends = f"{min(values):.2f} to {max(values):.2f}"
        print(f"  {name:<18}{statistics.median(values):.2f} ({ends})")
    print(
        f"  {'predicted':<18}{quiet / expected:.2f} on an idle machine, of whose step "
        f"{100 * step.talking(path, processes) / expected:.0f}% is talking\n"
        f"  load {os.getloadavg()[0]:.1f} on {cores} cores",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", default="", help="Part of a case's name.")
    parser.add_argument("--always", action="store_true", help="Share small steps as well.")
    settings = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        work(settings.rounds, settings.case, settings.always)
        return
    for count in settings.processes:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(count), __file__, "--rounds", str(settings.rounds)]
        command += ["--case", settings.case, *["--always"] * settings.always]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
