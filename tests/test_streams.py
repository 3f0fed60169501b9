"""Splits hold every item once, in any kind of container."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from incontrast import TensorCollection
from incontrast.data import Labelled, digits
from incontrast.streams import by_class, by_growth, in_batches

CONTAINERS = [
    list(range(20)),
    np.arange(20),
    torch.arange(20),
    TensorCollection(torch.arange(20)),
    Labelled(np.arange(20), np.arange(20) % 4, tuple("abcd")),
]


def values(items) -> list[int]:
    if isinstance(items, TensorCollection):
        items = items.data
    if isinstance(items, Labelled):
        items = items.items
    return [int(item) for item in items]


@pytest.mark.parametrize("items", CONTAINERS, ids=lambda items: type(items).__name__)
def test_every_item_is_in_one_part(items) -> None:
    old, new = by_growth(items, 0.3, seed=1)
    assert type(old) is type(items)
    assert (len(old), len(new)) == (14, 6)
    assert sorted(values(old) + values(new)) == list(range(20))
    labels = np.arange(20) % 4
    old, new = by_class(items, [1, 2], labels=labels)
    assert values(new) == [i for i in range(20) if i % 4 in (1, 2)]
    assert values(old) == [i for i in range(20) if i % 4 in (0, 3)]
    parts = list(in_batches(items, 6))
    assert sorted(chain.from_iterable(map(values, parts))) == list(range(20))
    assert {len(part) for part in parts} == {3, 4}


def test_the_seed_decides() -> None:
    items = list(range(50))
    assert by_growth(items, 0.5, seed=1) == by_growth(items, 0.5, seed=1)
    assert by_growth(items, 0.5, seed=1) != by_growth(items, 0.5, seed=2)
    assert list(chain.from_iterable(in_batches(items, 3, seed=None))) == items


def test_labelled_data_brings_its_labels() -> None:
    old, new = by_class(digits(), [7, 8, 9])
    assert set(old.labels) == set(range(7))
    assert set(new.labels) == {7, 8, 9}


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_growth_ratios_out_of_range(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\)"):
        by_growth([1, 2, 3], alpha)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: by_growth([1], 0.5), "at least 2 items"),
        (lambda: by_class([1, 2], [5], labels=[0, 1]), r"no items have the classes \[5\]"),
        (lambda: by_class([1, 2], [0, 1], labels=[0, 1]), "all classes are new"),
        (lambda: by_class([1, 2], [0], labels=[0]), r"labels must have shape \(2,\)"),
        (lambda: list(in_batches([1, 2], 3)), "2 items make 1 to 2 batches, got 3"),
    ],
)
def test_bad_splits(split, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split()
