"""``incontrast status`` and ``incontrast log``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config, Folder

if TYPE_CHECKING:
    from incontrast.workspace import Workspace

__all__ = ["log", "status"]


def status(
    workspace: Folder = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Read every file and look for damage.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say what is there: the current version, the memory, what is unfinished or out of date."""
    from incontrast.cli.failing import Exit, failing
    from incontrast.cli.printing import emit, out

    damage: list[str] = []
    with failing(as_json):
        from incontrast.workspace import Workspace
        from incontrast.workspace.status import status_of

        space = Workspace.open(workspace)
        if check:
            damage = space.check()
        about: dict[str, Any] = {"folder": str(space.folder)} if damage else status_of(space)
        if check:
            about["damage"] = damage
        if as_json:
            emit(about)
        else:
            for line in _lines(about):
                out().print(line, markup=False)
    if damage:
        raise typer.Exit(Exit.DAMAGED)


def _lines(about: dict[str, Any]) -> list[str]:
    lines = [about["folder"]]
    if about.get("damage"):
        return [*lines, *(f"  damage: {text}" for text in about["damage"])]
    if about["current"] is None:
        lines.append("  no encoder yet: run incontrast fit")
    else:
        lines.append(
            f"  version {about['current']} of {about['domain']}, made {about['made']}; kept: "
            f"{', '.join(map(str, about['versions']))}"
        )
        lines.append(
            f"  memory: {about['kept']:,} items at hand of {about['seen']:,} seen "
            f"({about['policy']})"
        )
    lines.append(f"  disk: {about['bytes'] / 2**20:.1f} MB")
    if about["unfinished"]:
        lines.append(f"  unfinished: {about['unfinished']}")
    if about["writer"]:
        lines.append(f"  being written by {about['writer']}")
    for output in about["embeddings"]:
        state = "up to date" if output["current"] else "out of date"
        state = state if output["complete"] else f"unfinished, {state}"
        lines.append(f"  {output['file']}: version {output['version']}, {state}")
    if "damage" in about:
        lines.append("  every file is as it was written")
    return lines


def log(
    workspace: Folder = Path(),
    last: Annotated[
        int | None, typer.Option(help="Only so many events.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the journal: what was done, with which data, how long, with what result."""
    from incontrast.cli.failing import failing
    from incontrast.cli.printing import emit, out

    with failing(as_json):
        from incontrast.workspace import Workspace

        space: Workspace = Workspace.open(workspace)
        records = space.journal.records()
        records = records if last is None else records[-last:] if last > 0 else []
        if as_json:
            emit([record.event or {"damaged": record.problem} for record in records])
            return
        from incontrast.workspace.status import sentence

        for record in records:
            text = record.problem if record.event is None else sentence(record.event)
            out().print(text, markup=False)
