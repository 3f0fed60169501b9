"""What a row says about the machine it was created on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from incontrast import __version__

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
PACKAGES = ("torch", "numpy", "scikit-learn", "torch_geometric")


def software() -> dict[str, str]:
    """The versions that figures may depend on."""
    found = {"incontrast": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores and threads."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def load() -> float | None:
    """How many processes wanted a core in the last minute, where the system says."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def today() -> str:
    """The date, as rows have it."""
    return time.strftime("%Y-%m-%d")


class AddedMemory:
    """The most memory that this process has held since this was created, above what it held.

    What was freed before is given back to the system first: else it would hide what comes.
    """

    def __init__(self) -> None:
        gc.collect()
        _give_back()
        self._before = _memory("VmRSS") if _reset_peak() else None

    def bytes(self) -> int | None:
        """None where the system does not say, or cannot start a new count."""
        peak = _memory("VmHWM")
        if peak is None or self._before is None:
            return None
        return max(peak - self._before, 0)


def _give_back() -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> bool:
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _memory(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:  # a system without /proc
        return None
    sizes = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return next((int(size) * 1024 for size in sizes), None)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
