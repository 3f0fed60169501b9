"""The old data that an update needs: what is kept of everything seen."""

from incontrast.memory.memory import Memory
from incontrast.memory.policies import KeepAll, Policy, Queue, Reservoir
from incontrast.memory.sqlite_file import StoreError, StoreUnwritable
from incontrast.memory.store import Columns, Store, content_hash
from incontrast.memory.stored import StoredCollection, remembered

__all__ = [
    "Columns",
    "KeepAll",
    "Memory",
    "Policy",
    "Queue",
    "Reservoir",
    "Store",
    "StoreError",
    "StoreUnwritable",
    "StoredCollection",
    "content_hash",
    "remembered",
]
