"""A learner as a folder of safetensors and JSON; loading runs no code."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from incontrast._version import __version__
from incontrast.domains.base import Domain
from incontrast.memory import Memory
from incontrast.randomness import seeded
from incontrast.settings import completed, decode, encode

if TYPE_CHECKING:
    from incontrast.learner import Learner, Own

__all__ = ["describe", "load", "read", "rebuild", "save", "write"]

L = TypeVar("L", bound="Learner")

FORMAT = 2
SETTINGS, WEIGHTS, MEMORY = "learner.json", "encoder.safetensors", "memory.safetensors"
SCHEDULE = "schedule.safetensors"


def save(learner: Learner, folder: Path) -> None:
    """Write a fitted learner; an older one in the same folder is replaced as a whole."""
    memory = _memory_tensors(learner.domain, learner.memory)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    write(learner, fresh)
    save_file(memory, fresh / MEMORY)
    _swap(fresh, folder)


def load(folder: Path, kind: type[L], **own: Unpack[Own]) -> L:
    """Read a learner of this class; ``own`` replaces what only the caller can make."""

    def recall(learner: L, arrivals: int, threshold: float) -> Memory:
        return _read_memory(folder / MEMORY, learner.domain, learner.memory, arrivals, threshold)

    return read(folder, kind, recall, **own)


def write(learner: Learner, folder: Path) -> None:
    """Write a fitted learner without the items in its memory into an empty folder."""
    # Cloned, because safetensors refuses weights that share memory.
    state = learner.encoder.state_dict()
    weights = {name: value.clone().contiguous() for name, value in state.items()}
    save_file(weights, folder / WEIGHTS)
    save_file(learner.schedule_state, folder / SCHEDULE)
    settings = {"format": FORMAT, "incontrast": __version__, **describe(learner)}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def read(
    folder: Path,
    kind: type[L],
    recall: Callable[[L, int, float], Memory],
    **own: Unpack[Own],
) -> L:
    """Read what ``write`` wrote.

    Args:
        folder: Where it is.
        kind: The class of the learner.
        recall: Gives the memory of a learner after so many arrivals, with this threshold.
        own: Replaces what was written, where only the caller can make it.
    """
    file = folder / SETTINGS
    try:
        settings = _read_settings(file)
        learner = rebuild(settings, file, kind, **own)
        with seeded(learner.seed, "load"):
            encoder = learner.domain.encoder()
        try:
            encoder.load_state_dict(_read_tensors(folder / WEIGHTS))
        except RuntimeError as error:
            message = f"{folder / WEIGHTS} does not fit the domain's encoder: {error}"
            raise ValueError(message) from error
        learner._encoder = learner.engine.place(encoder).eval()
        learner.version = settings["version"]
        learner.schedule_state = _read_tensors(folder / SCHEDULE)
        threshold = settings["threshold"]
        learner.memory = recall(
            learner, settings["arrivals"], float("inf") if threshold is None else threshold
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): restore it from a copy") from error
    return learner


def describe(learner: Learner) -> dict[str, Any]:
    """What makes a learner but its weights and items, for JSON."""
    memory: Memory = learner.memory
    return {
        "version": learner.version,
        "seed": learner.seed,
        "precision": learner.engine.precision,
        "domain": encode(learner.domain),
        "initial_domain": encode(learner.initial_domain),
        "strategy": encode(learner.strategy),
        "fit_strategy": encode(learner.fit_strategy),
        "objective": encode(learner.objective),
        "policy": encode(memory.policy),
        "arrivals": memory.arrivals,
        "threshold": None if memory.threshold == float("inf") else memory.threshold,
    }


def rebuild(settings: dict[str, Any], file: Path, kind: type[L], **own: Unpack[Own]) -> L:
    """The learner that ``describe`` described, without weights and items."""

    def part(name: str, role: str) -> Any:
        return own.get(role) or decode(settings[name], role, file)

    given = own.get("domain")
    fabric = own.get("fabric")
    domain = part("domain", "domain") if given is None else completed(given, settings["domain"])
    learner = kind(
        domain,
        strategy=part("strategy", "strategy"),
        fit_strategy=part("fit_strategy", "fit_strategy"),
        objective=decode(settings["objective"], "objective", file),
        memory=part("policy", "memory"),
        seed=settings["seed"],
        device=own.get("device"),
        precision="float32" if fabric is not None else settings["precision"],
        fabric=fabric,
    )
    learner.initial_domain = part("initial_domain", "domain")
    return learner


def _swap(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    if any(folder.iterdir()) and not (folder / SETTINGS).exists():
        shutil.rmtree(fresh)
        raise FileExistsError(
            f"{folder} holds something else than a learner: choose an empty or a new folder"
        )
    stale = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    folder.rename(stale / "old")
    fresh.rename(folder)
    shutil.rmtree(stale)


def _read_settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing: {file.parent} holds no saved learner")
    try:
        settings: dict[str, Any] = json.loads(file.read_text())
        found = settings["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): restore it from a copy") from error
    if found != FORMAT:
        raise ValueError(
            f"{file} has format {found}, this is incontrast {__version__} with format {FORMAT}: "
            f"use the version that wrote it ({settings.get('incontrast', 'unknown')}), or fit again"
        )
    return settings


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} is missing: the saved learner is not whole") from error
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}): restore it from a copy") from error


def _memory_tensors(domain: Domain, memory: Memory) -> dict[str, Tensor]:
    indices = torch.arange(len(memory))
    blobs = [] if memory.items is None else domain.pack(memory.items, indices)
    return {
        "ids": memory.ids,
        "keys": memory.keys,
        "forgotten": memory.forgotten,
        "sizes": torch.tensor([len(blob) for blob in blobs], dtype=torch.int64),
        "items": torch.from_numpy(np.frombuffer(b"".join(blobs), dtype=np.uint8).copy()),
    }


def _read_memory(
    file: Path, domain: Domain, empty: Memory, arrivals: int, threshold: float
) -> Memory:
    tensors = _read_tensors(file)
    raw = tensors["items"].numpy().tobytes()
    ends = tensors["sizes"].cumsum(0).tolist()
    blobs = [raw[start:end] for start, end in pairwise([0, *ends])]
    return replace(
        empty,
        items=domain.unpack(blobs) if blobs else None,
        ids=tensors["ids"],
        keys=tensors["keys"],
        forgotten=tensors["forgotten"],
        arrivals=arrivals,
        threshold=threshold,
    )
