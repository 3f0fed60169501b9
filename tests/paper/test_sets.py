"""The data sets of the comparison, as real files and as splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paper.grid import describe
from paper.names import SETS
from paper.names import STRATEGIES as NAMES
from paper.sets import PAPER, SMALL
from paper.strategies import STRATEGIES


@pytest.mark.parametrize(
    "name", ["proteins", "mnist-2", "imagenet-2", "mnist-class", "mnist-shift"]
)
def test_real_files_become_increments(shared_data: Path, name: str) -> None:
    data = SMALL[name]
    splits = data.splits(shared_data, 0.3, seed=0)
    total = len(splits.old) + len(splits.new)
    assert total == (data.items or 1002)
    assert len(splits.new) / total == pytest.approx(0.3, abs=0.03)
    assert len(splits.held_out_old) > 50
    collection = data.domain.fit_statistics(data.domain.collect(splits.old.items)).collect(
        splits.new.items
    )
    assert len(collection) == len(splits.new)
    again = data.splits(shared_data, 0.3, seed=0)
    assert np.array_equal(again.new.labels, splits.new.labels)
    assert (splits.held_out_new is None) == (data.split == "random")


def test_a_class_split_keeps_classes_apart() -> None:
    splits = SMALL["digits"].splits(None, 0.3, seed=1)
    assert set(splits.old.labels) == set(range(7))
    assert set(splits.new.labels) == {7, 8, 9}
    assert set(splits.held_out_new.labels) == {7, 8, 9}
    count = sum(map(len, (splits.old, splits.new, splits.held_out_old, splits.held_out_new)))
    assert count == 1797, "what is held out is not seen"


def test_a_shift_turns_what_comes_later() -> None:
    data = replace(SMALL["digits"], split="shift", new_classes=())
    plain = replace(data, split="random").splits(None, 0.3, seed=0)
    turned = data.splits(None, 0.3, seed=0)
    assert np.array_equal(plain.old.items, turned.old.items)
    assert np.array_equal(np.rot90(plain.new.items[0]), turned.new.items[0])
    assert np.array_equal(plain.held_out_old.items, turned.held_out_old.items)
    assert np.array_equal(np.rot90(plain.held_out_old.items[3]), turned.held_out_new.items[3])


def test_every_name_has_a_place_in_the_tables() -> None:
    assert tuple(STRATEGIES) == NAMES
    assert set(SMALL) == set(SETS)
    assert set(PAPER) <= set(SMALL)


def test_a_searched_learning_rate_goes_everywhere_and_no_other_is_touched() -> None:
    for name, entry in STRATEGIES.items():
        made = entry.make(0.123)
        assert made.patience is None
        assert ("0.123" in repr(describe(made))) == entry.searched, name
    meta = STRATEGIES["paper-no-lrl"].make(0.123).meta
    assert meta.lr == 0.123


def test_settings_leave_out_what_is_off() -> None:
    told = describe(STRATEGIES["icl"].strategy)
    assert (told["lr"], told["optimizer"]["max_relative_update"]) == (2e-3, 0.125)
    assert "optimizer" not in describe(STRATEGIES["replay"].strategy)
    assert "meta" not in told
    assert describe(SMALL["proteins"].domain) == describe(PAPER["proteins"].domain)
