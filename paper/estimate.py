"""How long the rest of a grid should take, from what its cells have taken so far."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from paper.row_file import Row
from paper.run import Unfinished

__all__ = ["seconds_left"]


def seconds_left(
    cells: Iterable[Unfinished], rows: Sequence[Row], *, jobs: int = 1
) -> float | None:
    """The sum over cells of what a like cell took; None if there is nothing to go by.

    Like is: the same strategy on the same data, else any on the same data, else the same strategy
    anywhere, else any. First fits and trials of the search are shared out among the cells.
    """
    if not rows:
        return None
    finished = [row for row in rows if row["kind"] == "cell"]
    spent = sum(row["cost"]["seconds"] for row in rows)
    overhead = spent / max(sum(row["cost"]["seconds"] for row in finished), 1e-9)
    total = 0.0
    for cell in cells:
        same_data = [row for row in finished if row["set"] == cell.set]
        same_strategy = [row for row in finished if row["strategy"] == cell.strategy]
        both = [row for row in same_data if row["strategy"] == cell.strategy]
        like = both or same_data or same_strategy or finished
        if not like:
            return None
        total += overhead * statistics.median(row["cost"]["seconds"] for row in like)
    return total / jobs
