"""``incontrast fit`` and ``incontrast update``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from incontrast.cli.command import Answer
from incontrast.cli.exit_codes import Exit
from incontrast.cli.init import strategy_named
from incontrast.cli.options import StrategyName
from incontrast.cli.output import note, note_skipped, speaks, stderr
from incontrast.cli.processes import opened
from incontrast.cli.progress import training_bar
from incontrast.cli.reading import read
from incontrast.cli.report import Account, summary, write_report
from incontrast.training.progress import Budget
from incontrast.workspace import Step, Workspace

__all__ = ["fit", "update"]


def fit(**options: Any) -> Answer | None:
    """Train a first encoder."""
    return _train("fit", **options)


def update(
    *, workspace: Path, strategy: StrategyName | None, epochs: int | None, **options: Any
) -> Answer | None:
    """Ingest, train, evaluate, promote."""
    if strategy is not None:
        options["strategy"] = strategy_named(strategy, epochs)
    elif epochs is not None:
        own = Workspace.open(workspace).template().strategy
        options["strategy"] = replace(own, max_epochs=epochs)
    return _train("update", workspace=workspace, **options)


def _train(
    kind: str,
    *,
    data: Path | None,
    workspace: Path,
    seconds: float | None,
    forward_passes: int | None,
    discard: bool,
    columns: str | None,
    id: str | None,
    label: str | None,
    **options: Any,
) -> Answer | None:
    space, engine = opened(workspace)
    if discard and data is None:
        return _discard(space, kind) if speaks() else None
    with engine.error_barrier("read the data"):
        # The first process ingests the data; the others read them from the workspace.
        table = {"columns": columns, "id": id, "label": label}
        source = read(data, table) if data is not None and speaks() else None
    with training_bar(stderr(), kind, lines=True) as progress:
        step: Step = getattr(space, kind)(
            source,
            budget=Budget(seconds=seconds, forward_passes=forward_passes),
            discard=discard,
            progress=progress,
            notify=note,
            **options,
        )
    code = Exit.DONE if step.promoted else Exit.REFUSED
    if not speaks():
        return Answer(None, (), code)
    note_skipped(step.skipped)
    account, page = Account.of(space, step.version), None
    try:
        if not step.repeated or not space.report_file(step.version).exists():
            page = write_report(space, account)
    except OSError as error:
        note(f"the report cannot be written: {error}")
    lines = summary(account, space.current, refused=not step.promoted)
    if page is not None:
        lines.append(f"Report: {page}")
    if step.repeated:
        already = f"version {step.version} has learned from these data already"
        lines = [f"Nothing to do: {already} (--again ingests them once more)."]
    return Answer({**vars(step), "report": page}, lines, code)


def _discard(space: Workspace, kind: str) -> Answer:
    dropped = space.discard(kind)
    line = "nothing was interrupted or refused: there is nothing to drop"
    if dropped:
        line = "what was interrupted or refused is dropped; the current version is as it was"
    return Answer({"discarded": dropped}, [line])
