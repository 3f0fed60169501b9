"""``incontrast init``: a new workspace for a kind of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from incontrast import strategies
from incontrast.cli.command import Answer
from incontrast.cli.options import EncoderName, PolicyName, StrategyName
from incontrast.data import read_source
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.domains.text import Text
from incontrast.learner import Learner
from incontrast.memory import KeepAll, Policy, Queue, Reservoir
from incontrast.strategies import Retrain, Strategy
from incontrast.text import counted
from incontrast.workspace import Workspace

STRATEGIES: dict[StrategyName, Strategy] = {
    "icl": strategies.ICL(),
    "warm-start": strategies.WarmStart(),
    "fine-tune": strategies.FineTune(),
    "replay": strategies.Replay(),
    "distill": strategies.Distill(),
    "retrain": strategies.Retrain(),
    "no-update": strategies.NoUpdate(),
}
POLICIES: dict[PolicyName, Callable[..., Policy]] = {
    "all": KeepAll,
    "reservoir": Reservoir,
    "queue": Queue,
}


def init(
    *,
    folder: Path,
    like: Path,
    size: int | None,
    channels: int | None,
    encoder: EncoderName | None,
    flip: float,
    crop: float,
    memory: PolicyName,
    memory_items: int | None,
    memory_bytes: int | None,
    strategy: StrategyName,
    epochs: int | None,
    fit_epochs: int,
    fit_patience: int,
    seed: int,
    tolerance: float,
    keep: int,
    threads: int | None,
    **table: Any,
) -> Answer:
    """Create the workspace."""
    source = read_source(like, check=False, **table)
    domain = source.domain(size=size, channels=channels, encoder=encoder)
    about = repr(domain)
    if isinstance(domain, Images):
        about = (
            f"{domain.size}×{domain.size} px, {counted(domain.channels, 'channel')}, "
            f"encoder {domain.encoder.given}"
        )
        domain = replace(domain, views=ImageViews(flip=flip, scale=(crop, 1.0)))
    elif isinstance(domain, Text):
        about = f"encoder {domain.encoder.given}, embeddings of {domain.width} numbers"
    learner = Learner(
        domain,
        strategy=strategy_named(strategy, epochs),
        fit_strategy=Retrain(max_epochs=fit_epochs, patience=fit_patience),
        memory=POLICIES[memory](items=memory_items, bytes=memory_bytes),
        seed=seed,
    )
    if threads is None and not (isinstance(domain, Images) and domain.encoder.given != "small"):
        threads = 1  # such encoders are too small to share
    workspace = Workspace.create(folder, learner, tolerance=tolerance, keep=keep, threads=threads)
    return Answer(
        {
            "folder": str(workspace.folder),
            "id": workspace.id,
            "kind": source.kind,
            "domain": repr(domain),
        },
        [f"{workspace.folder} is a workspace for {source.kind}: {about}"],
    )


def strategy_named(name: StrategyName, epochs: int | None) -> Strategy:
    """The strategy with its defaults, or with so many epochs at most."""
    strategy = STRATEGIES[name]
    return strategy if epochs is None else replace(strategy, max_epochs=epochs)
