"""Validation of numeric settings, with uniform messages."""

import math
from numbers import Integral, Real
from typing import Any


def given(**numbers: Any) -> dict[str, Any]:
    """The settings that are not None.

    >>> check_whole(1, **given(items=None, bytes=3))
    """
    return {name: value for name, value in numbers.items() if value is not None}


def check_whole(least: int, /, advice: str = "", **numbers: Any) -> None:
    """Refuse settings that are not whole numbers, or below ``least``."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if int(value) < least:
            raise ValueError(f"{name} must be at least {least}, got {value}" + _because(advice))


def check_number(interval: str, /, advice: str = "", **numbers: Any) -> None:
    """Refuse settings that are not finite numbers in an interval.

    >>> check_number("[0, 1)", "0 averages nothing", decay=1.0)
    Traceback (most recent call last):
    ValueError: decay must be in [0, 1), got 1.0: 0 averages nothing
    """
    low, high = map(float, interval[1:-1].split(","))
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        number = float(value)
        above = number >= low if interval[0] == "[" else number > low
        below = number <= high if interval[-1] == "]" else number < high
        if not (above and below and math.isfinite(number)):
            bounds = f"in {interval}" if high < math.inf else f"at least {low:g}"
            bounds = "positive" if interval == "(0, inf)" else bounds
            raise ValueError(f"{name} must be {bounds}, got {value}" + _because(advice))


def _because(advice: str) -> str:
    return f": {advice}" if advice else ""
