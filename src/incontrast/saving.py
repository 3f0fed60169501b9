"""A learner as a folder of safetensors and JSON; loading runs no code."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from incontrast._version import __version__
from incontrast.domains.base import Domain
from incontrast.domains.graphs import Graphs
from incontrast.domains.image_views import ImageViews
from incontrast.domains.images import Images
from incontrast.domains.vectors import Vectors
from incontrast.memory import KeepAll, Memory, Policy, Queue, Reservoir
from incontrast.randomness import seeded
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
from incontrast.training.contrast import Objective
from incontrast.training.optimizers import Adam, Prodigy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from incontrast.learner import Learner

__all__ = ["decode", "describe", "encode", "load", "read", "revive", "save", "write"]

L = TypeVar("L", bound="Learner")

FORMAT = 1
SETTINGS, WEIGHTS, MEMORY = "learner.json", "encoder.safetensors", "memory.safetensors"
RATES = "rates.safetensors"
KNOWN: dict[str, type[Any]] = {
    known.__name__: known
    for known in (
        *(Vectors, Images, ImageViews, Graphs),
        *(KeepAll, Reservoir, Queue),
        *(Fixed, Cosine, Learned, DDPG),
        *(Adam, Prodigy),
        *(Inference, FineTune, Retrain, WarmStart, Replay, Distill, ICL, Meta),
        Objective,
    )
}


def save(learner: Learner, folder: Path) -> None:
    """Write a fitted learner; an older one in the same folder is replaced as a whole."""
    memory = _memory_tensors(learner.domain, learner.memory)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    write(learner, fresh)
    save_file(memory, fresh / MEMORY)
    _swap(fresh, folder)


def write(learner: Learner, folder: Path) -> None:
    """Write a fitted learner without the items in its memory into an empty folder."""
    # Cloned, because safetensors refuses weights that share memory.
    state = learner.encoder.state_dict()
    weights = {name: value.clone().contiguous() for name, value in state.items()}
    save_file(weights, folder / WEIGHTS)
    save_file(learner.rates_state, folder / RATES)
    settings = {"format": FORMAT, "incontrast": __version__, **describe(learner)}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def describe(learner: Learner) -> dict[str, Any]:
    """What makes a learner but its weights and items, for JSON."""
    memory: Memory = learner.memory
    return {
        "version": learner.version,
        "seed": learner.seed,
        "precision": learner.engine.precision,
        "domain": encode(learner.domain),
        "unbound_domain": encode(learner.unbound_domain),
        "strategy": encode(learner.strategy),
        "fitting": encode(learner.fitting),
        "objective": encode(learner.objective),
        "policy": encode(memory.policy),
        "arrivals": memory.arrivals,
        "threshold": None if memory.threshold == float("inf") else memory.threshold,
    }


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


def load(
    folder: Path,
    *,
    kind: type[L],
    domain: Domain | None,
    strategy: Strategy | None,
    fitting: Strategy | None,
    memory: Policy | None,
    device: torch.device | str | None,
    fabric: Fabric | None,
) -> L:
    """Read a learner of this class; the arguments replace what only the caller can make."""

    def items(learner: Learner, arrivals: int, threshold: float) -> Memory:
        return _read_memory(folder / MEMORY, learner.domain, learner.memory, arrivals, threshold)

    return read(
        folder,
        items,
        kind=kind,
        domain=domain,
        strategy=strategy,
        fitting=fitting,
        memory=memory,
        device=device,
        fabric=fabric,
    )


def read(
    folder: Path,
    items: Callable[[L, int, float], Memory],
    *,
    kind: type[L],
    domain: Domain | None = None,
    strategy: Strategy | None = None,
    fitting: Strategy | None = None,
    memory: Policy | None = None,
    device: torch.device | str | None = None,
    fabric: Fabric | None = None,
) -> L:
    """Read what ``write`` wrote.

    Args:
        folder: Where it is.
        items: Gives the memory of a learner after so many arrivals, with this threshold.
        kind: The class of the learner.
        domain: Replaces what was written, where only the caller can make it; so do the others.
        strategy: Likewise.
        fitting: Likewise.
        memory: Likewise.
        device: Where to compute.
        fabric: Processes that work together.
    """
    file = folder / SETTINGS
    try:
        settings = _read_settings(file)
        learner = revive(settings, file, kind, domain, strategy, fitting, memory, device, fabric)
        with seeded(learner.seed, "load"):
            encoder = learner.domain.encoder()
        try:
            encoder.load_state_dict(_read_tensors(folder / WEIGHTS))
        except RuntimeError as error:
            message = f"{folder / WEIGHTS} does not fit the domain's encoder: {error}"
            raise ValueError(message) from error
        learner._encoder = learner.engine.place(encoder).eval()
        learner.version = settings["version"]
        learner.rates_state = _read_tensors(folder / RATES)
        threshold = settings["threshold"]
        learner.memory = items(
            learner, settings["arrivals"], float("inf") if threshold is None else threshold
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): restore it from a copy") from error
    return learner


def revive(
    settings: dict[str, Any],
    file: Path,
    kind: type[L],
    domain: Domain | None = None,
    strategy: Strategy | None = None,
    fitting: Strategy | None = None,
    memory: Policy | None = None,
    device: torch.device | str | None = None,
    fabric: Fabric | None = None,
) -> L:
    """The learner that ``describe`` described, without weights and items."""
    unbound = domain
    if domain is None:
        domain = decode(settings["domain"], "domain", file)
        unbound = decode(settings["unbound_domain"], "domain", file)
    else:
        domain = _bound(domain, settings["domain"])
    learner = kind(
        domain,
        strategy=strategy or decode(settings["strategy"], "strategy", file),
        fitting=fitting or decode(settings["fitting"], "fitting", file),
        objective=decode(settings["objective"], "objective", file),
        memory=memory or decode(settings["policy"], "memory", file),
        seed=settings["seed"],
        device=device,
        precision="float32" if fabric is not None else settings["precision"],
        fabric=fabric,
    )
    learner.unbound_domain = unbound or domain
    return learner


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
            "use the version of incontrast that wrote it"
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


def encode(value: Any) -> Any:
    """A dataclass of ours as JSON, with its name; anything else that JSON has not as its name."""
    if KNOWN.get(type(value).__name__) is type(value):
        fields = value.arguments() if isinstance(value, Domain) else vars(value)
        return {"type": type(value).__name__, **{k: encode(v) for k, v in fields.items()}}
    if isinstance(value, tuple | list):
        return [encode(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    yours: dict[str, Any] = {"type": "yours", "name": type(value).__name__}
    if isinstance(value, Domain):
        yours["arguments"] = {
            k: v for k, v in value.arguments().items() if isinstance(v, int | float | str | tuple)
        }
    return yours


def _bound(domain: Domain, saved: dict[str, Any]) -> Domain:
    """A caller's domain with what the first data had told it, where the caller left it open."""
    known = saved.get("arguments", saved)
    gaps = {k: known[k] for k, v in domain.arguments().items() if v is None and k in known}
    filled = {k: tuple(v) if isinstance(v, list) else v for k, v in gaps.items()}
    if not filled:
        return domain
    if not is_dataclass(type(domain)):
        raise ValueError(
            f"{type(domain).__name__} was told {sorted(filled)} by the first data, which only a "
            "dataclass can be told again: make it one"
        )
    bound: Domain = replace(cast(Any, domain), **filled)
    return bound


def decode(value: Any, role: str, file: Path) -> Any:
    if isinstance(value, list):
        return tuple(decode(entry, role, file) for entry in value)
    if not isinstance(value, dict):
        return value
    if value["type"] == "yours":
        owner = "domain" if role == "domain" else role
        raise ValueError(
            f"this learner was saved with a {value['name']} of your own, which a file cannot hold: "
            f"pass it again, Learner.load(folder, {owner}=...)"
        )
    if value["type"] not in KNOWN:
        raise ValueError(f"{file} names an unknown {role}, {value['type']!r}")
    fields = {name: decode(v, role, file) for name, v in value.items() if name != "type"}
    return KNOWN[value["type"]](**fields)
