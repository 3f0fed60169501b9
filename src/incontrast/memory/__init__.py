"""The old data that an update needs: what is kept of everything seen."""

from typing import TYPE_CHECKING, Any

from incontrast.memory.store import (
    Extent,
    Store,
    StoreBusy,
    StoreError,
    StoreUnwritable,
    content_hash,
)

if TYPE_CHECKING:
    from incontrast.memory.memory import KeepAll, Memory, Policy, Queue, Reservoir, StoredCollection

__all__ = ["Extent", "Store", "StoreBusy", "StoreError", "StoreUnwritable", "content_hash"]
__all__ += ["KeepAll", "Memory", "Policy", "Queue", "Reservoir", "StoredCollection"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from incontrast.memory import memory  # which needs torch; forgetting items does not

    return getattr(memory, name)
