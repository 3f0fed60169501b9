"""What ``torch.compile`` would gain and cost: forward and backward passes, and compiling.

    python benchmarks/compiling.py

128 views, one thread, processor time, eager and compiled in turns. The second size is a batch of
another length, for which torch compiles again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import incontrast as ic

VIEWS, OTHER, ROUNDS, STEPS = 128, 126, 5, 40


def passes(encoder: nn.Module, function: Callable[[Tensor], Tensor], views: Tensor) -> None:
    for parameter in encoder.parameters():
        parameter.grad = None
    function(views).square().mean().backward()  # type: ignore[no-untyped-call]


def seconds(run: Callable[[], None], steps: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(steps):
        run()
    return (clock() - begin) / steps


def main() -> None:
    torch.set_num_threads(1)
    cases: tuple[tuple[str, Any, tuple[int, ...]], ...] = (
        ("MLP of Vectors(64)", ic.Vectors(64), (64,)),
        ("small encoder, 28 px", ic.Images(28, 1, encoder="small"), (1, 28, 28)),
    )
    print("encoder                  compiling   another size (s)   eager  compiled (ms)   faster")
    for name, domain, shape in cases:
        encoder = domain.encoder().train()
        compiled = torch.compile(encoder)
        views, other = torch.randn(VIEWS, *shape), torch.randn(OTHER, *shape)
        runs = [partial(passes, encoder, function, views) for function in (encoder, compiled)]
        sizes = [partial(passes, encoder, compiled, of_size) for of_size in (views, other)]
        waits = [seconds(run, 1, time.perf_counter) for run in sizes]
        runs[1]()
        pairs = [
            [1000 * seconds(run, STEPS, time.process_time) for run in runs] for _ in range(ROUNDS)
        ]
        eager, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
        gain = statistics.median(before / after for before, after in pairs)
        print(
            f"{name:<25}{waits[0]:>9.1f}{waits[1]:>15.1f}{eager:>12.2f}{fast:>10.2f}{gain:>14.2f}×"
        )


if __name__ == "__main__":
    main()
