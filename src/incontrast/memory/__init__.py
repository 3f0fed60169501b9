"""The old data that an update needs: what is kept of everything seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from incontrast.memory.columns import Columns, Extent
from incontrast.memory.store import Store, StoreBusy, StoreError, StoreUnwritable, content_hash

if TYPE_CHECKING:
    from incontrast.memory.memory import KeepAll, Memory, Policy, Queue, Reservoir
    from incontrast.memory.stored import StoredCollection

__all__ = [
    "Columns",
    "Extent",
    "KeepAll",
    "Memory",
    "Policy",
    "Queue",
    "Reservoir",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreUnwritable",
    "StoredCollection",
    "content_hash",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # These need torch; forgetting items does not.
    home = "stored" if name == "StoredCollection" else "memory"
    return getattr(import_module(f"{__name__}.{home}"), name)
