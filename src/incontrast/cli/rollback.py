"""``incontrast rollback`` and ``incontrast forget``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from incontrast.cli.options import AsJson, Config, Folder

__all__ = ["forget", "rollback"]


def rollback(
    workspace: Folder = Path(),
    to: Annotated[
        int | None,
        typer.Option(help="The version.", show_default="the one before"),
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Make an earlier version the current one, with the memory it had."""
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, out

    with failing(as_json):
        from incontrast.workspace import Workspace
        from incontrast.workspace.status import unfinished

        space = Workspace.open(workspace)
        dropped = unfinished(space)
        number = space.rollback(to)
        if as_json:
            emit({"current": number, "dropped": dropped})
            return
        if dropped is not None:
            out().print(f"Dropped: {dropped}.", markup=False)
        out().print(f"Version {number} is the current one.")


def forget(
    ids: Annotated[
        list[int] | None,
        typer.Argument(help="Items, by their places in the order of arrival, from 0."),
    ] = None,
    workspace: Folder = Path(),
    like: Annotated[
        Path | None,
        typer.Option(help="A file or a folder: items with the same content are forgotten."),
    ] = None,
    hashes: Annotated[
        list[str] | None, typer.Option("--hash", help="A content hash; may be given again.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete items for good: from memory, and their bytes from the file."""
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, narrator, out, warn_skipped

    if not (ids or like or hashes):
        raise typer.BadParameter("say which items: their ids, --like DATA, or --hash")
    try:
        wanted = [bytes.fromhex(text) for text in hashes or []]
    except ValueError as error:
        raise typer.BadParameter("a hash is 32 hexadecimal digits") from error
    if any(len(digest) != 16 for digest in wanted):
        raise typer.BadParameter("a hash is 32 hexadecimal digits")
    if any(not 0 <= item < 2**63 for item in ids or []):
        raise typer.BadParameter("an id is a place in the order of arrival, from 0")
    with failing(as_json):
        from incontrast.data import read_source
        from incontrast.workspace import Workspace
        from incontrast.workspace.embeddings import outputs
        from incontrast.workspace.intake import Intake
        from incontrast.workspace.words import counted

        space = Workspace.open(workspace)
        if like is not None:
            domain = space.learner(memory=False).domain
            same = Intake(read_source(like, check=False), domain)
            wanted += [digest for digests in same.hashes() for digest in digests]
            warn_skipped(narrator(), same.skipped)
        count = space.forget(ids or [], hashes=wanted)
        files = [str(file) for file in outputs(space)]
        if as_json:
            emit({"forgotten": count, "embeddings": files})
            return
        reason = (
            "" if count else " They were forgotten before, are no longer kept, or never came in."
        )
        out().print(f"{counted(count)} forgotten.{reason}")
        if files:
            listed = ", ".join(files)
            out().print(f"Embeddings of them may still be in {listed}.", markup=False)
