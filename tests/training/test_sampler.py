"""Batches hold what they should, as often as they should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from incontrast import TensorCollection
from incontrast.training.task import Increment, InfiniteSampler, joint_epoch, new_epoch, shuffled


def rows(count: int) -> TensorCollection:
    return TensorCollection(torch.zeros(count, 1))


@given(count=st.integers(2, 200), size=st.integers(4, 64), seed=st.integers(0, 99))
def test_an_epoch_has_every_item_once_in_even_batches(count: int, size: int, seed: int) -> None:
    batches = list(shuffled(count, size, Generator().manual_seed(seed)))
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2


@given(count=st.integers(2, 40), size=st.integers(1, 50))
def test_a_draw_has_no_repeats(count: int, size: int) -> None:
    rounds = InfiniteSampler(count, Generator().manual_seed(0))
    for _ in range(5):
        drawn = rounds.draw(size)
        assert len(drawn) == min(size, count)
        assert len(set(drawn.tolist())) == len(drawn)


def test_rounds_are_uniform() -> None:
    rounds = InfiniteSampler(10, Generator().manual_seed(0))
    counts = torch.bincount(torch.cat([rounds.draw(3) for _ in range(4000)]), minlength=10)
    assert (counts - 1200).abs().max() < 120


def test_new_epoch_has_no_old_items() -> None:
    increment = Increment(rows(9), rows(7), 9)
    picks = list(new_epoch(increment, 4, Generator().manual_seed(0)))
    assert all(len(pick.old) == 0 for pick in picks)
    assert sorted(torch.cat([pick.new for pick in picks]).tolist()) == list(range(7))


def test_joint_epoch_has_everything_once_when_memory_is_complete() -> None:
    increment = Increment(rows(9), rows(7), 9)
    picks = list(joint_epoch(increment, 4, Generator().manual_seed(0)))
    assert sorted(torch.cat([pick.old for pick in picks]).tolist()) == list(range(9))
    assert sorted(torch.cat([pick.new for pick in picks]).tolist()) == list(range(7))


def test_joint_epoch_weighs_a_sample_by_what_it_stands_for() -> None:
    # 20 stored items stand for 300 seen; 100 new ones are a quarter of X′.
    increment = Increment(rows(20), rows(100), 300)
    assert increment.growth_ratio == 0.25
    generator = Generator().manual_seed(0)
    picks = [pick for _ in range(100) for pick in joint_epoch(increment, 30, generator)]
    new = sum(len(pick.new) for pick in picks)
    old = sum(len(pick.old) for pick in picks)
    assert new / (new + old) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(("kept", "new", "seen"), [(10, 100, 1000), (30, 50, 1000), (5, 1, 40)])
def test_a_small_memory_keeps_its_weight(kept: int, new: int, seen: int) -> None:
    increment = Increment(rows(kept), rows(new), seen)
    generator = Generator().manual_seed(0)
    picks = [pick for _ in range(300) for pick in joint_epoch(increment, 64, generator)]
    drawn_new = sum(len(pick.new) for pick in picks)
    drawn_old = sum(len(pick.old) for pick in picks)
    share = drawn_new / (drawn_new + drawn_old)
    assert share == pytest.approx(increment.growth_ratio, rel=0.15)
    assert all(len(pick.new) + len(pick.old) >= 2 for pick in picks)


@pytest.mark.parametrize("kept", [0, 1])
def test_next_to_no_memory(kept: int) -> None:
    increment = Increment(rows(kept) if kept else None, rows(9), 50)
    picks = list(joint_epoch(increment, 4, Generator().manual_seed(0)))
    assert sorted(torch.cat([pick.new for pick in picks]).tolist()) == list(range(9))


def test_an_increment_cannot_hold_more_than_was_seen() -> None:
    with pytest.raises(ValueError, match="got 3 seen but 5 stored"):
        Increment(rows(5), rows(1), 3)


def test_a_round_ends_with_its_last_item() -> None:
    rounds = InfiniteSampler(10, Generator().manual_seed(0))
    for _ in range(20):
        drawn = torch.cat([rounds.draw(5), rounds.draw(5)])
        assert sorted(drawn.tolist()) == list(range(10))
