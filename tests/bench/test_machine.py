"""What a row says about its machine."""

from __future__ import annotations

import numpy as np
import pytest

from incontrast.bench.machine import AddedMemory

MB = 2**20


def test_memory_counts_what_was_added_and_not_what_was_freed_before() -> None:
    pieces = [np.ones(8 * 1024) for _ in range(3_000)]  # 200 MB of the heap, in small pieces
    del pieces
    watch = AddedMemory()
    if watch.bytes() is None:
        pytest.skip("the system does not tell")
    assert watch.bytes() < 20 * MB
    block = np.ones(100 * MB // 8)
    del block
    assert 80 * MB < watch.bytes() < 140 * MB, "the peak stays when it is freed"
    assert AddedMemory().bytes() < 20 * MB, "and a new watch begins anew"
