"""The time of an update against the amount of old data: ΔN is fixed, N grows a hundredfold.

python benchmarks/growth.py
"""

from __future__ import annotations

import statistics
import time

import torch

import incontrast as ic

NEW = 500
OLD = (2_000, 20_000, 200_000)
SEEDS = 5


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(max(OLD), 64, generator=generator)
    new = torch.randn(NEW, 64, generator=generator) + 0.5
    times: dict[int, list[float]] = {count: [] for count in OLD}
    for seed in range(SEEDS):
        for count in OLD:
            learner = ic.Learner(ic.Vectors(64), fit_strategy=ic.Retrain(max_epochs=1), seed=seed)
            learner.fit(rows[:count], budget=ic.Budget(forward_passes=2_000))
            begin = time.perf_counter()
            learner.update(new, strategy=ic.ICL(max_epochs=20))
            times[count].append(time.perf_counter() - begin)
    print(f"{NEW} new vectors, 20 passes over them, memory in RAM; median of {SEEDS} seeds")
    print("whole call of update(): training, evaluation, taking the new items into memory")
    base = times[OLD[0]]
    for count in OLD:
        ratio = statistics.median(t / b for t, b in zip(times[count], base, strict=True))
        print(f"N = {count:>7,}   {statistics.median(times[count]):6.2f} s   {ratio:.2f}×")


if __name__ == "__main__":
    main()
