"""Keep a self-supervised encoder up to date.

>>> import torch, incontrast as ic
>>> learner = ic.Learner(ic.Vectors(8), fit_strategy=ic.Retrain(max_epochs=3), seed=0)
>>> outcome = learner.fit(torch.randn(100, 8))
>>> outcome = learner.update(torch.randn(20, 8) + 1.0)
>>> outcome.forward_passes
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
    from incontrast.domains.images import Images
    from incontrast.domains.images.views import ImageViews
    from incontrast.domains.vectors import Vectors
    from incontrast.learner import Learner
    from incontrast.loss import Objective, batch_losses, increment_losses, similarities
    from incontrast.memory import KeepAll, Policy, Queue, Reservoir
    from incontrast.outcome import Outcome
    from incontrast.schedules import (
        DDPG,
        Cosine,
        Fixed,
        Learned,
        LearningRate,
        Schedule,
        ScheduleState,
    )
    from incontrast.strategies import (
        ICL,
        Distill,
        Emphasis,
        FineTune,
        Meta,
        NoUpdate,
        Replay,
        Retrain,
        Strategy,
        WarmStart,
    )
    from incontrast.strategies.check import StrategyError, check_strategy
    from incontrast.training.collectives import LostProcess, ProcessFailed
    from incontrast.training.loop import TrainingDiverged
    from incontrast.training.optimizers import Adam, OptimizerFactory, Prodigy
    from incontrast.training.progress import Budget, Callback, Progress, ProgressCallback
    from incontrast.training.task import (
        BatchIndices,
        Increment,
        InfiniteSampler,
        Task,
        ViewBatch,
        joint_epoch,
        new_epoch,
    )
    from incontrast.workspace import Workspace, WorkspaceError

_HOME = {
    "domains.base": "Collection Domain TensorCollection",
    "domains.check": "DomainError check_domain",
    "domains.graphs": "Graphs",
    "domains.images": "Images",
    "domains.images.views": "ImageViews",
    "domains.vectors": "Vectors",
    "learner": "Learner",
    "loss": "Objective batch_losses increment_losses similarities",
    "memory": "KeepAll Policy Queue Reservoir",
    "outcome": "Outcome",
    "schedules": "DDPG Cosine Fixed Learned LearningRate Schedule ScheduleState",
    "strategies": "ICL Distill Emphasis FineTune Meta NoUpdate Replay Retrain Strategy WarmStart",
    "strategies.check": "StrategyError check_strategy",
    "training.collectives": "LostProcess ProcessFailed",
    "training.optimizers": "Adam OptimizerFactory Prodigy",
    "training.loop": "TrainingDiverged",
    "training.progress": "Budget Callback Progress ProgressCallback",
    "training.task": "BatchIndices Increment InfiniteSampler Task ViewBatch joint_epoch new_epoch",
    "workspace": "Workspace WorkspaceError",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "DDPG",
    "ICL",
    "Adam",
    "BatchIndices",
    "Budget",
    "Callback",
    "Collection",
    "Cosine",
    "Distill",
    "Domain",
    "DomainError",
    "Emphasis",
    "FineTune",
    "Fixed",
    "Graphs",
    "ImageViews",
    "Images",
    "Increment",
    "InfiniteSampler",
    "KeepAll",
    "Learned",
    "Learner",
    "LearningRate",
    "LostProcess",
    "Meta",
    "NoUpdate",
    "Objective",
    "OptimizerFactory",
    "Outcome",
    "Policy",
    "ProcessFailed",
    "Prodigy",
    "Progress",
    "ProgressCallback",
    "Queue",
    "Replay",
    "Reservoir",
    "Retrain",
    "Schedule",
    "ScheduleState",
    "Strategy",
    "StrategyError",
    "Task",
    "TensorCollection",
    "TrainingDiverged",
    "Vectors",
    "ViewBatch",
    "WarmStart",
    "Workspace",
    "WorkspaceError",
    "__version__",
    "batch_losses",
    "check_domain",
    "check_strategy",
    "data",
    "evaluate",
    "increment_losses",
    "joint_epoch",
    "loss",
    "new_epoch",
    "similarities",
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
