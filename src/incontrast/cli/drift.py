"""``incontrast drift``: whether new data differ from what the encoder knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config, Folder, Strict

__all__ = ["drift"]


def drift(
    data: Annotated[Path, typer.Argument(help="New data of the workspace's kind.")],
    workspace: Folder = Path(),
    level: Annotated[float, typer.Option(help="The share of false alarms to accept.")] = 0.05,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help="End with exit code 8 if there is drift.")
    ] = False,
    strict: Strict = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Compare new data with old ones in the encoder's eyes, and say what to do."""
    from incontrast.cli.failing import Exit, failing
    from incontrast.cli.printing import emit, narrator, out, warn_skipped

    with failing(as_json):
        from incontrast.cli.training import opened
        from incontrast.data import read_source

        space = opened(workspace)
        learner = space.learner()
        source = read_source(data, check=False)
        source.check(learner.domain)
        if source.kind == "images":
            source = read_source(data, strict=strict)  # finds out which can be read
            warn_skipped(narrator(), [skip.reason for skip in source.skipped])
        found = learner.drift(source.items, level=level)
        if as_json:
            emit(
                {
                    **{name: _plain(value) for name, value in vars(found).items()},
                    "drifted": found.drifted,
                    "advice": found.advice,
                    "version": space.current,
                }
            )
        else:
            out().print(str(found), markup=False)
    if found.drifted and fail_on_drift:
        raise typer.Exit(Exit.DRIFT)


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
