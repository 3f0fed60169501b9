"""Options that several commands share, and defaults from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "Config", "Data", "Folder", "Strict"]


def _defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from the file's table of this command's name."""
    if path is None:
        return None
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    name = context.info_name or ""
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise typer.BadParameter(f"{path}: {name} must be a table, [{name}]")
    commands = getattr(context.parent.command if context.parent else None, "commands", tables)
    strangers = sorted(set(tables) - set(commands))
    if strangers:
        raise typer.BadParameter(
            f"{path}: {strangers[0]!r} is no command: settings stand in a table of a command's name"
        )
    known = {parameter.name for parameter in context.command.params}
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise typer.BadParameter(f"{path}: [{name}] has no setting {unknown[0]!r}")
    context.default_map = settings
    return path


Folder = Annotated[
    Path,
    typer.Option(
        "--workspace", "-w", envvar="INCONTRAST_WORKSPACE", help="The folder of the workspace."
    ),
]
Data = Annotated[
    Path | None,
    typer.Argument(
        help="A folder of images; vectors as .npy, .npz, .csv or .parquet; graphs as a TU folder "
        "or .jsonl. None goes on with what was interrupted.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_defaults,
        is_eager=True,
        show_default=False,
        help="A TOML file with a table for each command; flags come before it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse files that cannot be read; they are skipped else.")
]
