"""Running a grid: what is finished is skipped, what is killed loses one cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paper.grid import Grid, Group
from paper.group_run import Event, GroupRun, Tell
from paper.row_file import Row, append_row, read_rows
from paper.search import Ledger, identity
from paper.side_by_side import side_by_side

__all__ = ["FIELDS", "Event", "Tell", "Unfinished", "run", "unfinished"]

FIELDS = (
    *("key", "kind", "scale", "set", "data", "growth_ratio", "seed"),
    *("settings", "strategy", "clock"),
)
"""What every row of a grid has."""


@dataclass(frozen=True)
class Unfinished:
    """A cell that has no row yet."""

    set: str
    growth_ratio: float
    seed: int
    strategy: str


def run(
    grid: Grid,
    path: str | Path,
    *,
    folder: str | Path | None = None,
    work: str | Path,
    jobs: int = 1,
    tell: Tell | None = None,
) -> list[Row]:
    """Run the cells of a grid that have no row yet; returns the new rows.

    Args:
        grid: Which cells.
        path: The file of rows, to which finished ones are added.
        folder: The folder of data sets.
        work: A folder for fitted learners, which a later run goes on from.
        jobs: Processes side by side, each with increments of its own; with more than one they
            disturb each other's times.
        tell: Called with what happens.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    path, work = Path(path), Path(work)
    folder = None if folder is None else Path(folder)
    rows = {identity(row): row for row in read_rows(path, needs=FIELDS)}
    made: list[Row] = []

    def keep(row: Row) -> None:
        append_row(path, row)
        rows[identity(row)] = row
        made.append(row)

    def told(event: Event) -> None:
        if event.row is not None:
            keep(event.row)
        if tell is not None:
            tell(event)

    todo = [group for group in grid.groups() if _open_cells(group, rows)]
    if jobs == 1:
        for group in todo:
            GroupRun(group, rows, folder, work, told).run()
    else:
        side_by_side(todo, rows, folder, work, jobs, told, keep)
    return made


def unfinished(grid: Grid, rows: list[Row]) -> list[Unfinished]:
    """The cells that have no row yet, in the order in which they are run."""
    known = {identity(row): row for row in rows}
    return [
        Unfinished(group.name, group.growth_ratio, group.seed, name)
        for group in grid.groups()
        for name in _open_cells(group, known)
    ]


def _open_cells(group: Group, rows: Ledger) -> list[str]:
    return GroupRun(group, rows, None, Path(), lambda event: None).open_cells()
