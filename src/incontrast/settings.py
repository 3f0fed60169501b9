"""Settings as JSON and back: dataclasses of incontrast by their names; others are named only."""

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
    """A dataclass of ours as JSON, with its name; anything else that JSON has not as its name."""
    if isinstance(value, ImportPath):  # whose arguments are JSON, whatever they are called
        return {"type": "ImportPath", "path": value.path, "arguments": dict(value.arguments)}
    if KNOWN.get(type(value).__name__) is type(value):
        named = value.arguments() if isinstance(value, Domain) else vars(value)
        return {"type": type(value).__name__, **{k: encode(v) for k, v in named.items()}}
    if isinstance(value, tuple | list):
        return [encode(entry) for entry in value]
    if isinstance(value, dict):
        return {name: encode(part) for name, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    yours: dict[str, Any] = {"type": "yours", "name": type(value).__name__}
    if isinstance(value, Domain):
        told = value.arguments().items()
        yours["arguments"] = {k: v for k, v in told if isinstance(v, int | float | str | tuple)}
    return yours


def decode(value: Any, file: Path, role: str = "") -> Any:
    """What ``encode`` encoded; messages name the file it was read from.

    ``role`` is the argument of ``Learner.load`` that could give it, and after a dot where in it
    this is; of a dict, each key is one.
    """
    if isinstance(value, list):
        return tuple(decode(entry, file, role) for entry in value)
    if not isinstance(value, dict):
        return value
    if not role:
        return {name: decode(part, file, name) for name, part in value.items()}
    if value.get("type") == "ImportPath":
        return ImportPath(value["path"], value["arguments"])
    if "type" not in value:
        return {name: decode(part, file, f"{role}.{name}") for name, part in value.items()}
    if value["type"] == "yours":
        role, _, part = role.partition(".")
        raise ValueError(
            f"this learner was saved with a {value['name']} of your own, which a file cannot hold: "
            f"pass it again from Python, Learner.load(folder, {role}=...) or "
            f"Workspace.open(folder, {role}=...)" + (f", with its {part}=..." if part else "")
        )
    if value["type"] not in KNOWN:
        raise ValueError(f"{file} names an unknown {role}, {_nearest(value['type'], KNOWN)}")
    kind = KNOWN[value["type"]]
    given = {name: decode(v, file, f"{role}.{name}") for name, v in value.items() if name != "type"}
    names = [each.name for each in fields(kind)]
    if unknown := sorted(given.keys() - set(names)):
        raise ValueError(f"{file}: {kind.__name__} has no setting {_nearest(unknown[0], names)}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {role}: {error}") from error


def _nearest(name: Any, known: Iterable[str]) -> str:
    """What was named, and what may have been meant."""
    near = nearest(str(name), known)
    return f"{name!r}: the nearest is {near}" if near else repr(name)


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested settings with some, named with dots, set to other values.

    Where ``type`` changes, the settings of the other type have their defaults.
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
    """A caller's domain with what the first data had told it, where the caller left it open."""
    known = saved.get("arguments", saved)
    gaps = {k: known[k] for k, v in domain.arguments().items() if v is None and k in known}
    for name, part in gaps.items():
        if isinstance(part, dict):  # code: what the first data tell is numbers
            raise ValueError(
                f"this learner was saved with {name}={part.get('path', part.get('name'))!r}, "
                f"which the {type(domain).__name__} that was passed has not: pass it again, "
                f"domain={type(domain).__name__}(..., {name}=...)"
            )
    filled = {k: tuple(v) if isinstance(v, list) else v for k, v in gaps.items()}
    if not filled:
        return domain
    if not is_dataclass(type(domain)):
        raise ValueError(
            f"{type(domain).__name__} was told {sorted(filled)} by the first data, which only a "
            "dataclass can be told again: make it one"
        )
    fitted: Domain = replace(cast(Any, domain), **filled)
    return fitted
