"""Rates that follow a plan."""

from __future__ import annotations

import math

import pytest
from torch import Generator

from incontrast import Cosine, Fixed


def test_schedules() -> None:
    fixed = Fixed(0.1).begin(Generator())
    cosine = Cosine(0.1, steps=4).begin(Generator())
    proposed = []
    for _ in range(6):
        fixed.observe(1.0)
        cosine.observe(1.0)
        assert fixed.propose() == 0.1
        proposed.append(cosine.propose())
    expected = [0.1 * (1 + math.cos(math.pi * min(t / 4, 1))) / 2 for t in range(6)]
    assert proposed == pytest.approx(expected)
