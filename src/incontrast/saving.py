"""A learner as a folder of safetensors and JSON; loading runs no code."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from incontrast._version import __version__
from incontrast.domains.base import Domain
from incontrast.domains.graphs import Graphs
from incontrast.domains.image_views import ImageViews
from incontrast.domains.images import Images
from incontrast.domains.vectors import Vectors
from incontrast.memory import KeepAll, Memory, Policy, Queue, Reservoir
from incontrast.randomness import seeded
from incontrast.rates import Cosine, Fixed
from incontrast.rates.ddpg import DDPG
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

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from incontrast.learner import Learner

__all__ = ["load", "save"]

L = TypeVar("L", bound="Learner")

FORMAT = 1
SETTINGS, WEIGHTS, MEMORY = "learner.json", "encoder.safetensors", "memory.safetensors"
KNOWN: dict[str, type[Any]] = {
    known.__name__: known
    for known in (
        *(Vectors, Images, ImageViews, Graphs),
        *(KeepAll, Reservoir, Queue),
        *(Fixed, Cosine, DDPG),
        *(Inference, FineTune, Retrain, WarmStart, Replay, Distill, ICL, Meta),
        Objective,
    )
}


def save(learner: Learner, folder: Path) -> None:
    """Write a fitted learner; an older one in the same folder is replaced as a whole."""
    encoder: nn.Module = learner.encoder
    memory: Memory = learner.memory
    settings = {
        "format": FORMAT,
        "incontrast": __version__,
        "version": learner.version,
        "seed": learner.seed,
        "precision": learner.engine.precision,
        "domain": _encode(learner.domain),
        "unbound_domain": _encode(learner.unbound_domain),
        "strategy": _encode(learner.strategy),
        "fitting": _encode(learner.fitting),
        "objective": _encode(learner.objective),
        "policy": _encode(memory.policy),
        "arrivals": memory.arrivals,
        "threshold": None if memory.threshold == float("inf") else memory.threshold,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    # Cloned, because safetensors refuses weights that share memory.
    weights = {name: value.clone().contiguous() for name, value in encoder.state_dict().items()}
    save_file(weights, fresh / WEIGHTS)
    save_file(_memory_tensors(learner.domain, memory), fresh / MEMORY)
    (fresh / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    _swap(fresh, folder)


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
    file = folder / SETTINGS
    try:
        settings = _read_settings(file)
        return _load(settings, folder, kind, domain, strategy, fitting, memory, device, fabric)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): restore it from a copy") from error


def _load(
    settings: dict[str, Any],
    folder: Path,
    kind: type[L],
    domain: Domain | None,
    strategy: Strategy | None,
    fitting: Strategy | None,
    memory: Policy | None,
    device: torch.device | str | None,
    fabric: Fabric | None,
) -> L:
    file = folder / SETTINGS
    unbound = domain
    if domain is None:
        domain = _decode(settings["domain"], "domain", file)
        unbound = _decode(settings["unbound_domain"], "domain", file)
    else:
        domain = _bound(domain, settings["domain"])
    learner = kind(
        domain,
        strategy=strategy or _decode(settings["strategy"], "strategy", file),
        fitting=fitting or _decode(settings["fitting"], "fitting", file),
        objective=_decode(settings["objective"], "objective", file),
        memory=memory or _decode(settings["policy"], "memory", file),
        seed=settings["seed"],
        device=device,
        precision="float32" if fabric is not None else settings["precision"],
        fabric=fabric,
    )
    with seeded(learner.seed, "load"):
        encoder = domain.encoder()
    try:
        encoder.load_state_dict(_read_tensors(folder / WEIGHTS))
    except RuntimeError as error:
        message = f"{folder / WEIGHTS} does not fit the domain's encoder: {error}"
        raise ValueError(message) from error
    learner._encoder = learner.engine.place(encoder).eval()
    learner.unbound_domain = unbound or domain
    learner.version = settings["version"]
    learner.memory = _read_memory(folder / MEMORY, domain, learner.memory, settings)
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


def _read_memory(file: Path, domain: Domain, empty: Memory, settings: dict[str, Any]) -> Memory:
    tensors = _read_tensors(file)
    raw = tensors["items"].numpy().tobytes()
    ends = tensors["sizes"].cumsum(0).tolist()
    blobs = [raw[start:end] for start, end in pairwise([0, *ends])]
    threshold = settings["threshold"]
    return replace(
        empty,
        items=domain.unpack(blobs) if blobs else None,
        ids=tensors["ids"],
        keys=tensors["keys"],
        forgotten=tensors["forgotten"],
        arrivals=settings["arrivals"],
        threshold=float("inf") if threshold is None else threshold,
    )


def _encode(value: Any) -> Any:
    """A dataclass of ours as JSON, with its name; anything else that JSON has not as its name."""
    if KNOWN.get(type(value).__name__) is type(value):
        fields = value.arguments() if isinstance(value, Domain) else vars(value)
        return {"type": type(value).__name__, **{k: _encode(v) for k, v in fields.items()}}
    if isinstance(value, tuple | list):
        return [_encode(entry) for entry in value]
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


def _decode(value: Any, role: str, file: Path) -> Any:
    if isinstance(value, list):
        return tuple(_decode(entry, role, file) for entry in value)
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
    fields = {name: _decode(v, role, file) for name, v in value.items() if name != "type"}
    return KNOWN[value["type"]](**fields)
