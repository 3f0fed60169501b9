"""What can go wrong with a workspace."""

from __future__ import annotations


class WorkspaceError(RuntimeError):
    """A workspace cannot do what was asked of it."""


class Busy(WorkspaceError):
    """Another process is writing."""


class Damaged(WorkspaceError):
    """A file of the workspace is missing, truncated, changed, or of another format."""


class Unfinished(WorkspaceError):
    """Something else was begun and not finished."""
