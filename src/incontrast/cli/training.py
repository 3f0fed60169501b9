"""``incontrast fit`` and ``incontrast update``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from incontrast.cli.options import AsJson, Config, Data, Folder, Strict
from incontrast.cli.strategy_names import StrategyName

if TYPE_CHECKING:
    from incontrast.workspace import Step, Workspace

__all__ = ["fit", "opened", "update"]

Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="Training time at most. The result then depends on the machine's speed."
    ),
]
Passes = Annotated[int | None, typer.Option(min=1, help="Views through the encoder at most.")]
Force = Annotated[
    bool, typer.Option("--force", help="Promote the new version whatever is wrong with it.")
]
Discard = Annotated[
    bool, typer.Option("--discard", help="Drop what was interrupted or refused before.")
]


def fit(
    data: Data = None,
    workspace: Folder = Path(),
    seconds: Seconds = None,
    forward_passes: Passes = None,
    strict: Strict = False,
    force: Force = False,
    discard: Discard = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Train a first encoder on data, and remember them."""
    _run(
        "fit",
        data,
        workspace,
        seconds,
        forward_passes,
        as_json,
        strict=strict,
        force=force,
        discard=discard,
    )


def update(
    data: Data = None,
    workspace: Folder = Path(),
    strategy: Annotated[
        StrategyName | None,
        typer.Option(help="For this once.", show_default="the workspace's"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs at most, for this once.", show_default="the workspace's"),
    ] = None,
    seconds: Seconds = None,
    forward_passes: Passes = None,
    strict: Strict = False,
    force: Force = False,
    discard: Discard = False,
    again: Annotated[
        bool, typer.Option("--again", help="Take data in once more that were taken in before.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Take new data in, train, evaluate, and promote what came of it.

    Interrupted at any moment, the same command goes on and ends with the same bits.
    """
    _run(
        "update",
        data,
        workspace,
        seconds,
        forward_passes,
        as_json,
        strict=strict,
        force=force,
        discard=discard,
        again=again,
        strategy=strategy,
        epochs=epochs,
    )


def opened(folder: Path) -> Workspace:
    """The workspace, with its number of threads set; in every process, if there are several."""
    import torch

    from incontrast.cli.processes import contact
    from incontrast.workspace import Workspace

    with contact().error_barrier("open the workspace"):
        workspace = Workspace.open(folder)
    if workspace.settings["threads"] is not None:
        torch.set_num_threads(workspace.settings["threads"])
    return workspace


def _run(
    kind: str,
    data: Path | None,
    folder: Path,
    seconds: float | None,
    forward_passes: int | None,
    as_json: bool,
    *,
    discard: bool,
    strategy: StrategyName | None = None,
    epochs: int | None = None,
    **options: Any,
) -> None:
    from incontrast.cli.failing import Exit, failing
    from incontrast.cli.printing import emit, narrator, warn_skipped
    from incontrast.cli.processes import speaks

    with failing(as_json):
        from incontrast.cli.progress import training_bar
        from incontrast.cli.update_report import write_report
        from incontrast.data import read_source
        from incontrast.training.progress import Budget

        workspace = opened(folder)
        narrate = narrator()
        if discard and data is None:
            if not speaks():
                return
            dropped = workspace.discard(kind)
            if as_json:
                emit({"discarded": dropped})
                return
            narrate.print(
                "what was interrupted or refused is dropped; the current version is as it was"
                if dropped
                else "nothing was interrupted or refused: there is nothing to drop"
            )
            return
        with workspace.crew().engine.error_barrier("read the data"):
            # The first process takes the data in; the others read them from the workspace.
            source = None if data is None or not speaks() else read_source(data, check=False)
        chosen = _chosen(workspace, strategy, epochs)
        if chosen is not None:
            options["strategy"] = chosen
        with training_bar(narrate, kind, lines=True) as progress:
            run: Any = workspace.fit if kind == "fit" else workspace.update
            step = run(
                source,
                budget=Budget(seconds=seconds, forward_passes=forward_passes),
                discard=discard,
                progress=progress,
                notify=lambda sentence: narrate.print(sentence, markup=False),
                **options,
            )
        if speaks():
            warn_skipped(narrate, step.skipped)
            page = None
            try:
                if not step.repeated or not workspace.report_file(step.version).exists():
                    page = write_report(workspace, step.version)
            except OSError as error:
                narrate.print(f"the report cannot be written: {error}", markup=False)
            if as_json:
                emit({**vars(step), "report": page})
            else:
                _say(workspace, step, page)
    if not step.promoted:
        raise typer.Exit(Exit.REFUSED)


def _chosen(workspace: Workspace, name: StrategyName | None, epochs: int | None) -> Any:
    """The strategy for this once; None is the workspace's own."""
    from dataclasses import replace

    from incontrast.cli.strategy_names import strategy_of

    if name is not None:
        return strategy_of(name, epochs)
    return None if epochs is None else replace(workspace.template().strategy, max_epochs=epochs)


def _say(workspace: Workspace, step: Step, page: Path | None) -> None:
    from incontrast.cli.printing import out
    from incontrast.cli.summary import summary

    console = out()
    if step.repeated:
        console.print(
            f"Nothing to do: version {step.version} has learned from these data already "
            "(--again takes them in once more)."
        )
        return
    for line in summary(workspace, step.version, refused=not step.promoted):
        console.print(line, markup=False)
    if page is not None:
        console.print(f"Report: {page}", markup=False)
