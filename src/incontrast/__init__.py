"""Keep a self-supervised encoder up to date.

>>> import torch, incontrast as ic
>>> learner = ic.Learner(ic.Vectors(8), fitting=ic.Retrain(max_epochs=3), seed=0)
>>> outcome = learner.fit(torch.randn(100, 8))
>>> outcome = learner.update(torch.randn(20, 8) + 1.0)
>>> outcome.passes
6720

Names are imported when they are first used, so that ``incontrast --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from incontrast._version import __version__

if TYPE_CHECKING:
    from incontrast import data, evaluate, loss, streams
    from incontrast.domains.base import Collection, Domain, TensorCollection
    from incontrast.domains.check import DomainError, check_domain
    from incontrast.domains.graphs import Graphs
    from incontrast.domains.image_views import ImageViews
    from incontrast.domains.images import Images
    from incontrast.domains.vectors import Vectors
    from incontrast.learner import Learner
    from incontrast.memory import KeepAll, Queue, Reservoir
    from incontrast.outcome import Outcome
    from incontrast.rates import Cosine, Fixed, Learned
    from incontrast.rates.literal import DDPG
    from incontrast.strategies import (
        ICL,
        Distill,
        FineTune,
        Inference,
        Meta,
        Replay,
        Retrain,
        Strategy,
        WarmStart,
    )
    from incontrast.strategies.check import StrategyError, check_strategy
    from incontrast.training.collectives import LostProcess, ProcessFailed
    from incontrast.training.contrast import Objective
    from incontrast.training.loop import TrainingDiverged
    from incontrast.training.optimizers import Adam, Prodigy
    from incontrast.training.progress import Budget, Progress
    from incontrast.workspace import Workspace, WorkspaceError

_HOME = {
    "domains.base": ("Collection", "Domain", "TensorCollection"),
    "domains.check": ("DomainError", "check_domain"),
    "domains.graphs": ("Graphs",),
    "domains.image_views": ("ImageViews",),
    "domains.images": ("Images",),
    "domains.vectors": ("Vectors",),
    "learner": ("Learner",),
    "memory": ("KeepAll", "Queue", "Reservoir"),
    "outcome": ("Outcome",),
    "rates": ("Cosine", "Fixed", "Learned"),
    "rates.literal": ("DDPG",),
    "strategies": (
        *("ICL", "Distill", "FineTune", "Inference", "Meta", "Replay", "Retrain"),
        *("Strategy", "WarmStart"),
    ),
    "strategies.check": ("StrategyError", "check_strategy"),
    "training.collectives": ("LostProcess", "ProcessFailed"),
    "training.contrast": ("Objective",),
    "training.loop": ("TrainingDiverged",),
    "training.optimizers": ("Adam", "Prodigy"),
    "training.progress": ("Budget", "Progress"),
    "workspace": ("Workspace", "WorkspaceError"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DDPG",
    "ICL",
    "Adam",
    "Budget",
    "Collection",
    "Cosine",
    "Distill",
    "Domain",
    "DomainError",
    "FineTune",
    "Fixed",
    "Graphs",
    "ImageViews",
    "Images",
    "Inference",
    "KeepAll",
    "Learned",
    "Learner",
    "LostProcess",
    "Meta",
    "Objective",
    "Outcome",
    "ProcessFailed",
    "Prodigy",
    "Progress",
    "Queue",
    "Replay",
    "Reservoir",
    "Retrain",
    "Strategy",
    "StrategyError",
    "TensorCollection",
    "TrainingDiverged",
    "Vectors",
    "WarmStart",
    "Workspace",
    "WorkspaceError",
    "__version__",
    "check_domain",
    "check_strategy",
    "data",
    "evaluate",
    "loss",
    "streams",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"incontrast.{_MODULE_OF[name]}"), name)
    elif name in __all__:
        value = import_module(f"incontrast.{name}")
    else:
        raise AttributeError(f"module 'incontrast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
