"""A tiny grid on data that needs no files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paper.grid import Grid


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Grid]:
    """Makes a grid on a few digits that takes seconds."""

    def make(
        strategies: tuple[str, ...] = ("inference", "fine-tuning", "icl"),
        seeds: tuple[int, ...] = (0,),
        **changes: object,
    ) -> Grid:
        settings = {
            "items": 90,
            "max_epochs": 3,
            "patience": 2,
            "sample": 32,
            "rates": (1e-3, 1e-4),
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
