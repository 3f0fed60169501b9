"""Small updates to learn a policy from: vectors, digits and graphs of several kinds, quadratics.

None of the sets that ``benchmarks/rates.py`` judges by is among them: digits serve here with other
classes as the new ones, and there is no real graph and no MNIST.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from torch import Generator, Tensor

import incontrast as ic
from incontrast.evaluate.population import measure
from incontrast.loss import Objective
from incontrast.schedules.schedule import LearningRate, Schedule
from incontrast.training.engine import Engine
from incontrast.training.loop import TrainingDiverged, train
from incontrast.training.progress import Progress
from incontrast.training.task import Increment, Task

__all__ = ["Curve", "Quadratic", "Update", "updates"]

SAMPLE = 256  # old and new items, each, on which the true loss is measured
BATCHES = ((64, 32), (128, 64), (32, 32))  # old and new items per step


@dataclass(frozen=True)
class Curve:
    """The loss of the averaged weights along an episode."""

    steps: list[int]
    losses: list[float]  # logarithms


@dataclass(frozen=True, kw_only=True)
class Given(Schedule):
    """Hands out rates made elsewhere."""

    rates: LearningRate

    def begin(self, generator: Generator, state: Any = None) -> LearningRate:
        return self.rates


class Update:
    """An update of a fitted encoder, to be done again and again with other rates."""

    def __init__(self, name: str, domain: ic.Domain, old: Any, new: Any, epochs: int) -> None:
        self.name = name
        learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=epochs), seed=0)
        learner.fit(old)
        self.encoder, self.domain, self.engine = learner.encoder, learner.domain, learner.engine
        self.increment = Increment(learner.memory.items, self.domain.collect(new), len(old))

    def run(self, rates: LearningRate, draws: Generator, steps: int, every: int) -> Curve:
        """One episode; a run that diverges ends there, with a high loss."""
        seed = int(torch.randint(2**31, (), generator=draws))
        old, new = BATCHES[seed % len(BATCHES)]
        encoder = copy.deepcopy(self.encoder)
        task = Task(
            encoder, self.domain, self.increment, objective=Objective(), engine=Engine(), seed=seed
        )
        curve = Curve([0], [self._loss(encoder)])

        def watch(told: Progress) -> None:
            if told.finished is None and told.steps % every == 0:
                curve.steps.append(told.steps)
                curve.losses.append(self._loss(told.snapshot()))

        strategy = ic.ICL(
            lr=Given(rates=rates),
            old_batch_size=old,
            batch_size=new,
            max_epochs=100_000,
            patience=None,
        )
        try:
            train(
                task,
                strategy,
                budget=ic.Budget(forward_passes=2 * (old + new) * steps),
                callbacks=[watch],
            )
        except TrainingDiverged:
            curve.steps.append(curve.steps[-1] + every)
            curve.losses.append(math.log(3.5))
        return curve

    def _loss(self, encoder: torch.nn.Module) -> float:
        population = measure(
            encoder, self.domain, self.increment, sample=SAMPLE, engine=self.engine
        )
        return math.log(population.evaluation_loss().all)


class Quadratic:
    """Noisy gradient descent on ½·Σ hᵢ·wᵢ² + floor; rates above 2 / max h diverge.

    Args:
        best: The rate that is about best, 1 / max h.
    """

    def __init__(self, best: float) -> None:
        self.name, self.best = f"quadratic {best:.3g}", best

    def run(self, rates: LearningRate, draws: Generator, steps: int, every: int) -> Curve:
        def draw(low: float, high: float) -> float:
            return low * (high / low) ** torch.rand((), generator=draws).item()

        curvature = torch.logspace(-1, 0, 16, dtype=torch.float64) / self.best
        floor, noise = draw(0.03, 1.0), draw(0.003, 0.1)
        weights = torch.randn(16, generator=draws, dtype=torch.float64) / curvature.sqrt()
        mean, curve = weights.clone(), Curve([], [])

        def loss(of: Tensor) -> float:
            return min(0.5 * float((curvature * of**2).sum()) / 8.0 + floor, 1e6)

        curve.steps.append(0)
        curve.losses.append(math.log(loss(weights)))
        for step in range(1, steps + 1):
            rates.observe(loss(weights) * math.exp(noise * torch.randn((), generator=draws).item()))
            shake = torch.randn(16, generator=draws, dtype=torch.float64)
            gradient = curvature * weights + 0.2 * curvature.sqrt() * shake
            weights = (weights - rates.next_lr(step / steps) * gradient).clamp(-1e3, 1e3)
            mean.lerp_(weights, max(0.01, 1.0 / (step + 1)))
            if step % every == 0:
                curve.steps.append(step)
                curve.losses.append(math.log(loss(mean)))
        return curve


def updates() -> list[Update]:
    """About 20 of them, each fitted for a while on its old items."""
    made = []
    for number, (dim, kinds, new, epochs) in enumerate(
        [(12, 6, 2, 60), (24, 8, 3, 90), (48, 5, 1, 25), (32, 10, 5, 60), (16, 4, 0, 100)]
    ):
        rows, labels = mixture(number, dim, kinds)
        parts = (
            ic.streams.by_class(rows, tuple(range(kinds - new, kinds)), labels=labels)
            if new
            else ic.streams.by_growth(rows, 0.4, number)
        )
        made.append(Update(f"mixture {number}", ic.Vectors(dim), *parts, epochs))
    for load, name in ((load_breast_cancer, "cells"), (load_wine, "wines")):
        rows = torch.from_numpy(load().data).float()
        parts = ic.streams.by_growth(rows, 0.5, 0)
        made.append(Update(name, ic.Vectors(rows.shape[1]), *parts, 100))
    data = ic.data.digits()
    rows = torch.from_numpy(data.items.reshape(len(data), -1)).float()
    for new, epochs in (((0, 1), 80), ((2, 5, 6), 120), ((3, 4, 6, 8), 30)):
        parts = ic.streams.by_class(rows, new, labels=data.labels)
        made.append(Update(f"digits, new {new}", ic.Vectors(64), *parts, epochs))
    made.append(
        Update("digits", ic.Vectors(64, hidden=256), *ic.streams.by_growth(rows, 0.2, 1), 80)
    )
    views = ic.ImageViews(flip=0.0, scale=(0.4, 1.0))
    for new, epochs in (((5, 9), 15), ((0, 2, 4), 20)):
        parts = [part.items for part in ic.streams.by_class(data, new)]
        pictures = ic.Images(8, 1, encoder="small", views=views)
        made.append(Update(f"pictures, new {new}", pictures, *parts, epochs))
    for number, alpha in enumerate((0.3, 0.6)):
        parts = ic.streams.by_growth(graphs(number), alpha, number)
        made.append(Update(f"graphs {number}", ic.Graphs(), *parts, 60))
    return made


def mixture(seed: int, dim: int, kinds: int) -> tuple[Tensor, np.ndarray]:
    """Clusters of points, each stretched in directions of its own."""
    draws = Generator().manual_seed(seed)
    rows, labels = [], []
    for kind in range(kinds):
        centre = 2.0 * torch.randn(dim, generator=draws)
        stretch = torch.randn(dim, dim, generator=draws) / dim**0.5
        rows.append(centre + torch.randn(150, dim, generator=draws) @ stretch)
        labels += [kind] * 150
    return torch.cat(rows), np.array(labels)


def graphs(seed: int) -> list[tuple[Tensor, None]]:
    """Rings, stars and random graphs with shortcuts."""
    draws = Generator().manual_seed(seed)
    made = []
    for number in range(400):
        size = int(torch.randint(10, 40, (), generator=draws))
        nodes = torch.arange(size)
        hub = torch.zeros_like(nodes)
        chance = torch.randint(size, (size,), generator=draws)
        ends = ((nodes + 1) % size, hub, chance)[number % 3]
        extra = torch.randint(size, (2, size // (2 + number % 4)), generator=draws)
        edges = torch.cat([torch.stack([nodes, ends]), extra], dim=1)
        made.append((torch.cat([edges, edges.flip(0)], dim=1), None))
    return made
