"""The old data that an update needs: what is kept of everything seen."""

from incontrast.memory.memory import Memory
from incontrast.memory.policies import KeepAll, Policy, Queue, Reservoir

__all__ = ["KeepAll", "Memory", "Policy", "Queue", "Reservoir"]
