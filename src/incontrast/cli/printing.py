"""What commands print: sentences for people, JSON for machines, progress on stderr."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console

from incontrast.cli.processes import speaks

__all__ = ["emit", "narrator", "out", "warn_skipped"]


def out() -> Console:
    """For results."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=110)


def narrator() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not speaks())


def emit(value: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def warn_skipped(console: Console, reasons: tuple[str, ...] | list[str]) -> None:
    """Name what was left out, the first few."""
    if not reasons:
        return
    console.print(
        "1 file was skipped:" if len(reasons) == 1 else f"{len(reasons)} files were skipped:"
    )
    for reason in reasons[:10]:
        console.print(f"  {reason}", markup=False)
    if len(reasons) > 10:
        console.print(f"  and {len(reasons) - 10} more (--json lists them all)")
