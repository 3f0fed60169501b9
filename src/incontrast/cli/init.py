"""``incontrast init``: a new workspace for a kind of data."""

import copy
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from incontrast import strategies
from incontrast.cli.command import Answer
from incontrast.cli.options import PolicyName, StrategyName
from incontrast.data import Source, read_source
from incontrast.domains.base import Domain
from incontrast.domains.graphs import Graphs
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.domains.text import Text
from incontrast.domains.vectors import Vectors
from incontrast.import_path import ImportPath, as_import_path, is_model
from incontrast.learner import Learner
from incontrast.memory.memory import KeepAll, Policy, Queue, Reservoir
from incontrast.pretrained import pretrained
from incontrast.saving import describe
from incontrast.settings import changed
from incontrast.strategies import Retrain, Strategy
from incontrast.text import counted, duration
from incontrast.workspace.config import (
    check_settings,
    config_of,
    initial_settings,
    parse_changes,
    to_toml,
    with_config,
)
from incontrast.workspace.workspace import create_workspace

TRIED = 128  # items on which the time of a fit is estimated; fewer of large images
LARGE = 64  # pixels

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


def init(args: Namespace) -> Answer:
    source = read_source(args.like, check=False, **args.table)
    domain = domain_of(source, **args.network, views=args.views)
    learner = Learner(
        domain,
        strategy=strategy_named(args.strategy, args.epochs),
        fit_strategy=Retrain(max_epochs=args.fit_epochs, patience=args.fit_patience),
        memory=POLICIES[args.memory](items=args.memory_items, bytes=args.memory_bytes),
        seed=args.seed,
    )
    settings, learner = settings_with(
        args.changes,
        learner,
        table={**args.table, "columns": args.table["columns"] or source.columns or None},
        threads=args.threads or usual_threads(domain),
        tolerance=args.tolerance,
        keep=args.keep,
    )
    domain = learner.domain
    if args.show_config:
        config = config_of(settings)
        return Answer(config, [to_toml(config).rstrip()])
    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    seconds = _fit_seconds(source, learner, args.begun)
    workspace = create_workspace(args.folder, learner, settings)
    lines = [f"{workspace.folder} is a workspace for {source.kind}: {in_words(domain)}"]
    if seconds is not None:
        lines.append(
            f"A fit on {counted(len(source))} takes at most {duration(seconds)} on this machine; "
            "--fit-epochs and fit --seconds limit it."
        )
    value = {"folder": str(workspace.folder), "id": workspace.id, "kind": source.kind}
    return Answer({**value, "domain": repr(domain), "fit_seconds": seconds}, lines)


def in_words(domain: Domain) -> str:
    """What items are, and what encodes them."""
    encoder = domain.arguments()["encoder"]
    name = encoder.path if isinstance(encoder, ImportPath) else encoder
    match domain:
        case Images():
            channels = counted(domain.channels, "channel")
            return f"{domain.size}×{domain.size} px, {channels}, encoder {name}"
        case Text():
            return f"encoder {name}, embeddings of {domain.width} numbers"
        case Vectors():
            name = name or f"MLP of 2 × {domain.hidden} units, embeddings of {domain.out} numbers"
            return f"rows of {counted(domain.dim, 'number')}, encoder {name}"
        case Graphs():
            return f"encoder {name or f'GCN of {domain.layers} × {domain.hidden} units'}"
    return f"encoder {name}"


def settings_with(
    changes: Iterable[str] | None, learner: Learner, **limits: Any
) -> tuple[dict[str, Any], Learner]:
    """The settings of a new workspace with the changes of ``--set``, and its learner."""
    settings = initial_settings(learner, **limits)
    if changes:
        config = config_of(settings)
        settings = with_config(settings, changed(config, parse_changes(changes, config)))
        learner = check_settings(settings, Path("--set"), trust=True)
        settings["learner"] = describe(learner)
    return settings, learner


def _fit_seconds(source: Source, learner: Learner, begun: float) -> float | None:
    """An upper bound of the time of a fit on this machine, from a few steps.

    The time since ``begun`` stands for its imports and its slow first step.
    """
    if isinstance(learner.domain.arguments()["encoder"], ImportPath):
        return None  # fit imports it, and says what is wrong with it
    count, trial = TRIED, copy.copy(learner)
    if isinstance(learner.domain, Images) and learner.domain.size > LARGE:
        # A step would take many seconds.
        count, trial.fit_strategy = 8, replace(learner.fit_strategy, batch_size=4)
    places = torch.linspace(0, len(source) - 1, min(len(source), count)).long()
    start = time.perf_counter()
    items = source.take(learner.domain, places, strict=False).items
    reading = time.perf_counter() - start
    try:
        seconds = trial.forecast(items) if len(items) > 1 else None
    except (ValueError, RuntimeError):  # fit says what is wrong, with the data or the device
        return None
    if seconds is None:
        return None
    return (reading + seconds) * len(source) / len(items) + time.perf_counter() - begun


def domain_of(
    source: Source,
    *,
    size: int | None = None,
    channels: int | None = None,
    encoder: str | None = None,
    encoder_args: dict[str, Any] | None = None,
    views: Mapping[str, float] | None = None,
) -> Domain:
    """The domain of a source, with an encoder by its name or by its import path."""
    if source.kind != "images" and (size or channels):
        raise ValueError(f"{source.path} holds {source.kind}: --size and --channels are for images")
    network = own_code("encoder", encoder, encoder_args)
    domain = source.domain(size=size, channels=channels, encoder=network)
    if views is not None and isinstance(domain, Images):
        shown = ImageViews(flip=views["flip"], scale=(views["crop"], 1.0))
        domain = replace(domain, views=shown)
    return domain


def own_code(kind: str, name: str | None, arguments: dict[str, Any] | None) -> Any:
    """An encoder or a head by name, by import path with arguments, or from a folder."""
    if kind == "encoder" and is_model(name):
        if arguments is None or {*arguments} != {"pooling"}:
            raise ValueError(
                f'say what an embedding of {name} is: --encoder-args \'{{"pooling": "mean"}}\', '
                'or "max", "first" (the class token), "pooler"'
            )
        return pretrained(name, **arguments)
    if arguments is None:
        return as_import_path(name)
    if name is None or ":" not in name:
        raise ValueError(
            f"--{kind}-args are for {kind}s of your own, package.module:function, got {name!r}"
        )
    return ImportPath(name, arguments)


def usual_threads(domain: Domain) -> int | None:
    """One for encoders that are too small for more."""
    return 1 if domain.arguments()["encoder"] in (None, "small") else None


def strategy_named(name: StrategyName, epochs: int | None) -> Strategy:
    """The strategy with its defaults, or with another limit of epochs."""
    strategy = STRATEGIES[name]
    return strategy if epochs is None else replace(strategy, max_epochs=epochs)
