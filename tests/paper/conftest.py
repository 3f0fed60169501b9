"""A tiny grid on data that needs no files, and rows as a grid would have written them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paper.grid import Grid


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Grid]:
    """Creates a grid on a few digits that takes seconds."""

    def make(
        strategies: tuple[str, ...] = ("no-update", "fine-tuning", "icl"),
        seeds: tuple[int, ...] = (0,),
        **changes: object,
    ) -> Grid:
        settings = {
            "items": 90,
            "max_epochs": 3,
            "patience": 2,
            "sample": 32,
            "learning_rates": (1e-3, 1e-4),
            "search_epochs": 1,
            "folds": 2,
        }
        return Grid.of(
            sets=["digits-vectors"],
            strategies=list(strategies),
            seeds=list(seeds),
            **(settings | changes),
        )

    return make


def fake_row(
    strategy: str,
    *,
    set: str = "proteins",
    ratio: float = 0.3,
    seed: int = 0,
    best: tuple[float, int] | None = (10.0, 100),
    reached: tuple[float, int] | None = (20.0, 4000),
    after: tuple[float, float] = (0.3, 0.3),
    svm: float = 0.8,
    **more: Any,
) -> dict[str, Any]:
    """A finished run: seconds and epochs to the lowest loss, seconds and passes to parity."""
    loss = {"old": after[0], "new": after[1], "all": (1 - ratio) * after[0] + ratio * after[1]}
    accuracy = {
        "svm_old": svm,
        "svm_new": svm,
        "knn_old": svm,
        "knn_new": svm,
        "held_out": {"all": svm},
    }
    size = {"old": 0.1, "new": 0.2}
    nothing = {"old": 1e-16, "new": 0.0}
    settings = {
        "data": set,
        "growth_ratio": ratio,
        "seed": seed,
        "patience": 50,
        "max_epochs": 200,
        "limit": 1.0,
        "domain": {"type": "Images", "size": 16, "encoder": "resnet18"},
        "strategy": {"type": strategy},
    }
    return {
        "format": 2,
        "key": f"{set} {ratio} {seed} {strategy}",
        "kind": "run",
        "scale": "small",
        "set": set,
        "data": set.upper(),
        "split": "random",
        "growth_ratio": ratio,
        "seed": seed,
        "settings": settings,
        "clock": "processor",
        "strategy": strategy,
        "counts": {"old": 70, "new": 30, "held_out": 10},
        "alpha": ratio,
        "total": {"seconds": 30.0, "epochs": 200, "forward_passes": 6000},
        "paper": {
            "stopped": "patience",
            "epochs": 150,
            "best": None
            if best is None
            else {"seconds": best[0], "epochs": best[1], "forward_passes": 1},
            "accuracy": accuracy,
        },
        "parity": {
            "before": {"old": 0.3, "new": 0.9, "all": 0.48},
            "after": loss,
            "target": loss,
            "reached": None
            if reached is None
            else {"seconds": reached[0], "epochs": 1.0, "forward_passes": reached[1]},
            "accuracy": accuracy,
        },
        "bias": {
            "no_update": size,
            "fine_tuning": size,
            "retraining": nothing,
            "icl": nothing,
            "change_ratio": [0.8, 0.9, 1.0],
        },
        "curve": {
            "seconds": [0.0, 1.0, 2.0],
            "forward_passes": [0, 100, 200],
            "epochs": [0, 1, 2],
            "old": [0.3, 0.4, 0.3],
            "new": [0.9, 0.5, 0.3],
            "all": [0.48, 0.4, 0.3],
            "training_loss": [1.0, 0.5],
        },
        "cost": {"seconds": 40.0},
        "date": "2026-01-01",
        "machine": {"processor": "abacus", "cores": 1, "threads": 1},
        "software": {"torch": "2"},
        **more,
    }


def trial(strategy: str, rate: float, loss: float | None, **more: Any) -> dict[str, Any]:
    """A trial of the search for a learning rate."""
    row = fake_row(strategy, **more)
    return row | {"kind": "trial", "lr": rate, "loss": loss, "key": f"{row['key']} {rate}"}


@pytest.fixture(scope="session")
def row() -> Callable[..., dict[str, Any]]:
    return fake_row


@pytest.fixture(scope="session")
def trial_row() -> Callable[..., dict[str, Any]]:
    return trial


@pytest.fixture(scope="session")
def whole_grid() -> list[dict[str, Any]]:
    """All runs of the paper with two seeds, and those under a shift."""
    rows = []
    figures: dict[str, Any] = {
        "retraining": {"best": (100.0, 100), "reached": (100.0, 6000)},
        "no-update": {"best": None, "reached": None, "after": (0.3, 0.9)},
        "fine-tuning": {"best": (5.0, 20), "reached": None, "after": (0.5, 0.3)},
        "replay": {"best": (20.0, 40)},
        "distillation": {"best": (25.0, 50), "reached": None},
        "paper": {"best": (10.0, 10), "reached": None, "svm": 0.79},
        "paper-no-lrl": {"best": (12.0, 12), "reached": None},
        "paper-no-m": {"best": (8.0, 30), "reached": None},
        "paper-no-m-lrl": {"best": (40.0, 60), "reached": None},
        "warm-start": {"best": (50.0, 50), "reached": (30.0, 1800)},
        "icl": {"best": (9.0, 9), "reached": (5.0, 400)},
    }
    places = [
        (s, r) for s in ("imagenet-2", "mnist-2", "proteins", "reddit") for r in (0.3, 0.5, 0.7)
    ]
    places += [("mnist-class", 0.3), ("mnist-shift", 0.3)]
    places += [("proteins", r) for r in (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)]
    for name, ratio in places:
        for seed in (0, 1):
            for strategy, given in figures.items():
                rows.append(fake_row(strategy, set=name, ratio=ratio, seed=seed, **given))
    rows.append(trial("fine-tuning", 1e-3, 0.5))
    rows.append(trial("fine-tuning", 1e-4, 0.4))
    return rows
