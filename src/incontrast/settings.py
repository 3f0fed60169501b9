"""Settings as JSON and back."""

import copy
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from incontrast import strategies
from incontrast.domains.base import Domain
from incontrast.domains.graphs import Graphs
from incontrast.domains.images import Images
from incontrast.domains.images.views import ImageViews
from incontrast.domains.pairs import Pairs
from incontrast.domains.text import Text
from incontrast.domains.text.views import TextViews
from incontrast.domains.vectors import Vectors
from incontrast.import_path import ImportPath
from incontrast.loss import Objective
from incontrast.memory.memory import KeepAll, Queue, Reservoir
from incontrast.names import nearest
from incontrast.schedules import DDPG, Cosine, Fixed, Learned
from incontrast.training.optimizers import Adam, Muon, Optimizer, Prodigy
from incontrast.training.protection import Protection

KNOWN: dict[str, type[Any]] = {
    known.__name__: known
    for known in (
        *(Vectors, Images, ImageViews, Graphs, Text, TextViews, Pairs),
        *(KeepAll, Reservoir, Queue),
        *(Fixed, Cosine, Learned, DDPG),
        *(Adam, Muon, Optimizer, Prodigy),
        *(strategies.NoUpdate, strategies.FineTune, strategies.Retrain, strategies.WarmStart),
        *(strategies.Replay, strategies.Distill, strategies.ICL, strategies.Meta),
        *(strategies.Emphasis, strategies.HardNegatives, Protection),
        *(Objective, ImportPath),
    )
}


def encode(value: Any) -> Any:
    """A value as JSON: dataclasses of incontrast with their fields, other objects by name only."""
    if isinstance(value, ImportPath):  # its arguments stay as they are
        return {"type": "ImportPath", "path": value.path, "arguments": dict(value.arguments)}
    if KNOWN.get(type(value).__name__) is type(value):
        arguments = value.arguments() if isinstance(value, Domain) else vars(value)
        return {"type": type(value).__name__, **encode(arguments)}
    if isinstance(value, tuple | list):
        return [encode(entry) for entry in value]
    if isinstance(value, dict):
        return {name: encode(part) for name, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    yours: dict[str, Any] = {"type": "yours", "name": type(value).__name__}
    if isinstance(value, Domain):
        parts, plain = value.arguments().items(), int | float | str | tuple
        yours["arguments"] = {name: part for name, part in parts if isinstance(part, plain)}
    return yours


def decode(value: Any, file: Path, role: str = "") -> Any:
    """What ``encode`` encoded; errors name the file that it was read from.

    ``role`` is the argument of ``Learner.load`` that can replace the value, and after a dot the
    part of it that this is; it is empty for a dict of such arguments.
    """
    if isinstance(value, list):
        return tuple(decode(entry, file, role) for entry in value)
    if not isinstance(value, dict):
        return value
    if role and value.get("type") == "ImportPath":
        return ImportPath(value["path"], value["arguments"])
    if role and value.get("type") == "yours":
        role, _, part = role.partition(".")
        raise ValueError(
            f"this learner was saved with a {value['name']} of your own, which a file cannot hold: "
            f"pass it again from Python, Learner.load(folder, {role}=...) or "
            f"Workspace.open(folder, {role}=...)" + (f", with its {part}=..." if part else "")
        )
    prefix = f"{role}." if role else ""
    parts = {name: decode(part, file, prefix + name) for name, part in value.items()}
    if not role or "type" not in parts:
        return parts
    name = parts.pop("type")
    if name not in KNOWN:
        raise ValueError(f"{file} names an unknown {role}, {_nearest(name, KNOWN)}")
    kind = KNOWN[name]
    names = [field.name for field in fields(kind)]
    if unknown := sorted(parts.keys() - set(names)):
        raise ValueError(f"{file}: {name} has no setting {_nearest(unknown[0], names)}")
    try:
        return kind(**parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {role}: {error}") from error


def _nearest(name: Any, known: Iterable[str]) -> str:
    near = nearest(str(name), known)
    return f"{name!r}: the nearest is {near}" if near else repr(name)


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested settings with other values, by names with dots.

    If a ``type`` changes, the settings of the new type have their defaults.
    """
    result = copy.deepcopy(config)
    for name in sorted(changes, key=lambda name: not name.endswith(".type")):
        *tables, last = name.split(".")
        place = result
        for table in tables:
            place = place[table]
        if last == "type" and changes[name] != place.get("type"):
            if changes[name] not in KNOWN:
                raise ValueError(f"{name} is unknown, {_nearest(changes[name], KNOWN)}")
            place.clear()
            place |= encode(KNOWN[changes[name]]())
        else:
            place[last] = changes[name]
    return result


def completed(domain: Domain, saved: dict[str, Any]) -> Domain:
    """A caller's domain, with statistics of the first data where its arguments are None."""
    known = saved.get("arguments", saved)
    kind = type(domain).__name__
    gaps = {k: known[k] for k, v in domain.arguments().items() if v is None and k in known}
    for name, part in gaps.items():
        if isinstance(part, dict):  # code, not statistics
            code = part.get("path", part.get("name"))
            hint = f"pass it again, domain={kind}(..., {name}=...)"
            raise ValueError(f"this learner was saved with {name}={code!r}: {hint}")
    filled = {k: tuple(v) if isinstance(v, list) else v for k, v in gaps.items()}
    if not filled:
        return domain
    if not is_dataclass(type(domain)):
        raise ValueError(f"{kind} must be a dataclass, so that {sorted(filled)} can be filled in")
    fitted: Domain = replace(cast(Any, domain), **filled)
    return fitted
