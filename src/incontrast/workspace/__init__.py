"""A learner on disk: versions, the old items, a journal; updates that cannot lose anything."""

from typing import TYPE_CHECKING, Any

from incontrast.workspace.errors import Busy, Damaged, Unfinished, WorkspaceError
from incontrast.workspace.workspace import Workspace

if TYPE_CHECKING:
    from incontrast.workspace.update import Step

__all__ = ["Busy", "Damaged", "Step", "Unfinished", "Workspace", "WorkspaceError"]


def __getattr__(name: str) -> Any:
    if name != "Step":  # which comes with torch
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from incontrast.workspace.update import Step

    return Step
