"""Learning rates: fixed, cosine, learned."""

from incontrast.schedules.learned import Learned
from incontrast.schedules.paper_ddpg import DDPG
from incontrast.schedules.schedule import (
    Cosine,
    Fixed,
    LearningRate,
    Schedule,
    ScheduleState,
    as_schedule,
)

__all__ = [
    "DDPG",
    "Cosine",
    "Fixed",
    "Learned",
    "LearningRate",
    "Schedule",
    "ScheduleState",
    "as_schedule",
]
