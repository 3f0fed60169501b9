"""``incontrast drift``: whether new data differ from what the encoder knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config, Folder, Strict

if TYPE_CHECKING:
    from incontrast.data import Source
    from incontrast.domains.base import Domain

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
    from incontrast.cli.printing import emit, out

    with failing(as_json):
        from incontrast.cli.training import opened
        from incontrast.data import read_source

        space = opened(workspace)
        learner = space.learner()
        source = read_source(data, check=False)
        found = learner.drift(_items(source, learner.domain, strict), level=level)
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


def _items(source: Source, domain: Domain, strict: bool) -> Any:
    """What ``Learner.drift`` takes; images that cannot be read are left out."""
    source.check(domain)
    if source.kind != "images":
        return source.items
    from incontrast.data import read_source

    return read_source(source.path, strict=strict).items


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
