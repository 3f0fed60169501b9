"""What ``compile=True`` gains and costs: forward and backward passes, and compiling.

    python benchmarks/compiling.py

128 views, processor time of one thread, eager and compiled in turns. The second size is a batch of
another length, for which torch compiles again. The loss is that of a joint step on 64 items, which
is not compiled in training. The last column says after how many steps compiling is regained.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import incontrast as ic
from incontrast.loss import Objective, increment_losses

VIEWS, OTHER, ROUNDS = 128, 126, 5


def passes(function: Callable[[Tensor], Tensor], parameters: list[Tensor], views: Tensor) -> None:
    for parameter in parameters:
        parameter.grad = None
    function(views).square().mean().backward()  # type: ignore[no-untyped-call]


def joint_loss(embeddings: Tensor) -> Tensor:
    first, second = embeddings.view(2, -1, embeddings.shape[1])
    settings: dict[str, Any] = {"growth_ratio": 0.3, "retention": 1.0}
    losses = increment_losses(first, second, Objective(), old=len(first) // 2, **settings)
    return torch.cat(losses)


def seconds(run: Callable[[], None], steps: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(steps):
        run()
    return (clock() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", default="", help="Part of a case's name.")
    chosen = parser.parse_args().case
    torch.set_num_threads(1)
    embeddings = torch.randn(VIEWS, 64, requires_grad=True)
    functions: tuple[tuple[str, Any, tuple[int, ...], int], ...] = (
        ("loss of 32 + 32 items", joint_loss, (64,), 40),
        ("MLP of Vectors(64)", ic.Vectors(64).encoder(), (64,), 40),
        ("small encoder, 28 px", ic.Images(28, 1, encoder="small").encoder(), (1, 28, 28), 40),
        ("ResNet-18, 32 px", ic.Images(32).encoder(), (3, 32, 32), 1),
    )
    print(f"{'':<24}compiling   another size (s)   eager   compiled (ms)   faster   steps")
    for name, function, shape, steps in functions:
        if chosen not in name:
            continue
        views, other = torch.randn(VIEWS, *shape), torch.randn(OTHER, *shape)
        parameters = [embeddings]
        if isinstance(function, torch.nn.Module):
            parameters = list(function.train().parameters())
        else:
            views, other = embeddings, embeddings[:OTHER]
        compiled = torch.compile(function)
        runs = [partial(passes, each, parameters, views) for each in (function, compiled)]
        sizes = [partial(passes, compiled, parameters, of_size) for of_size in (views, other)]
        first, second = (seconds(run, 1, time.perf_counter) for run in sizes)
        runs[1]()
        pairs = [
            [1000 * seconds(run, steps, time.process_time) for run in runs] for _ in range(ROUNDS)
        ]
        eager, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
        gain = statistics.median(before / after for before, after in pairs)
        regained = f"{1000 * (first + second) / (eager - fast):,.0f}" if fast < eager else "never"
        print(
            f"{name:<24}{first:>9.1f}{second:>15.1f}{eager:>12.2f}{fast:>12.2f}{gain:>14.2f}×"
            f"{regained:>10}",
            flush=True,
        )


if __name__ == "__main__":
    main()
