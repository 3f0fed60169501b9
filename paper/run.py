"""Running a grid: what is finished is skipped, what is killed loses one run."""

from __future__ import annotations

from pathlib import Path

from paper.grid import Grid, Group
from paper.group_run import Event, GroupRun, Notify
from paper.parallel import run_groups
from paper.row_file import Row, append_row, read_rows
from paper.search import Ledger, identity

FIELDS = (
    *("key", "kind", "scale", "set", "data", "growth_ratio", "seed"),
    *("settings", "strategy", "clock"),
)
"""What every row of a grid has."""


def run(
    grid: Grid,
    path: str | Path,
    *,
    folder: str | Path | None = None,
    work: str | Path,
    jobs: int = 1,
    notify: Notify | None = None,
) -> list[Row]:
    """Run what has no row yet; returns the new rows.

    Args:
        grid: Which runs.
        path: The file of rows, to which finished ones are added.
        folder: The folder of data sets.
        work: A folder for fitted learners, which a later run resumes from.
        jobs: Processes side by side, each with increments of its own; with more than one they
            disturb each other's times.
        notify: Called with what happens.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    path, work = Path(path), Path(work)
    folder = None if folder is None else Path(folder)
    rows = {identity(row): row for row in read_rows(path, needs=FIELDS)}
    created: list[Row] = []

    def keep(row: Row) -> None:
        append_row(path, row)
        rows[identity(row)] = row
        created.append(row)

    def on_event(event: Event) -> None:
        if event.row is not None:
            keep(event.row)
        if notify is not None:
            notify(event)

    todo = [group for group in grid.groups() if _unfinished(group, rows)]
    if jobs == 1:
        for group in todo:
            GroupRun(group, rows, folder, work, on_event).run()
    else:
        run_groups(todo, rows, folder, work, jobs, on_event, keep)
    return created


def unfinished(grid: Grid, rows: list[Row]) -> list[tuple[Group, str]]:
    """Increments and strategies that have no row yet, in the order in which they are run."""
    known = {identity(row): row for row in rows}
    return [(group, name) for group in grid.groups() for name in _unfinished(group, known)]


def _unfinished(group: Group, rows: Ledger) -> list[str]:
    return GroupRun(group, rows, None, Path(), lambda event: None).unfinished()
