"""What the exit code of a command means, and which error ends with which code."""

from __future__ import annotations

from enum import IntEnum


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


# By name: to recognise an error, the module that defines it need not be imported.
CODES = {
    "Busy": Exit.BUSY,
    "Damaged": Exit.DAMAGED,
    "WorkspaceError": Exit.STATE,
    "StoreBusy": Exit.BUSY,
    "StoreUnwritable": Exit.MACHINE,
    "StoreError": Exit.DAMAGED,
    "TrainingDiverged": Exit.REFUSED,
    "LostProcess": Exit.MACHINE,
    "ProcessFailed": Exit.MACHINE,
    "FileNotFoundError": Exit.DATA,
    "OSError": Exit.MACHINE,
    "ValueError": Exit.DATA,
}


def exit_code(error: Exception) -> Exit | None:
    """The code of an error, or of the nearest class it derives from; None for a bug.

    >>> exit_code(UnicodeError("0xff"))
    <Exit.DATA: 3>
    """
    for kind in type(error).__mro__:
        code = CODES.get(kind.__name__)
        if code is Exit.STATE and isinstance(error.__cause__, OSError):
            return Exit.MACHINE
        if code is not None:
            return code
    return None
