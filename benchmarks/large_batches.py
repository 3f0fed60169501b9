"""The memory and the gradient of a step on a batch beyond memory, with gradient caching.

    python benchmarks/large_batches.py

The small encoder at 64 px. Each row is a process of its own, which holds the same 4,096 items,
takes two steps of NCE-I and says what its memory was at most: in all, and above what it had before
its first step. ``micro_batch_size`` is the number of views that go through the encoder at a time.
Then the gradient of a step in parts is compared with that of the same step at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import incontrast as ic
from incontrast.loss import Objective
from incontrast.randomness import seeded
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, Task

ITEMS = 4096
ROWS = ((256, None), (256, 256), (4096, 256), (4096, 64))
STEPS = 2


def make_task(size: int, items: int, micro_batch_size: int | None) -> Task:
    domain = ic.Images(size, encoder="small")
    draws = torch.Generator().manual_seed(0)
    shape = (items, 3, size, size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=draws)
    collection = domain.collect(pixels)
    with seeded(0, "benchmark"):
        encoder = domain.encoder()
    engine = Engine("cpu")
    engine.micro_batch_size = micro_batch_size
    increment = Increment(None, collection, 0)
    return Task(encoder, domain, increment, objective=Objective(), engine=engine, seed=0)


def most_memory() -> float:
    """MB that this process had at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(items: int, micro_batch_size: int | None) -> dict[str, float]:
    torch.set_num_threads(1)
    task = make_task(64, ITEMS, micro_batch_size)
    before = most_memory()

    def end(progress: ic.Progress) -> None:
        if progress.steps == STEPS:
            raise StopIteration

    begin = time.process_time()
    with suppress(StopIteration):
        train(task, ic.FineTune(batch_size=items, max_epochs=STEPS), callbacks=[end])
    seconds = (time.process_time() - begin) / STEPS
    return {"before": before, "peak": most_memory(), "seconds": seconds}


def gradients(size: int, items: int, micro_batch_size: int | None) -> torch.Tensor:
    task = make_task(size, items, micro_batch_size)
    task.encoder.eval()  # BatchNorm in training normalises within each part
    strategy = ic.FineTune(batch_size=items)
    (batch,) = task.view_batches(strategy.sample(task))
    strategy.loss(task, batch, *task.embed(batch.views)).backward()
    return torch.cat([p.grad.flatten() for p in task.encoder.parameters() if p.grad is not None])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    row = parser.parse_args().row
    if row is not None:
        print(json.dumps(measure(*row)))
        return
    print("items  micro-batch   before the step   peak   above it   (MB)   s of processor a step")
    peaks = []
    for items, micro in ROWS:
        command = [sys.executable, __file__, "--row", json.dumps([items, micro])]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        before, peak = found["before"], found["peak"]
        peaks.append(peak)
        above = f"{peak - before:>10.0f}  {peak / peaks[0]:.2f}×"
        print(f"{items:>5}{micro or 'none':>13}{before:>18.0f}{peak:>7.0f}{above}", end="")
        print(f"{found['seconds']:>16.2f}", flush=True)
    whole, parts = (gradients(32, 1200, micro) for micro in (None, 256))
    apart = float((whole - parts).norm() / whole.norm())
    print(f"gradients of 1,200 items of 32 px, at once and in parts of 256: {apart:.1e} apart")


if __name__ == "__main__":
    main()
