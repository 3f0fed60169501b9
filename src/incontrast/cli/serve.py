"""``incontrast serve``: the current version over HTTP, until it is interrupted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from incontrast.cli.output import note
from incontrast.workspace import Workspace, WorkspaceError

MISSING = "serve needs fastapi, uvicorn and prometheus-client: pip install 'incontrast[serve]'"


def serve(
    *,
    workspace: Path,
    index: Path | None,
    host: str,
    port: int,
    workers: int,
    token: str | None,
    token_file: Path | None,
    trust: bool,
    **limits: Any,
) -> None:
    """Serve until somebody interrupts it."""
    try:
        import uvicorn

        from incontrast.serve.settings import ServeSettings
    except ImportError as error:
        raise WorkspaceError(MISSING) from error

    space = Workspace.open(workspace, trust=trust)
    if space.current is None:
        raise WorkspaceError(f"{space.folder} has no encoder yet: run incontrast fit DATA")
    space.versions.verify(space.current)
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{token_file} is empty: write the token into it")
    threads = space.settings["threads"]
    if threads is None and workers > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
    settings = ServeSettings(
        workspace=space.folder,
        index=None if index is None else index.absolute(),
        token=token or None,
        trust=trust,
        threads=threads,
        **limits,
    )
    note(f"serving version {space.current} of {space.folder} on http://{host}:{port}")
    how: dict[str, Any] = {"host": host, "port": port, "access_log": False, "log_level": "warning"}
    if workers == 1:
        from incontrast.serve.app import create_app

        uvicorn.run(create_app(settings), **how)
        return
    settings.export()
    with tempfile.TemporaryDirectory(prefix="incontrast-metrics-") as shared:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # before the workers import its library
        app = "incontrast.serve.app:from_environment"
        uvicorn.run(app, factory=True, workers=workers, **how)
