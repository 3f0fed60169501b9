"""What a row says about its machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paper import machine
from paper.machine import AddedMemory

MB = 2**20


def pieces(count: int) -> list[np.ndarray]:
    return [np.ones(8 * 1024) for _ in range(count)]  # of 64 KB, which come from the heap


def test_memory_counts_what_is_added_and_its_peak_stays() -> None:
    added = AddedMemory()
    if added.bytes() is None:
        pytest.skip("the system does not say")
    assert added.bytes() < 20 * MB
    block = np.ones(100 * MB // 8)
    del block
    assert 80 * MB < added.bytes() < 140 * MB
    assert AddedMemory().bytes() < 20 * MB, "a new one starts at zero"


def test_without_proc_memory_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: nothing to reset the peak with, and nothing to read it from."""
    monkeypatch.setattr(machine, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    monkeypatch.setattr(machine, "STATUS", tmp_path / "none" / "status")
    assert AddedMemory().bytes() is None


def test_what_was_freed_before_does_not_hide_what_comes() -> None:
    kept = pieces(4_000)
    del kept[::2]  # 125 MB of holes, which the heap would hand out again
    added = AddedMemory()
    if added.bytes() is None:
        pytest.skip("the system does not say")
    again = pieces(2_000)
    assert added.bytes() > 80 * MB
    del kept, again
