"""Items per second of one process and of several, and what the cost model says about it.

    python benchmarks/processes.py

Processes have one thread each. In every round the first process trains alone while the others
wait, then all train together, so that noise of the machine hits both; the median of the ratios is
shown. Before that, the time of small and of large sums over processes is measured: with it and the
time of one process, ``training/cost.py`` predicts the time of a step of several.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

import incontrast as ic
from incontrast.randomness import seeded
from incontrast.training.collectives import summed_
from incontrast.training.contrast import Objective
from incontrast.training.cost import Link, Step, measured_step
from incontrast.training.engine import Engine
from incontrast.training.fabric import choose_engine
from incontrast.training.increment import Increment
from incontrast.training.loop import train
from incontrast.training.task import Task

ITEMS = 256
CASES: dict[str, tuple[ic.Images, ic.ICL, int, int]] = {  # domain, strategy, steps, rounds
    "ResNet-18, 32 px, 32 + 32 items": (ic.Images(32), ic.ICL(batch=32, old_batch=32), 2, 7),
    "small encoder, 28 px, 64 + 32 items": (ic.Images(28, 1, encoder="small"), ic.ICL(), 10, 7),
}


def make_task(domain: ic.Images, engine: Engine) -> Task:
    generator = torch.Generator().manual_seed(0)
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


def seconds_per_step(domain: ic.Images, strategy: ic.ICL, engine: Engine, steps: int) -> float:
    task = make_task(domain, engine)
    ended: list[float] = []

    def stop(progress: ic.Progress) -> None:
        if progress.finished is None:
            ended.append(progress.seconds)

    passes = 2 * (strategy.batch + strategy.old_batch) * (steps + 1)
    train(task, strategy, budget=ic.Budget(passes=passes), progress=stop)
    return (ended[steps] - ended[0]) / steps  # the first step warms up


def link(engine: Engine) -> Link:
    """Seconds of a small sum over processes, and bytes per second of a large one."""

    def of(size: int, times: int) -> float:
        values = torch.zeros(size)
        taken = []
        for _ in range(times):
            engine.agree(0.0)
            begin = time.perf_counter()
            summed_(values)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    small, large = of(64, 200), of(2**22, 9)
    return Link.measured(engine.processes, small, 2**24, large)


def work() -> None:
    torch.set_num_threads(1)
    many, alone = choose_engine("cpu", "float32", None), Engine("cpu")
    path = link(many)
    if many.rank == 0:
        print(
            f"\n{many.processes} processes: a small sum takes {1e6 * path.latency:.0f} µs, "
            f"a large one moves {path.bandwidth / 1e6:.0f} MB/s",
            flush=True,
        )
    for name, (domain, strategy, steps, rounds) in CASES.items():
        singles, shared = [], []
        for _ in range(rounds):
            many.agree(0.0)
            if many.rank == 0:
                singles.append(seconds_per_step(domain, strategy, alone, steps))
            many.agree(0.0)
            shared.append(many.agree(seconds_per_step(domain, strategy, many, steps)))
        if many.rank == 0:
            report(name, domain, strategy, singles, shared, path, many.processes)


def report(
    name: str,
    domain: ic.Images,
    strategy: ic.ICL,
    singles: list[float],
    shared: list[float],
    path: Link,
    processes: int,
) -> None:
    items = strategy.batch + strategy.old_batch
    one, many = statistics.median(singles), statistics.median(shared)
    ratios = sorted(single / several for single, several in zip(singles, shared, strict=True))
    step = Step.of(domain.encoder(), items=items)
    expected = measured_step(one, step, path, processes, cores=os.cpu_count() or 1)
    print(
        f"{name}: {items / one:.1f} items/s alone, {items / many:.1f} together, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
        f"predicted {one / expected:.2f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4])
    for count in parser.parse_args().processes:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(count), __file__]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    work() if "TORCHELASTIC_RUN_ID" in os.environ else main()
