"""The old data that an update needs: what is kept of everything seen."""

from incontrast.memory.memory import Memory
from incontrast.memory.policies import KeepAll, Policy, Queue, Reservoir
from incontrast.memory.sqlite_file import StoreBusy, StoreError, StoreUnwritable
from incontrast.memory.store import Columns, Store, content_hash
from incontrast.memory.stored import Extent, StoredCollection, remembered

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
    "remembered",
]
