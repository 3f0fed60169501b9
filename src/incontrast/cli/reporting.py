"""``incontrast report``: the page of a version, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from incontrast.cli.options import AsJson, Config, Folder

__all__ = ["report"]


def report(
    workspace: Folder = Path(),
    version: Annotated[
        int | None,
        typer.Option(help="The version.", show_default="the newest"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="The file.",
            show_default="reports/version-N.html in the workspace",
        ),
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write the HTML page of a version, and sum it up."""
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, out

    with failing(as_json):
        from incontrast.cli.summary import summary
        from incontrast.cli.update_report import write_report
        from incontrast.workspace import Workspace, WorkspaceError
        from incontrast.workspace.status import refused_candidate

        space = Workspace.open(workspace)
        numbers = space.versions.numbers()
        if not numbers:
            raise WorkspaceError(f"{space.folder} has no encoder yet: run fit first")
        number = numbers[-1] if version is None else version
        space.versions.verify(number)
        page = write_report(space, number, to)
        if as_json:
            emit({"version": number, "report": page})
            return
        for line in summary(space, number, refused=number == refused_candidate(space)):
            out().print(line, markup=False)
        out().print(f"Report: {page}", markup=False)
