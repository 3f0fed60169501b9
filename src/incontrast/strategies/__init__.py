"""How an update is done: ICL and its rivals, as frozen configurations."""

from incontrast.strategies.distill import Distill
from incontrast.strategies.emphasis import Emphasis
from incontrast.strategies.icl import ICL
from incontrast.strategies.meta import Meta
from incontrast.strategies.replay import Replay
from incontrast.strategies.strategy import FineTune, NoUpdate, Retrain, Strategy, WarmStart

__all__ = [
    "ICL",
    "Distill",
    "Emphasis",
    "FineTune",
    "Meta",
    "NoUpdate",
    "Replay",
    "Retrain",
    "Strategy",
    "WarmStart",
]
