"""The settings of a workspace: as created, in JSON; as a TOML file that people may edit."""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incontrast._version import __version__
from incontrast.bounds import check_number, check_whole
from incontrast.files import write_bytes
from incontrast.import_path import Trust
from incontrast.names import nearest
from incontrast.workspace.files import SETTINGS, WorkspaceError, read_json, timestamp

if TYPE_CHECKING:
    from incontrast import Budget, Learner

CONFIG = "settings.toml"
NONE = "none"  # TOML has no word for it

OF_TRAINING = (
    *("strategy", "fit_strategy", "objective", "precision", "micro_batch_size", "compile"),
    "keep_neighbours",
)
OF_LEARNER = {  # names here, and in the description of a learner
    "domain": "initial_domain",
    "memory": "policy",
    **{name: name for name in ("seed", "head", *OF_TRAINING)},
}
OF_WORKSPACE = ("device", "threads", "tolerance", "keep", "budget", "table")
SINCE = {"keep_neighbours": None, "compile": False}  # settings that earlier workspaces lack
NO_TABLE = {"columns": None, "id": None, "label": None}
VIEWS = ("views", "drop", "noise", "mask", "walkers", "steps", "per")  # of domains
CHANGEABLE = (*OF_TRAINING, *OF_WORKSPACE, *(f"domain.{name}" for name in VIEWS))


def initial_settings(
    learner: Learner,
    *,
    tolerance: float = 0.05,
    keep: int = 10,
    threads: int | None = None,
    budget: Budget | None = None,
    device: str | None = None,
    table: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a new workspace, as JSON; arguments as in ``Workspace.create``."""
    from incontrast import saving
    from incontrast.training.progress import Budget

    settings: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "created": timestamp(),
        "incontrast": __version__,
        "tolerance": tolerance,
        "keep": keep,
        "threads": threads,
        "budget": dict(vars(budget or Budget())),
        "device": device,
        "table": {**NO_TABLE, **(table or {})},
        "learner": saving.describe(learner),
    }
    _check_limits(settings)
    return settings


def check_settings(settings: dict[str, Any], where: Path, trust: Trust) -> Learner:
    """The learner of these settings; refuses values that are wrong, and code without trust."""
    from incontrast import saving
    from incontrast.learner import Learner
    from incontrast.training.progress import Budget

    try:
        _check_limits(settings)
        Budget(**settings["budget"])
        device = settings["device"]
        return saving.rebuild(settings["learner"], where, Learner, device=device, trust=trust)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"a setting has a value of another kind: {error}") from error


def _check_limits(settings: dict[str, Any]) -> None:
    check_number("[0, inf)", tolerance=settings["tolerance"])
    check_whole(2, "an update needs a way back", keep=settings["keep"])
    if settings["threads"] is not None:
        check_whole(1, threads=settings["threads"])
    table = settings["table"]
    kinds = {"columns": list | tuple | None, "id": str | None, "label": str | None}
    if not all(isinstance(name, kinds.get(role, ())) for role, name in table.items()):
        raise ValueError(
            f"table has columns, a list of names, and id and label, a name each, got {dict(table)}"
        )


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a workspace as they are now: as created, changed by its TOML file.

    Raises:
        WorkspaceError: The file cannot be read, has unknown names or changes what must stay.
    """
    settings, file = read_json(folder / SETTINGS), folder / CONFIG
    settings = {"table": NO_TABLE, **settings, "learner": {**SINCE, **settings["learner"]}}
    if not file.exists():
        return settings
    try:
        edited = _plain(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"{file} cannot be read: {error}") from error
    created = config_of(settings)
    for name in edited:
        if name not in created:
            raise WorkspaceError(f"{file}: {unknown(name, created)}")
    config = {**created, **edited}
    config["table"] = config["table"] or NO_TABLE
    # A head may change before the first fit; loading a version compares it with the version's.
    check_changes(created, config, file, head=True)
    return with_config(settings, config)


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the TOML file."""
    write_bytes(folder / CONFIG, to_toml(config_of(settings)).encode())


def config_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that people see."""
    learner = settings["learner"]
    shown = {name: learner[ours] for name, ours in OF_LEARNER.items()}
    return shown | {name: settings[name] for name in OF_WORKSPACE}


def with_config(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of ``config_of`` replaced."""
    learner = {ours: config[name] for name, ours in OF_LEARNER.items()}
    learner = {**settings["learner"], **learner, "domain": learner["initial_domain"]}
    return {**settings, **{name: config[name] for name in OF_WORKSPACE}, "learner": learner}


def of_versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that also apply to existing versions, however these were trained."""
    learner = settings["learner"]
    names = [ours for name, ours in OF_LEARNER.items() if name in CHANGEABLE]
    views = {name: learner["initial_domain"][name] for name in VIEWS if name in learner["domain"]}
    domains = {} if learner["domain"]["type"] == "yours" else {"domain": views}
    return {name: learner[name] for name in names} | domains


def of_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that training depends on, by names with dots, as JSON."""
    flat = flattened(config_of(settings))
    trains = {name: flat[name] for name in flat if name.split(".")[0] not in OF_WORKSPACE}
    plain: dict[str, Any] = json.loads(json.dumps(trains))
    return plain


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its name, with dots."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        nested = _is_table(value)
        flat |= flattened(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def check_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], where: Path, *, head: bool
) -> None:
    """Refuse changes of what stored items and weights depend on; ``head``: it may change."""
    before, after = flattened(before), flattened(after)
    changeable = (*CHANGEABLE, "head") if head else CHANGEABLE
    for name in before | after:
        same = name in before and name in after and before[name] == after[name]
        if not same and not f"{name}.".startswith(tuple(f"{free}." for free in changeable)):
            was, now = (
                repr(flat[name]) if name in flat else "left out" for flat in (before, after)
            )
            raise WorkspaceError(
                f"{where}: {name} cannot be changed any more, it was {was} and is {now} now"
            )


def to_toml(config: Mapping[str, Any], table: str = "") -> str:
    """A nested dict as TOML."""
    lines = [f"[{table}]"] if table else []
    lines += [f"{_key(k)} = {_literal(v)}" for k, v in config.items() if not _is_table(v)]
    prefix = f"{table}." if table else ""
    tables = [to_toml(v, f"{prefix}{_key(k)}") for k, v in config.items() if _is_table(v)]
    return "\n".join(["\n".join(lines) + "\n", *tables])


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


def _plain(value: Any) -> Any:
    """A value of TOML, with None for ``"none"``."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return None if value == NONE else value


def parse_changes(changes: Iterable[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """``name=value`` as names with dots, and values; short names where they are unambiguous.

    Raises:
        ValueError: There is no such name; says which is nearest.
    """
    known = flattened(config)
    tables = {name.rpartition(".")[0] for name in known} - {""}
    parsed: dict[str, Any] = {}
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign:
            raise ValueError(f"a setting is changed by name=value, got {change!r}")
        name = name.strip().replace("-", "_")
        if name not in known and name not in tables:
            full = [other for other in known if other.split(".")[-1] == name]
            if len(full) > 1:
                raise ValueError(f"{name!r} is in several places: {' or '.join(full)}?")
            if not full:
                raise ValueError(unknown(name, known))
            name = full[0]
        try:
            value = _plain(tomllib.loads(f"value = {text}")["value"])
        except tomllib.TOMLDecodeError:
            value = _plain(text.strip())
        parsed[name] = dict(NO_TABLE) if name == "table" and value is None else value
    return parsed


def unknown(name: str, known: Iterable[str]) -> str:
    """A message about an unknown name."""
    table, dot, last = name.rpartition(".")
    settings = sorted(known, key=len, reverse=True)
    inside = [full for full in settings if full.startswith(table + dot)]
    for names in (inside, settings):  # the same table comes first
        short = {full.rpartition(".")[2]: full for full in names}
        near = nearest(last, short)
        if near is not None:
            return f"there is no setting {name!r}: the nearest is {short[near]}"
    there = sorted({full.removeprefix(table + dot).partition(".")[0] for full in inside})
    return f"there is no setting {name!r}" + (f": there are {', '.join(there)}" if there else "")
