"""A learner on disk: versions, the old items, a journal; updates that cannot lose anything."""

from incontrast.workspace.files import Busy, Damaged, Unfinished, WorkspaceError
from incontrast.workspace.workspace import Workspace

__all__ = ["Busy", "Damaged", "Unfinished", "Workspace", "WorkspaceError"]
