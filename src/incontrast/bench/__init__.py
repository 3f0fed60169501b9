"""Comparing strategies on the same increment."""

from incontrast.bench.trace import Point, Trace, trace

__all__ = ["Point", "Trace", "trace"]
