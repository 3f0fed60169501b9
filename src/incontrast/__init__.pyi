from . import compat, data, evaluate, loggers, loss, streams
from ._version import __version__
from .domains.base import Collection, Domain, TensorCollection
from .domains.check import DomainError, check_domain
from .domains.graphs import Graphs
from .domains.images import Images
from .domains.images.views import ImageViews
from .domains.pairs import Pairs
from .domains.per_item import PerItem
from .domains.text import Text
from .domains.text.views import TextViews
from .domains.vectors import Vectors
from .evaluate.probes import Probe
from .exporting import export
from .import_path import ImportPath, Untrusted
from .learner import Learner
from .loss import Objective, batch_losses, increment_losses, similarities
from .memory.memory import KeepAll, Policy, Queue, Reservoir
from .outcome import Outcome
from .pooling import Pooled
from .pretrained import pretrained
from .schedules import (
    DDPG,
    Cosine,
    Fixed,
    Learned,
    LearningRate,
    Schedule,
    ScheduleState,
)
from .strategies import (
    ICL,
    Distill,
    Emphasis,
    FineTune,
    HardNegatives,
    Meta,
    NoUpdate,
    Replay,
    Retrain,
    Strategy,
    WarmStart,
)
from .strategies.check import StrategyError, check_strategy
from .training.collectives import LostProcess, ProcessFailed
from .training.loop import TrainingDiverged
from .training.optimizers import Adam, Muon, Optimizer, OptimizerFactory, Prodigy
from .training.progress import Budget, Callback, Progress, ProgressCallback
from .training.protection import Protection
from .training.task import (
    BatchIndices,
    Increment,
    InfiniteSampler,
    Task,
    ViewBatch,
    joint_epoch,
    new_epoch,
)
from .transformer import ContrastiveTransformer
from .weights import load_weights
from .workspace import Workspace, WorkspaceError

__all__ = [
    "DDPG",
    "ICL",
    "Adam",
    "BatchIndices",
    "Budget",
    "Callback",
    "Collection",
    "ContrastiveTransformer",
    "Cosine",
    "Distill",
    "Domain",
    "DomainError",
    "Emphasis",
    "FineTune",
    "Fixed",
    "Graphs",
    "HardNegatives",
    "ImageViews",
    "Images",
    "ImportPath",
    "Increment",
    "InfiniteSampler",
    "KeepAll",
    "Learned",
    "Learner",
    "LearningRate",
    "LostProcess",
    "Meta",
    "Muon",
    "NoUpdate",
    "Objective",
    "Optimizer",
    "OptimizerFactory",
    "Outcome",
    "Pairs",
    "PerItem",
    "Policy",
    "Pooled",
    "Probe",
    "ProcessFailed",
    "Prodigy",
    "Progress",
    "ProgressCallback",
    "Protection",
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
    "Text",
    "TextViews",
    "TrainingDiverged",
    "Untrusted",
    "Vectors",
    "ViewBatch",
    "WarmStart",
    "Workspace",
    "WorkspaceError",
    "__version__",
    "batch_losses",
    "check_domain",
    "check_strategy",
    "compat",
    "data",
    "evaluate",
    "export",
    "increment_losses",
    "joint_epoch",
    "load_weights",
    "loggers",
    "loss",
    "new_epoch",
    "pretrained",
    "similarities",
    "streams",
]
