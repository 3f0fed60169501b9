"""Commands under ``torchrun``: one of the processes speaks, all of them end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from incontrast.training.engine import Engine

__all__ = ["TOGETHER", "contact", "refuse_many", "speaks", "yield_the_floor"]

TOGETHER = ("fit", "update", "embed")  # commands that many processes can run
GRACE = 2.0  # seconds


def speaks() -> bool:
    """Whether this process is the only one, or the first, and so prints."""
    return _count() == 1 or os.environ.get("RANK", "0") == "0"


def refuse_many(command: str | None) -> None:
    """Refuse a command that would be run as many times as there are processes."""
    if _count() > 1 and command not in TOGETHER:
        if speaks():
            typer.echo(
                f"incontrast: {command} is for one process: leave torchrun away "
                f"({', '.join(TOGETHER)} can use it)",
                err=True,
            )
        else:
            yield_the_floor()
        raise typer.Exit(2)


def contact() -> Engine:
    """The engine of this process, after all processes have found each other."""
    from incontrast.training.fabric import choose_engine

    if _count() > 1:
        with suppress(ImportError):  # choose_engine says what to install
            import lightning_fabric  # noqa: F401 (sets its logger's level)
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        signal.signal(signal.SIGTERM, _told_to_end)
    return choose_engine(None, "float32", None)


def yield_the_floor() -> None:
    """Before a silent end: torchrun ends all once one has ended, the one that speaks as well."""
    time.sleep(GRACE)


def _told_to_end(number: int, frame: FrameType | None) -> None:
    from incontrast.training.collectives import LostProcess

    rank, count = os.environ.get("RANK", "0"), _count()
    raise LostProcess(
        f"process {rank} of {count} ({socket.gethostname()}) was told to end, because another one "
        "has ended. What was complete stays as it was: look for the first error, then run it again"
    )


def _count() -> int:
    """Processes that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
