"""``incontrast embed``: embeddings of data, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from incontrast.cli.options import AsJson, Config, Folder, Strict

__all__ = ["embed"]


def embed(
    data: Annotated[Path, typer.Argument(help="Data of the workspace's kind.")],
    to: Annotated[
        Path,
        typer.Argument(
            help="The file to write: .npy (with ids) or .parquet; or a folder, for shards."
        ),
    ],
    workspace: Folder = Path(),
    version: Annotated[
        int | None,
        typer.Option(help="The version.", show_default="the current one"),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to a file of the same version.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew whatever is there.")
    ] = False,
    strict: Strict = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write embeddings of data to a file; interrupted, the same command goes on."""
    if to.suffix not in (".npy", ".parquet", ""):
        raise typer.BadParameter(
            f"embeddings are written to .npy, to .parquet or to a folder, got {to.name!r}"
        )
    if append and not to.suffix:
        raise typer.BadParameter("a folder holds embeddings of one source: choose another for more")
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, narrator, out, warn_skipped
    from incontrast.cli.processes import speaks

    with failing(as_json):
        from incontrast.cli.progress import counting_bar
        from incontrast.cli.training import opened
        from incontrast.data import read_source
        from incontrast.workspace.embeddings import embed_source

        space = opened(workspace)
        narrate = narrator()
        with space.crew().engine.error_barrier("read the data"):
            source = read_source(data, check=False)
        with counting_bar(narrate, "embed") as progress:
            done = embed_source(
                space,
                source,
                to,
                version=version,
                append=append,
                overwrite=overwrite,
                strict=strict,
                progress=progress,
            )
        if not speaks():
            return
        warn_skipped(narrate, done.skipped)
        if as_json:
            emit(vars(done))
        elif done.added or done.skipped:
            out().print(
                f"{done.file}: {done.rows:,} embeddings of version {done.version}, "
                f"{done.added:,} of them new",
                markup=False,
            )
        else:
            out().print(
                f"{done.file} is up to date: {done.rows:,} embeddings of version {done.version}",
                markup=False,
            )
