"""Large workspaces and long lives: a million items, and a thousand updates in a row.

    python benchmarks/workspace.py size     # needs 4 GB of disk and some minutes
    python benchmarks/workspace.py updates

size: workspaces of 10,000 and of 1,000,000 items of 3 KB (images of 3×32×32 pixels, random bytes);
each is opened and updated with 1,000 new items in a process of its own: ICL, 5 epochs, the small
encoder. updates: 1,000 updates with 20 vectors each and a page each, with a reservoir of 500 items
and the defaults of a workspace: time, memory, open files and disk, means over every hundred.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import incontrast as ic
from incontrast.cli.report import recorded, write_report
from store import clock

UPDATES = 1000
SIZES = (10_000, 1_000_000)
PART = 50_000  # items that come in together while a workspace is filled
EPOCHS = 5


def images(count: int, seed: int) -> torch.Tensor:
    draws = np.random.default_rng(seed)
    return torch.from_numpy(draws.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))


def fill(folder: Path, count: int) -> None:
    """A workspace that has seen so many items, by way of updates that only take items in."""
    learner = ic.Learner(
        ic.Images(32, encoder="small"),
        fit_strategy=ic.Retrain(max_epochs=1),
        strategy=ic.ICL(max_epochs=EPOCHS),
    )
    workspace = ic.Workspace.create(folder, learner, keep=2)
    workspace.fit(images(2000, 0), force=True)
    seen, seed = 2000, 0
    while seen < count:
        seed += 1
        part = min(PART, count - seen)
        workspace.update(images(part, seed), strategy=ic.NoUpdate(), force=True)
        seen += part


def use(folder: Path) -> None:
    """Open a workspace and update it, and say what it took."""
    torch.set_num_threads(1)
    ic.Learner(ic.Images(32, encoder="small"))  # imports are not what is measured
    new = images(1000, 12345)
    base = memory()
    with clock() as opening:
        workspace = ic.Workspace.open(folder)
        count = len(workspace.learner().memory)
    read = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    with clock() as updating:
        workspace.update(new, force=True)
    read = resource.getrusage(resource.RUSAGE_SELF).ru_inblock - read
    print(
        f"{count:>9,} items: opened in {opening[0]:.2f} s by the clock, {opening[1]:.2f} s of "
        f"processor; updated in {updating[0]:.1f} s by the clock, {updating[1]:.1f} s of "
        f"processor, with {read / 2048:.0f} MB that were not in the system's cache; "
        f"memory {memory() - base:.0f} MB above the start's {base:.0f}"
    )


def memory() -> float:
    """The most that this process has ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident() -> float:
    """What this process holds now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def size() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
        for count in SIZES:
            folder = Path(place) / str(count)
            begin = time.perf_counter()
            command = [sys.executable, __file__]
            subprocess.run([*command, "fill", str(folder), str(count)], check=True)
            print(f"{count:>9,} items: filled in {time.perf_counter() - begin:.0f} s", flush=True)
        for _ in range(3):
            for count in SIZES:
                folder = Path(place) / str(count)
                subprocess.run([*command, "use", str(folder)], check=True)
                ic.Workspace.open(folder).rollback()


def updates() -> None:
    """Means of every hundred updates, and the last hundred against the second."""
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    learner = ic.Learner(
        ic.Vectors(16),
        fit_strategy=ic.Retrain(max_epochs=2),
        strategy=ic.ICL(max_epochs=2),
        memory=ic.Reservoir(items=500),
    )
    means = []
    with tempfile.TemporaryDirectory() as place:
        workspace = ic.Workspace.create(Path(place) / "space", learner)
        workspace.fit(torch.randn(500, 16, generator=draws), force=True)
        for number in range(1, UPDATES + 1):
            if number % 100 == 1:
                rows = []
            new = torch.randn(20, 16, generator=draws)
            begin = time.process_time()
            step = workspace.update(new, force=True)
            write_report(workspace, recorded(workspace, step.version))
            spent = time.process_time() - begin
            handles = len(list(Path("/proc/self/fd").iterdir()))
            disk = sum(f.stat().st_size for f in workspace.folder.rglob("*") if f.is_file())
            rows.append((1000 * spent, resident(), handles, disk / 2**20))
            if number % 100 == 0:
                means.append(np.mean(rows, axis=0))
                print(f"updates {number - 99:3d} to {number:4d}: {_means(means[-1])}", flush=True)
    change = ", ".join(f"{share:+.1%}" for share in means[-1] / means[1] - 1)
    print(f"the last hundred against the second: {change}")


def _means(mean: np.ndarray) -> str:
    spent, held, handles, disk = mean
    return (
        f"{spent:.0f} ms of processor each, {held:.0f} MB in memory, {handles:.1f} open files, "
        f"{disk:.2f} MB on disk"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("size", "updates", "fill", "use"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("count", type=int, nargs="?")
    options = parser.parse_args()
    if options.what == "fill":
        fill(options.folder, options.count)
    elif options.what == "use":
        use(options.folder)
    elif options.what == "size":
        size()
    else:
        updates()


if __name__ == "__main__":
    main()
