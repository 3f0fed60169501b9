"""Errors as a sentence and an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from incontrast.cli.processes import speaks, yield_the_floor

__all__ = ["Exit", "failing"]


class Exit(IntEnum):
    """What the exit code of a command means."""

    DONE = 0
    BUG = 1  # something nobody thought of; comes with a traceback
    USAGE = 2  # the command line is wrong
    DATA = 3  # the data cannot be used
    BUSY = 4  # another process is writing to the workspace
    DAMAGED = 5  # a file of the workspace is damaged or of another format
    REFUSED = 6  # the candidate was not promoted
    MACHINE = 7  # no space, no permission, a disk that fails
    DRIFT = 8  # drift --fail-on-drift found drift
    STATE = 9  # the workspace is in no state to do this
    INTERRUPTED = 130


@contextmanager
def failing(as_json: bool = False) -> Iterator[None]:
    """Run a command; what goes wrong becomes a sentence on stderr and an exit code."""
    # Torch is imported by now, or will be in a moment.
    from incontrast.memory import StoreBusy, StoreError, StoreUnwritable
    from incontrast.training.collectives import LostProcess, ProcessFailed
    from incontrast.training.loop import TrainingDiverged
    from incontrast.workspace import Busy, Damaged, WorkspaceError

    try:
        yield
    except (Busy, StoreBusy) as error:
        _end(error, Exit.BUSY, as_json)
    except Damaged as error:
        _end(error, Exit.DAMAGED, as_json)
    except StoreUnwritable as error:
        _end(error, Exit.MACHINE, as_json)
    except StoreError as error:
        _end(error, Exit.DAMAGED, as_json)
    except WorkspaceError as error:
        machine = isinstance(error.__cause__, OSError)
        _end(error, Exit.MACHINE if machine else Exit.STATE, as_json)
    except TrainingDiverged as error:
        _end(error, Exit.REFUSED, as_json, silent=not speaks())
    except LostProcess as error:
        _end(error, Exit.MACHINE, as_json)
    except ProcessFailed as error:
        _end(error, Exit.MACHINE, as_json, silent=not speaks())
    except (ValueError, FileNotFoundError) as error:
        _end(error, Exit.DATA, as_json)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        text = f"{error.strerror or error}{place}: the workspace is as it was; run it again"
        _end(text, Exit.MACHINE, as_json)
    except KeyboardInterrupt:
        text = "interrupted: the current version keeps serving; the same command goes on"
        _end(text, Exit.INTERRUPTED, as_json)


def _end(error: object, code: Exit, as_json: bool, *, silent: bool = False) -> None:
    """Say what went wrong, unless another process says the same, and end."""
    if silent:
        yield_the_floor()
    elif as_json:
        typer.echo(json.dumps({"error": str(error), "exit": int(code)}, ensure_ascii=False))
    else:
        typer.echo(f"incontrast: {error}", err=True)
    raise typer.Exit(code) from None
