"""``incontrast drift``: whether new data differ from what the encoder knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config, Folder, Strict

if TYPE_CHECKING:
    from incontrast.data.sources import Source
    from incontrast.domains.base import Domain
    from incontrast.workspace import Workspace

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

    if not 0.0 < level < 1.0:
        raise typer.BadParameter(f"the level must be between 0 and 1, got {level:g}")
    with failing(as_json):
        from incontrast.cli.training import opened
        from incontrast.data import read_source

        space = opened(workspace)
        version = space.current  # another may be promoted meanwhile
        learner = space.learner(version)
        source = read_source(data, check=False)
        source.check(learner.domain)
        if source.kind == "images":
            source = read_source(data, strict=strict)  # finds out which can be read
            warn_skipped(narrator(), [skip.reason for skip in source.skipped])
        found = learner.drift(source.items, significance=level)
        known = 0.0 if version is None else _known(space, version, source, learner.domain)
        if as_json:
            emit(
                {
                    **{name: _plain(value) for name, value in vars(found).items()},
                    "drifted": found.drifted,
                    "advice": found.advice,
                    "version": version,
                    "known": known,
                }
            )
        else:
            out().print(str(found), markup=False)
            if known > 0.5:
                out().print(
                    f"But {known:.0%} of the items looked at have been taken in already: this "
                    "compares data that the encoder has learned from with themselves."
                )
    if found.drifted and fail_on_drift:
        raise typer.Exit(Exit.DRIFT)


def _known(space: Workspace, version: int, source: Source, domain: Domain) -> float:
    """The share of items, of the first some, that a version has learned from."""
    from contextlib import closing

    from incontrast.memory import Store
    from incontrast.workspace.intake import Intake

    extent = space.versions.extent(version)
    digests = set(next(Intake(source, domain).hashes(), []))
    with closing(Store.open(space.store_file, readonly=True)) as store:
        found = store.find(digests)
    elsewhere = extent.elsewhere()
    found = found[found < extent.arrivals]
    return min(1.0, int((~elsewhere[found]).sum()) / max(1, len(digests)))


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else value
