"""How an update is done: ICL and its rivals, as frozen configurations."""

from incontrast.strategies.base import Strategy
from incontrast.strategies.distill import Distill
from incontrast.strategies.fine_tune import FineTune
from incontrast.strategies.icl import ICL
from incontrast.strategies.inference import Inference
from incontrast.strategies.meta import Meta
from incontrast.strategies.replay import Replay
from incontrast.strategies.retrain import Retrain, WarmStart

__all__ = [
    "ICL",
    "Distill",
    "FineTune",
    "Inference",
    "Meta",
    "Replay",
    "Retrain",
    "Strategy",
    "WarmStart",
]
