"""What memory keeps, and that it stays a fair sample."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from incontrast import KeepAll, Queue, Reservoir, TensorCollection
from incontrast.memory.memory import Memory


def numbered(start: int, count: int) -> TensorCollection:
    return TensorCollection(torch.arange(start, start + count, dtype=torch.float32)[:, None])


def filled(policy, sizes: list[int], seed: int = 0) -> Memory:
    memory, start = Memory(policy), 0
    for number, size in enumerate(sizes):
        memory = memory.admit(numbered(start, size), Generator().manual_seed(1000 * seed + number))
        start += size
    return memory


def contents(memory: Memory) -> list[int]:
    assert memory.items is not None
    return memory.items.data[:, 0].long().tolist()


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), limit=st.integers(1, 30))
def test_ids_belong_to_their_items_and_limits_hold(sizes: list[int], limit: int) -> None:
    for policy in (KeepAll(), Reservoir(items=limit), Queue(items=limit)):
        memory = filled(policy, sizes)
        assert contents(memory) == memory.ids.tolist()
        assert memory.seen == sum(sizes)
        expected = sum(sizes) if policy.items is None else min(limit, sum(sizes))
        assert len(memory) == expected


def test_a_queue_keeps_the_most_recent() -> None:
    assert contents(filled(Queue(items=4), [3, 3, 3])) == [5, 6, 7, 8]


def test_a_limit_in_bytes() -> None:
    assert len(filled(Reservoir(bytes=4 * 7), [20, 20])) == 7
    assert contents(filled(Queue(bytes=4 * 2), [20])) == [18, 19]


def test_a_memory_too_small_for_one_item_says_so() -> None:
    with pytest.raises(ValueError, match="too small for a single item"):
        filled(Queue(bytes=3), [2])


def test_a_memory_may_be_empty_after_forgetting() -> None:
    memory = filled(Reservoir(items=2), [100])
    memory = memory.forget(memory.ids.tolist())
    for start in (100, 110):
        memory = memory.admit(numbered(start, 10), Generator().manual_seed(start))
    assert memory.seen == 118
    assert len(memory) <= 2


def test_what_is_remembered_does_not_change_with_its_owners_array() -> None:
    rows = numbered(0, 4)
    memory = Memory(KeepAll()).admit(rows, Generator())
    rows.data.fill_(9.0)
    assert contents(memory) == [0, 1, 2, 3]


def test_a_reservoir_is_uniform_over_everything_seen() -> None:
    counts = torch.zeros(30)
    for seed in range(500):
        counts[contents(filled(Reservoir(items=6), [5, 10, 15], seed))] += 1
    # Each of 30 items is kept with probability 1/5: 100 times, deviation 9.
    assert (counts - 100).abs().max() < 4.5 * 9
    # Of 5, 10 or 15 that came together, one more or less than expected in a memory at a time.
    arrivals = torch.stack([part.sum() for part in counts.split([5, 10, 15])])
    assert (arrivals - torch.tensor([500, 1000, 1500])).abs().max() < 4.5 * 500**0.5


@pytest.mark.parametrize("new", [3, 20])
def test_a_reservoir_stays_uniform_after_forgetting(new: int) -> None:
    """Items that come after a hole was left must not fill it more often than the others would."""
    counts, total = torch.zeros(10 + new), 0
    for seed in range(600):
        memory = filled(Reservoir(items=6), [10], seed).forget(range(5))
        memory = memory.admit(numbered(10, new), Generator().manual_seed(10_000 + seed))
        counts[contents(memory)] += 1
        total += len(memory)
    assert counts[:5].sum() == 0
    expected = total / (5 + new)
    assert (counts[5:] - expected).abs().max() < 4.5 * expected**0.5
    late = counts[10:].sum()
    assert abs(late - new * expected) < 4.5 * 600**0.5  # one more or less in a memory at a time


def test_forgetting_removes_the_item_and_its_weight() -> None:
    memory = filled(KeepAll(), [5]).forget([1, 3])
    assert contents(memory) == [0, 2, 4]
    assert memory.seen == 3
    again = memory.forget([1])
    assert again.seen == 3
    later = again.admit(numbered(5, 2), Generator())
    assert later.ids.tolist() == [0, 2, 4, 5, 6]


def test_forgetting_what_was_not_kept_still_counts() -> None:
    memory = filled(Queue(items=2), [5]).forget([0])
    assert contents(memory) == [3, 4]
    assert memory.seen == 4


def test_forgetting_everything() -> None:
    memory = filled(KeepAll(), [3]).forget(range(3))
    assert (memory.items, len(memory), memory.seen) == (None, 0, 0)
    assert contents(memory.admit(numbered(3, 2), Generator())) == [3, 4]


def test_unknown_ids_are_refused_and_nothing_is_forgotten() -> None:
    memory = filled(KeepAll(), [3])
    with pytest.raises(KeyError, match="ids go from 0 to 2"):
        memory.forget([0, 3])
    assert len(memory) == 3


def test_taking_in_leaves_the_memory_of_before_as_it_was() -> None:
    before = filled(Reservoir(items=4), [6])
    kept = contents(before)
    before.admit(numbered(6, 30), Generator().manual_seed(5))
    assert contents(before) == kept


@pytest.mark.parametrize("policy", [Queue, Reservoir])
def test_limits_are_checked(policy) -> None:
    with pytest.raises(ValueError, match="items must be at least 1, got 0"):
        policy(items=0)
    with pytest.raises(ValueError, match="KeepAll has no limit"):
        KeepAll(items=3)


def test_a_sample_stands_for_all_that_were_seen() -> None:
    memory = Memory.for_sample(Reservoir(items=20), 10, 1000)
    assert (memory.seen, memory.elsewhere, memory.threshold) == (990, 990, 0.01)
    memory = memory.admit(numbered(0, 10), Generator().manual_seed(0))
    assert (len(memory), memory.seen) == (10, 1000)
    assert float(memory.keys.max()) < 0.01
    whole = Memory.for_sample(KeepAll(), 10)
    assert (whole.elsewhere, whole.threshold) == (0, float("inf"))
    with pytest.raises(ValueError, match="must count every old item, got 9 for 10"):
        Memory.for_sample(Reservoir(), 10, 9)
    with pytest.raises(ValueError, match="are a sample, which KeepAll"):
        Memory.for_sample(KeepAll(), 10, 11)
