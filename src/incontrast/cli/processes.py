"""A workspace, opened by this process or by all processes that torchrun has started."""

from __future__ import annotations

import logging
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from incontrast.cli.output import processes
from incontrast.training.collectives import LostProcess
from incontrast.training.engine import Engine
from incontrast.training.fabric import choose_engine
from incontrast.workspace import Workspace

__all__ = ["opened"]


def opened(folder: Path) -> tuple[Workspace, Engine]:
    """The workspace, with its number of threads set, and the engine of this process."""
    if processes() > 1:
        with suppress(ImportError):  # choose_engine says what to install
            import lightning_fabric  # noqa: F401 (sets its logger's level)
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        signal.signal(signal.SIGTERM, _terminated)
    engine = choose_engine(None, "float32", None)
    with engine.error_barrier("open the workspace"):
        workspace = Workspace.open(folder)
    if workspace.settings["threads"] is not None:
        torch.set_num_threads(workspace.settings["threads"])
    return workspace, engine


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise LostProcess(
        f"process {os.environ.get('RANK', '0')} of {processes()} ({socket.gethostname()}) was "
        "ended, because another one has ended. What was complete stays as it was: look for the "
        "first error, then run it again"
    )
