"""``incontrast paper``: the paper's experiments run, shown and reported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from incontrast.cli.exit_codes import Exit
from paper.row_file import Row, read_rows

if TYPE_CHECKING:
    from paper.grid import Grid
    from paper.summary import Summary

__all__ = ["paper"]

paper = typer.Typer(
    name="paper",
    help="The paper's experiments: run them, show the tables, write the report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Rows = Annotated[Path, typer.Option(help="The file of rows, one JSON line for each cell.")]
DEFAULT_ROWS = Path("results/paper.jsonl")

# For --help, which does not wait for the data sets and strategies themselves.
SETS = "proteins, mnist-2, imagenet-2, mnist-class, mnist-shift, reddit"
SMALL_SETS = "digits, digits-vectors, mnist-2-small"
STRATEGIES = (
    "retraining, inference, fine-tuning, warm-start, replay, distillation, icl, icl-learned, "
    "paper, paper-no-lrl, paper-no-m, paper-no-m-lrl"
)
UNUSUAL_STRATEGIES = "warm-start-96, icl-large"


class Part(StrEnum):
    """What ``show`` prints, in this order."""

    OVERVIEW = "overview"
    CLAIMS = "claims"
    TABLE_3 = "table-3"
    TABLE_4 = "table-4"
    LEVEL = "level"


@paper.command("run")
def run_command(
    data: Annotated[
        Path | None,
        typer.Option(envvar="INCONTRAST_DATA", help="The folder that holds the data sets."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=f"A data set; may be given again. Without it: {SETS}. At scale 'small' there are "
            f"also {SMALL_SETS}.",
            show_default=False,
        ),
    ] = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            help=f"A strategy; may be given again. Without it: {STRATEGIES}. There are also "
            f"{UNUSUAL_STRATEGIES}. Retraining always runs.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            "--seed", help="A seed; may be given again. Without it: 0 alone.", show_default=False
        ),
    ] = None,
    ratios: Annotated[
        list[float] | None,
        typer.Option(
            "--ratio",
            help="A growth ratio; may be given again. Without it: each data set's own.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Sizes: 'small' fits two cores and a night, 'paper' is the paper's.")
    ] = "small",
    epochs: Annotated[
        int | None, typer.Option(help="Epochs at most, instead of a set's own.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Patience, instead of a set's own.")] = None,
    items: Annotated[int | None, typer.Option(help="Items, instead of a set's own number.")] = None,
    rows: Rows = DEFAULT_ROWS,
    work: Annotated[Path, typer.Option(help="A folder for fitted encoders, to go on from.")] = Path(
        "build/paper"
    ),
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
        _end(f"{error}: finished rows are kept, the same command goes on", Exit.MACHINE)
    except BrokenProcessPool:
        _end(
            "a process was killed, perhaps for lack of memory: finished rows are kept, the same "
            "command goes on; fewer --jobs need less memory",
            Exit.MACHINE,
        )
    except KeyboardInterrupt:
        _end("interrupted: finished rows are kept, the same command goes on", Exit.INTERRUPTED)


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
    console.print(f"{grid.count()} cells, {left} without a row; rows go to {rows}")
    with grid_progress(console, grid, known, jobs=jobs) as tell:
        made = run(grid, rows, folder=data, work=work, jobs=jobs, tell=tell)
    console.print(f"{len(made)} new rows in {rows}")


@paper.command()
def show(
    parts: Annotated[
        list[Part] | None,
        typer.Option(
            "--part",
            help="Only this: who comes to retraining's level, what became of the claims, one of "
            "the paper's tables, or the speed-ups until level with retraining; may be given again.",
        ),
    ] = None,
    rows: Rows = DEFAULT_ROWS,
    scale: Annotated[str, typer.Option(help="Which sizes: 'small' or 'paper'.")] = "small",
) -> None:
    """Print the claims and the speed-ups, the paper's figure beside each of ours."""
    from rich.console import Console

    from incontrast.cli.tables import print_table, print_verdicts
    from paper.captions import provenance
    from paper.claims import claims_of_the_paper
    from paper.own_claims import claims_of_ours
    from paper.speed_tables import level_tables, speed_up_tables, standings_table
    from paper.verdicts import with_rows

    summary = _summary(rows, scale)
    console = Console()
    chosen = parts or list(Part)
    if Part.OVERVIEW in chosen:
        print_table(console, standings_table(summary))
    if Part.CLAIMS in chosen:
        claims = {
            "The paper's claims": claims_of_the_paper(summary),
            "Ours": claims_of_ours(summary),
        }
        for title, verdicts in claims.items():
            if there := with_rows(verdicts):
                print_verdicts(console, title, there)
            if len(there) < len(verdicts):
                console.print(f"{title}: {len(verdicts) - len(there)} have no rows yet.\n")
    for part, number in ((Part.TABLE_3, 3), (Part.TABLE_4, 4)):
        for table in speed_up_tables(summary):
            if part in chosen and table.title.startswith(f"Table {number}"):
                print_table(console, table)
    if Part.LEVEL in chosen:
        for table in level_tables(summary):
            print_table(console, table)
    if notes := provenance(summary):
        console.print(notes)
    command = "incontrast paper report" + ("" if rows == DEFAULT_ROWS else f" --rows {rows}")
    console.print(f"Accuracies, losses, bias, costs and figures: {command}", soft_wrap=True)


@paper.command()
def report(
    rows: Rows = DEFAULT_ROWS,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("paper.html"),
    scale: Annotated[str, typer.Option(help="Which sizes: 'small' or 'paper'.")] = "small",
) -> None:
    """Write everything into one HTML file that needs nothing else."""
    from incontrast.report import save
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
    if not rows.exists():
        _end(
            f"there is no file {rows}: name one with --rows; `incontrast paper run` makes it",
            Exit.DATA,
        )
    summary = Summary(_rows(rows), scale)
    if not summary.places:
        _end(
            f"{rows} has no finished cell of scale {scale!r}: `incontrast paper run` makes them",
            Exit.DATA,
        )
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
    typer.echo(f"incontrast: {error}", err=True)
    raise typer.Exit(code) from None
