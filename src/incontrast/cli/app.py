"""The commands. What they need is imported inside them, so that ``--help`` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from incontrast._version import __version__
from incontrast.cli.drift import drift
from incontrast.cli.embed import embed
from incontrast.cli.init import init
from incontrast.cli.processes import refuse_many
from incontrast.cli.reporting import report
from incontrast.cli.rollback import forget, rollback
from incontrast.cli.status import log, status
from incontrast.cli.training import fit, update

__all__ = ["app", "main"]

app = typer.Typer(
    name="incontrast",
    help="Keep a self-supervised encoder up to date.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

for command in (init, fit, update, embed, drift, status, log, rollback, forget, report):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def incontrast(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep a self-supervised encoder up to date."""
    refuse_many(context.invoked_subcommand)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    picture: Annotated[
        Path, typer.Option(help="Where to draw the loss against time (.svg, .png or .pdf).")
    ] = Path("demo.svg"),
) -> None:
    """Fit an encoder on seven kinds of digits, then update it with three new ones, six ways."""
    if picture.suffix not in (".svg", ".png", ".pdf"):
        raise typer.BadParameter(f"a picture ends in .svg, .png or .pdf, got {picture.name!r}")
    if not picture.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {picture.absolute().parent}")
    from incontrast.cli.demo import run

    run(seed=seed, picture=picture)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(help="What came first: a folder or a file of items.")],
    new: Annotated[Path, typer.Argument(help="What came later, of the same kind.")],
    minutes: Annotated[float, typer.Option(help="Minutes of training, altogether.")] = 5.0,
    items: Annotated[int, typer.Option(help="Items at most, old and new together.")] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed draws the same items.")] = 0,
    out: Annotated[Path | None, typer.Option(help="An HTML file to write as well.")] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Side of images in pixels; at most 32, if neither this nor an encoder is given."
        ),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Of images: 1 or 3; as they are if not given.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Of images: small (up to 32 pixels, if not given), or resnet18 and "
            "resnet18-standard, which take many times as long."
        ),
    ] = None,
) -> None:
    """Try the strategies on your own data, within a time, and recommend one."""
    if encoder not in (None, "small", "resnet18", "resnet18-standard"):
        raise typer.BadParameter(
            f"encoder must be 'small', 'resnet18' or 'resnet18-standard', got {encoder!r}"
        )
    if minutes <= 0:
        raise typer.BadParameter(f"minutes must be positive, got {minutes:g}")
    if items < 8:
        raise typer.BadParameter(f"items must be at least 8, got {items}")
    if seed < 0:
        raise typer.BadParameter(f"a seed must not be negative, got {seed}")
    if size is not None and size < 8:
        raise typer.BadParameter(f"size must be at least 8 pixels, got {size}")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        problem = "is a folder" if out.is_dir() else "is in a folder that does not exist"
        raise typer.BadParameter(f"--out {out} {problem}: name a file")
    from incontrast.cli.compare import run
    from incontrast.cli.failing import Exit

    try:
        run(
            old,
            new,
            minutes=minutes,
            items=items,
            seed=seed,
            out=out,
            size=size,
            channels=channels,
            encoder=encoder,  # type: ignore[arg-type]
        )
    except (ValueError, FileNotFoundError) as error:
        typer.echo(f"incontrast: {error}", err=True)
        raise typer.Exit(Exit.DATA) from None
    except KeyboardInterrupt:
        typer.echo("incontrast: interrupted: nothing was changed", err=True)
        raise typer.Exit(Exit.INTERRUPTED) from None


def main() -> None:
    """The entry point of the ``incontrast`` command."""
    app()
