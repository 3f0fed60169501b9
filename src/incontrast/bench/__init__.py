"""Comparing strategies: one watched update, and grids of them that become rows."""

from incontrast.bench.grid import Grid
from incontrast.bench.run import Event, run, unfinished
from incontrast.bench.trace import Point, Trace, trace
from incontrast.level import as_good

__all__ = ["Event", "Grid", "Point", "Trace", "as_good", "run", "trace", "unfinished"]
