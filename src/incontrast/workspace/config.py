"""The settings of a workspace as one TOML file for people, changed where that is safe."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from incontrast.names import nearest
from incontrast.workspace.files import WorkspaceError

CONFIG = "settings.toml"
NONE = "none"  # TOML has no word for it

OF_LEARNER = {  # names here, and in what a learner is described by
    "domain": "initial_domain",
    "strategy": "strategy",
    "fit_strategy": "fit_strategy",
    "objective": "objective",
    "memory": "policy",
    "head": "head",
    "seed": "seed",
    "precision": "precision",
    "micro_batch_size": "micro_batch_size",
    "compile": "compile",
    "keep_neighbours": "keep_neighbours",
}
OF_WORKSPACE = ("device", "threads", "tolerance", "keep", "budget", "table")
SINCE = {"keep_neighbours": None, "compile": False}  # of training, which earlier workspaces lack
NO_TABLE = {"columns": None, "id": None, "label": None}
VIEWS = ("views", "drop", "noise", "mask", "walkers", "steps", "per")  # of domains
CHANGEABLE = (
    *("strategy", "fit_strategy", "objective", "precision", "micro_batch_size", "compile"),
    "keep_neighbours",
    *OF_WORKSPACE,
    *(f"domain.{name}" for name in VIEWS),
)


def config_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What people see of the settings of a workspace."""
    learner = settings["learner"]
    shown = {name: learner[ours] for name, ours in OF_LEARNER.items()}
    return shown | {name: settings[name] for name in OF_WORKSPACE}


def with_config(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what ``config_of`` gave, changed or not."""
    learner = {ours: config[name] for name, ours in OF_LEARNER.items()}
    learner = {**settings["learner"], **learner, "domain": learner["initial_domain"]}
    return {**settings, **{name: config[name] for name in OF_WORKSPACE}, "learner": learner}


def of_versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of the settings holds for versions that there are, whatever they were trained with."""
    learner = settings["learner"]
    names = [ours for name, ours in OF_LEARNER.items() if name in CHANGEABLE]
    views = {name: learner["initial_domain"][name] for name in VIEWS if name in learner["domain"]}
    domains = {} if learner["domain"]["type"] == "yours" else {"domain": views}
    return {name: learner[name] for name in names} | domains


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its name, with dots."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if isinstance(value, Mapping) and value else {}
        flat |= flattened(inner, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def of_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a training depends on, by names with dots, as JSON has it."""
    flat = flattened(config_of(settings))
    trains = {name: flat[name] for name in flat if name.split(".")[0] not in OF_WORKSPACE}
    plain: dict[str, Any] = json.loads(json.dumps(trains))
    return plain


def to_toml(config: Mapping[str, Any], table: str = "") -> str:
    """A nested dict as TOML."""
    lines = [f"{_key(k)} = {_literal(v)}" for k, v in config.items() if not _is_table(v)]
    text = "\n".join([*([f"[{table}]"] if table else []), *lines]) + "\n"
    prefix = f"{table}." if table else ""
    tables = [to_toml(v, f"{prefix}{_key(k)}") for k, v in config.items() if _is_table(v)]
    return "\n".join([text, *tables])


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _literal(name)


def _literal(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, Mapping):  # an empty one
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # JSON's strings and numbers are TOML's, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_config(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a workspace as they are now: as created, with what its TOML file changed.

    Raises:
        WorkspaceError: The file cannot be read, or names what there is not or cannot be changed.
    """
    file = folder / CONFIG
    settings = {"table": NO_TABLE, **settings, "learner": {**SINCE, **settings["learner"]}}
    if not file.exists():
        return settings
    try:
        found = _plain(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"{file} cannot be read: {error}") from error
    created = config_of(settings)
    for name in found:
        if name not in created:
            raise WorkspaceError(f"{file}: {unknown(name, created)}")
    config = {**created, **found}
    if config["table"] is None:
        config["table"] = NO_TABLE
    before, after = flattened(created), flattened(config)
    for name in before | after:
        # A head may change before the first fit; what loads a version compares it with its own.
        free = changeable(name) or name.split(".")[0] == "head"
        was, now = (repr(flat[name]) if name in flat else "left out" for flat in (before, after))
        if not free and (name not in before or name not in after or before[name] != after[name]):
            raise WorkspaceError(
                f"{file}: {name} cannot be changed any more, it was {was} when the workspace was "
                f"created and is {now} now"
            )
    return with_config(settings, config)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return None if value == NONE else value


def changeable(name: str) -> bool:
    """Whether a setting may change after a workspace was created."""
    return any(name == safe or name.startswith(f"{safe}.") for safe in CHANGEABLE)


def parse_changes(changes: Iterable[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """``name=value`` as names with dots, and values; short names where they are unambiguous.

    Raises:
        ValueError: There is no such name; says which is nearest.
    """
    known = flattened(config)
    tables = {name.rpartition(".")[0] for name in known} - {""}
    found = {}
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign:
            raise ValueError(f"a setting is changed by name=value, got {change!r}")
        name = name.strip().replace("-", "_")
        ends = [full for full in known if full.split(".")[-1] == name]
        if name not in known and name not in tables:
            if len(ends) > 1:
                raise ValueError(f"{name!r} is in several places: {' or '.join(ends)}?")
            if not ends:
                raise ValueError(unknown(name, known))
            name = ends[0]
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        none = dict(NO_TABLE) if name == "table" else None
        found[name] = none if value == NONE else _plain(value)
    return found


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say about a name that there is not."""
    table, _, last = name.rpartition(".")
    parts = [full.split(".") for full in known]
    every = {".".join(part[: end + 1]) for part in parts for end in range(len(part))}  # tables too
    for place in dict.fromkeys((table, "")):  # what is in the same table is meant rather
        inside = [full for full in every if full.startswith(f"{place}." if place else "")]
        short = {full.rpartition(".")[2]: full for full in sorted(inside, key=len, reverse=True)}
        near = nearest(last, short)
        if near is not None:
            return f"there is no setting {name!r}: the nearest is {short[near]}"
    inside = sorted(full for full in every if full.rpartition(".")[0] == table)
    return f"there is no setting {name!r}" + (f": there are {', '.join(inside)}" if inside else "")
