"""Items on disk: appends and reads a second, and what reading old items there costs a step.

    python benchmarks/store.py

Items are images of 3×32×32 pixels, 3 KB each, as random bytes. A step is one of ICL() with the
small encoder: 64 old and 32 new items, two views each. Besides the clock, the processor's own time
is shown, which does not count what others do on a busy machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import incontrast as ic
from incontrast.domains.base import Collection
from incontrast.memory.memory import StoredCollection
from incontrast.memory.store import Store
from incontrast.randomness import seeded
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, Task

ITEMS = 100_000
BATCH = 64
ROUNDS = 9  # of each, in turn; the fastest counts, since others only ever make it slower


def images(count: int, seed: int) -> torch.Tensor:
    draws = np.random.default_rng(seed)
    return torch.from_numpy(draws.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))


def main() -> None:
    torch.set_num_threads(1)
    domain = ic.Images(32, encoder="small")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "memory.sqlite")
        pixels = images(4096, 0)
        contents = domain.pack(domain.collect(pixels), torch.arange(len(pixels)))
        with clock() as spent:
            for first in range(0, ITEMS, len(contents)):
                part = contents[: ITEMS - first]
                store.append(first, part, np.zeros(len(part)))
            store.erase()
        print(f"appends: {rate(ITEMS, spent)}, on disk when they return")

        draws = torch.Generator().manual_seed(0)
        batches = [torch.randperm(ITEMS, generator=draws)[:BATCH].tolist() for _ in range(1000)]
        for _ in range(2):  # the second time the file is in the system's cache
            with clock() as spent:
                for batch in batches:
                    store.read(batch)
        print(f"random reads in batches of {BATCH}: {rate(len(batches) * BATCH, spent)}")

        sizes = torch.from_numpy(store.columns(ITEMS)["size"].copy())
        stored = StoredCollection(store, domain, torch.arange(ITEMS), sizes)
        held = domain.collect(pixels.repeat(-(-ITEMS // len(pixels)), 1, 1, 1)[:ITEMS])
        for name, items in (("disk", stored), ("RAM", held)):
            with clock() as spent:
                for batch in batches:
                    items.take(torch.tensor(batch))
            print(
                f"a batch of {BATCH} from {name}: {1000 * spent[1] / len(batches):.2f} ms "
                "of processor"
            )

        new = domain.collect(images(320, 1))
        times: dict[str, list[tuple[float, float]]] = {"disk": [], "RAM": []}
        for _ in range(ROUNDS):
            for name, items in (("disk", stored), ("RAM", held)):
                times[name].append(step(domain, items, new))
        for place, what in enumerate(("by the clock", "of processor")):
            disk, ram = (min(spent[place] for spent in times[name]) for name in ("disk", "RAM"))
            print(
                f"a step with old items from disk: {1000 * disk:.2f} ms {what}, "
                f"from RAM: {1000 * ram:.2f} ms, {disk / ram:.3f}×"
            )


@contextmanager
def clock() -> Iterator[list[float]]:
    """Seconds by the clock and of the processor, once the block has ended."""
    spent = [time.perf_counter(), time.process_time()]
    yield spent
    spent[:] = [time.perf_counter() - spent[0], time.process_time() - spent[1]]


def rate(count: int, spent: list[float]) -> str:
    return f"{count / spent[0]:,.0f} items/s by the clock, {count / spent[1]:,.0f} of processor"


def step(domain: ic.Images, old: Collection, new: Collection) -> tuple[float, float]:
    """Seconds of one step by the clock and of the processor, from a run of some of them."""
    with seeded(0, "store"):
        encoder = domain.encoder()
    task = Task(
        encoder,
        domain,
        Increment(old, new, len(old)),
        objective=ic.Objective(),
        engine=Engine("cpu"),
        seed=0,
    )
    with clock() as spent:
        run = train(task, ic.ICL(max_epochs=3))
    return spent[0] / run.steps, spent[1] / run.steps


if __name__ == "__main__":
    main()
