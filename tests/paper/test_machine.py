"""What a row says about its machine."""

from __future__ import annotations

import numpy as np
import pytest

from paper.machine import AddedMemory

MB = 2**20


def pieces(count: int) -> list[np.ndarray]:
    return [np.ones(8 * 1024) for _ in range(count)]  # of 64 KB, which come from the heap


def test_memory_counts_what_is_added_and_its_peak_stays() -> None:
    watch = AddedMemory()
    if watch.bytes() is None:
        pytest.skip("the system does not tell")
    assert watch.bytes() < 20 * MB
    block = np.ones(100 * MB // 8)
    del block
    assert 80 * MB < watch.bytes() < 140 * MB
    assert AddedMemory().bytes() < 20 * MB, "a new watch begins anew"


def test_what_was_freed_before_does_not_hide_what_comes() -> None:
    kept = pieces(4_000)
    del kept[::2]  # 125 MB of holes, which the heap would hand out again
    watch = AddedMemory()
    if watch.bytes() is None:
        pytest.skip("the system does not tell")
    again = pieces(2_000)
    assert watch.bytes() > 80 * MB
    del kept, again
