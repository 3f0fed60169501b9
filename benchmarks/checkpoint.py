"""What it costs that an interrupted training can resume: time for its checkpoints, of all time.

    python benchmarks/checkpoint.py [MLP] [ResNet-18]

Trainings of 130 s (290 s, if nothing was written until then), on random items: an MLP (thousands of
small steps, each of which asks whether a checkpoint is due) and ResNet-18 at 32 pixels (11 million
weights, with their averages and the optimiser's moments). A checkpoint is written every 60 s, later
where that takes more than 2 % of the time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import incontrast as ic
from incontrast.files import write_bytes
from incontrast.training import loop, resume

SECONDS, LONGEST = 130.0, 290.0


def measured(name: str, domain: ic.Domain, items: torch.Tensor) -> None:
    """Train, and say which share of the time went into checkpoints."""
    spent: dict[str, list[float]] = {"due": [], "write": [], "state": []}
    written: list[int] = []  # bytes

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[part].append(time.perf_counter() - begin)

        return run

    def going(progress: ic.Progress) -> bool:
        return progress.seconds < (SECONDS if written else LONGEST)

    def noted(path: Path, content: memoryview) -> None:
        write_bytes(path, content)
        written.append(len(content))

    resume.write_bytes = noted  # type: ignore[assignment]
    usual = (resume.TrainingFile.due, resume.TrainingFile.write, loop.training_state)
    resume.TrainingFile.due = timed("due", usual[0])  # type: ignore[method-assign]
    resume.TrainingFile.write = timed("write", usual[1])  # type: ignore[method-assign]
    loop.training_state = timed("state", usual[2])
    learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=10**6, patience=10**6))
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "training.checkpoint"
        # Ended by a callback: a budget of seconds would be for evaluations as well.
        outcome = learner.fit(items, callbacks=[going], checkpoint=file)
        total = outcome.seconds
    resume.TrainingFile.due, resume.TrainingFile.write, loop.training_state = usual  # type: ignore[method-assign]
    share = sum(map(sum, spent.values())) / total
    writing = sum(spent["write"]) + sum(spent["state"])
    print(
        f"{name}: {outcome.steps:,} steps in {total:.0f} s; {len(written)} checkpoints of "
        f"{max(written, default=0) / 2**20:.1f} MB in {writing:.2f} s, "
        f"{len(spent['due']):,} questions whether one is due in "
        f"{sum(spent['due']):.3f} s: {share:.2%} of the time",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    names = sys.argv[1:] or ["MLP", "ResNet-18"]
    if "MLP" in names:
        measured("MLP", ic.Vectors(16), torch.randn(2000, 16, generator=draws))
    if "ResNet-18" in names:
        images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8, generator=draws)
        measured("ResNet-18", ic.Images(32, encoder="resnet18"), images)


if __name__ == "__main__":
    main()
