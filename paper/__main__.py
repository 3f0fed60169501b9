"""``python -m paper``: the paper's experiments run, shown and reported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.models import OptionInfo

from incontrast.cli.command import Exit
from paper.names import ON_REQUEST, OWN_SETS, SETS, STRATEGIES
from paper.row_file import Row, read_rows

if TYPE_CHECKING:
    from paper.grid import Grid
    from paper.summary import Summary

app = typer.Typer(
    name="paper",
    help="The paper's experiments: run them, show the tables, write the report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

DEFAULT_ROWS = Path(__file__).resolve().parent / "rows" / "paper.jsonl"
RESUME = "finished rows are kept, the same command resumes"
USUAL_SETS = ", ".join(name for name in SETS if name not in OWN_SETS)
USUAL_STRATEGIES = ", ".join(name for name in STRATEGIES if name not in ON_REQUEST)


def _several(flag: str, what: str, default: str) -> OptionInfo:
    help_text = f"{what}; may be given again. Without it: {default}."
    option: OptionInfo = typer.Option(flag, help=help_text, show_default=False)
    return option


Rows = Annotated[
    Path, typer.Option(help="The file of rows, one JSON line for each run.", show_default=False)
]
Scale = Annotated[
    str, typer.Option(help="Sizes: 'small' fits two cores and a night, 'paper' is the paper's.")
]


class Part(StrEnum):
    """What ``show`` prints, in this order."""

    OVERVIEW = "overview"
    CLAIMS = "claims"
    TABLE_3 = "table-3"
    TABLE_4 = "table-4"
    PARITY = "parity"
    SWEEP = "sweep"


@app.command("run")
def run_command(
    data: Annotated[
        Path | None,
        typer.Option(envvar="INCONTRAST_DATA", help="The folder that holds the data sets."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        _several(
            "--set",
            "A data set",
            f"{USUAL_SETS}. At scale 'small' there are also {', '.join(OWN_SETS)}",
        ),
    ] = None,
    strategies: Annotated[
        list[str] | None,
        _several(
            "--strategy",
            "A strategy",
            f"{USUAL_STRATEGIES}. There are also {', '.join(ON_REQUEST)}. Retraining always runs",
        ),
    ] = None,
    seeds: Annotated[list[int] | None, _several("--seed", "A seed", "0 alone")] = None,
    ratios: Annotated[
        list[float] | None, _several("--ratio", "A growth ratio", "each data set's own")
    ] = None,
    scale: Scale = "small",
    epochs: Annotated[
        int | None, typer.Option(help="Epochs at most, instead of a data set's own.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Patience, instead of a data set's own.")
    ] = None,
    items: Annotated[
        int | None, typer.Option(help="Items, instead of a data set's own number.")
    ] = None,
    rows: Rows = DEFAULT_ROWS,
    work: Annotated[
        Path, typer.Option(help="A folder for fitted encoders, to resume from.")
    ] = Path("build/paper"),
    jobs: Annotated[
        int, typer.Option(help="Processes side by side; 1 when time is the question.")
    ] = 1,
) -> None:
    """Run the grid of seed 0, or what the options name. What has a row already is skipped."""
    from concurrent.futures.process import BrokenProcessPool

    from paper.grid import Grid

    if jobs < 1:
        _end(f"--jobs must be at least 1, got {jobs}", Exit.USAGE)
    try:
        grid = Grid.of(
            sets=sets,
            strategies=strategies,
            seeds=seeds,
            ratios=ratios,
            scale=scale,
            max_epochs=epochs,
            patience=patience,
            items=items,
        )
    except ValueError as error:
        _end(error, Exit.USAGE)
    known = _rows(rows)
    try:
        _run(grid, rows, known, data, work, jobs)
    except (ValueError, FileNotFoundError) as error:
        _end(error, Exit.DATA)
    except OSError as error:
        _end(f"{error}: {RESUME}", Exit.MACHINE)
    except BrokenProcessPool:
        killed = "a process was killed, perhaps for lack of memory"
        _end(f"{killed}: {RESUME}; fewer --jobs need less memory", Exit.MACHINE)
    except KeyboardInterrupt:
        _end(f"interrupted: {RESUME}", Exit.INTERRUPTED)


def _run(
    grid: Grid, rows: Path, known: list[Row], data: Path | None, work: Path, jobs: int
) -> None:
    import torch
    from rich.console import Console

    from paper.progress import grid_progress
    from paper.run import run, unfinished

    torch.set_num_threads(1)  # on one thread a run's processor time is its time on an idle machine
    console = Console()
    left = len(unfinished(grid, known))
    console.print(f"{grid.count()} runs, {left} without a row; rows go to {rows}", markup=False)
    with grid_progress(console, grid, known, jobs=jobs) as notify:
        created = run(grid, rows, folder=data, work=work, jobs=jobs, notify=notify)
    console.print(f"{len(created)} new rows in {rows}", markup=False)


@app.command()
def show(
    parts: Annotated[
        list[Part] | None,
        typer.Option(
            "--part",
            help="Only this: who comes to parity with retraining, in how many places claims hold, "
            "one of the paper's tables, the speed-ups to parity, or the sweep of growth ratios; "
            "may be given again.",
            show_default=False,
        ),
    ] = None,
    rows: Rows = DEFAULT_ROWS,
    scale: Scale = "small",
) -> None:
    """Print the claims and the speed-ups, the paper's figure beside each of ours."""
    from rich.console import Console

    from paper.speed_tables import parity_tables, speed_up_tables, standings_table, sweep_table
    from paper.terminal import print_wide
    from paper.verdicts import claims_table

    summary = _summary(rows, scale)
    speed_ups = speed_up_tables(summary)
    tables = {
        Part.OVERVIEW: [standings_table(summary)],
        Part.CLAIMS: [claims_table(summary)],
        Part.TABLE_3: [table for table in speed_ups if table.title.startswith("Table 3")],
        Part.TABLE_4: [table for table in speed_ups if table.title.startswith("Table 4")],
        Part.PARITY: parity_tables(summary),
        Part.SWEEP: [sweep_table(summary)],
    }
    console = Console()
    for part in parts or list(Part):
        for table in tables[part]:
            if table.rows:
                print_wide(console, table)
    if summary.set_aside:
        console.print(
            f"Set aside: {summary.set_aside} rows whose settings are not those with which most "
            "seeds were run."
        )
    command = "python -m paper report" + ("" if rows == DEFAULT_ROWS else f" --rows {rows}")
    console.print(f"All tables and figures: {command}", soft_wrap=True, markup=False)


@app.command()
def report(
    rows: Rows = DEFAULT_ROWS,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("paper.html"),
    scale: Scale = "small",
) -> None:
    """Write everything into one HTML file that needs nothing else."""
    from incontrast.report.page import save
    from paper.page import paper_page

    summary = _summary(rows, scale)
    if not out.absolute().parent.is_dir():
        _end(f"there is no folder {out.absolute().parent}", Exit.USAGE)
    if out.is_dir():
        _end(f"{out} is a folder: name a file, such as {out / 'paper.html'}", Exit.USAGE)
    try:
        save(paper_page(summary), out)
    except OSError as error:
        _end(error, Exit.MACHINE)
    typer.echo(f"The report: {out}")


def _summary(rows: Path, scale: str) -> Summary:
    from paper.summary import Summary

    if scale not in ("small", "paper"):
        _end(f"there is no scale {scale!r}: choose from small, paper", Exit.USAGE)
    create = "`python -m paper run` creates"
    if not rows.exists():
        _end(f"there is no file {rows}: name one with --rows; {create} it", Exit.DATA)
    summary = Summary(_rows(rows), scale)
    if not summary.places:
        _end(f"{rows} has no finished run of scale {scale!r}: {create} them", Exit.DATA)
    return summary


def _rows(path: Path) -> list[Row]:
    from paper.run import FIELDS

    if path.is_dir():
        _end(f"{path} is a folder: --rows names a file", Exit.USAGE)
    try:
        return read_rows(path, needs=FIELDS)
    except ValueError as error:
        _end(error, Exit.DAMAGED)


def _end(error: object, code: Exit) -> NoReturn:
    typer.echo(f"paper: {error}", err=True)
    raise typer.Exit(code) from None


if __name__ == "__main__":
    app(prog_name="python -m paper")
