"""What processes other than the first do during a fit or an update: help, and write nothing."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from incontrast.memory import Store
from incontrast.strategies import Strategy
from incontrast.training.collectives import ProcessFailed
from incontrast.training.progress import ProgressCallback
from incontrast.workspace.process_group import Crew, Order
from incontrast.workspace.steps import Advance, Step

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["follow"]


def follow(
    workspace: Workspace,
    crew: Crew,
    kind: str,
    strategy: Strategy | None,
    progress: ProgressCallback | None,
) -> Step:
    """Do what the first process tells until it is done.

    Raises:
        ProcessFailed: The first process has failed; says why.
    """
    while True:
        order, about = crew.told()
        if order == "done":
            step: Step = about
            return step
        if order == "failed":
            raise ProcessFailed(f"process 0 of {crew.engine.processes} has failed: {about}")
        if order != "wait":
            _help(workspace, crew, order, about, kind, strategy, progress)


def _help(
    workspace: Workspace,
    crew: Crew,
    order: Order,
    pending: dict[str, Any],
    kind: str,
    strategy: Strategy | None,
    progress: ProgressCallback | None,
) -> None:
    with ExitStack() as stack:
        with crew.engine.error_barrier("read the workspace"):
            store = Store.open(workspace.store_file, readonly=True, still=True)
            stack.enter_context(closing(store))
            base = pending["base"]
            if order == "train":
                learner = workspace.template() if base is None else workspace._load(base, store)
        advance = Advance(workspace, store, kind, strategy, None, progress, None, crew)
        if order == "train":
            advance.train(pending, learner)
        else:
            advance.evaluate(pending)
