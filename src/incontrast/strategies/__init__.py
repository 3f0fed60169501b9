"""How an update is done: ICL and its rivals, as frozen configurations."""

from incontrast.strategies.distill import Distill
from incontrast.strategies.hard_negatives import HardNegatives
from incontrast.strategies.icl import ICL, Emphasis
from incontrast.strategies.meta import Meta
from incontrast.strategies.strategy import FineTune, NoUpdate, Replay, Retrain, Strategy, WarmStart

__all__ = [
    "ICL",
    "Distill",
    "Emphasis",
    "FineTune",
    "HardNegatives",
    "Meta",
    "NoUpdate",
    "Replay",
    "Retrain",
    "Strategy",
    "WarmStart",
]
