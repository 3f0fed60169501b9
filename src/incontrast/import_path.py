"""The user's code by its import path, which files and command lines can name, and permissions."""

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

from incontrast.files import alone_in, write_bytes
from incontrast.names import nearest

NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
PATH = f"{NAME}:{NAME}"
OURS = "incontrast.pretrained:model"  # which reads a folder, and runs no code in it

Trust = bool | Callable[[Collection[str]], bool]
"""Whether code that a file names may be imported, or a function that decides by import paths."""


class Untrusted(ValueError):
    """A file names code that its reader has not been permitted to run."""


@dataclass(frozen=True)
class ImportPath:
    """A function or class by the name ``package.module:function``, called with these arguments.

    It is imported when it is first called, from installed packages or from the current folder.

    Args:
        path: Its name.
        arguments: Keyword arguments that JSON can hold.

    >>> ImportPath("torch.nn:Linear", {"in_features": 3, "out_features": 2})()
    Linear(in_features=3, out_features=2, bias=True)
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(PATH, self.path):
            raise ValueError(f"code is named as package.module:function, got {self.path!r}")
        try:
            json.dumps(self.arguments)
        except (TypeError, ValueError) as error:
            problem = f"must be what JSON has, got {self.arguments!r}: {error}"
            raise ValueError(f"the arguments of {self.path} {problem}") from error

    @property
    def folder(self) -> str | None:
        """Where ``pretrained`` reads a model; None of any other code."""
        return self.arguments["folder"] if self.path == OURS else None

    def __call__(self, *values: Any) -> Any:
        function = self.resolve()
        try:
            return function(*values, **self.arguments)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{self.path} failed with {dict(self.arguments)}: {problem}"
            ) from error

    def resolve(self) -> Any:
        """Import the function or class."""
        module, _, name = self.path.partition(":")
        here = str(Path.cwd())
        added = here not in sys.path
        if added:
            sys.path.append(here)  # last, so that it hides nothing that is installed
        try:
            found = import_module(module)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            hint = f": install it, or start in its folder (this is {here})" if missing else ""
            message = f"{module} of {self.path} cannot be imported ({error}){hint}"
            raise ValueError(message) from error
        finally:
            if added:
                sys.path.remove(here)
        try:
            found = attrgetter(name)(found)
        except AttributeError as error:
            near = nearest(str(error.name), dir(error.obj))
            hint = f": the nearest name is {near}" if near else ""
            raise ValueError(f"{self.path} is not there{hint}") from error
        if not callable(found):
            raise ValueError(f"{self.path} is a {type(found).__name__}: name a function or a class")
        return found


def as_import_path(value: Any) -> Any:
    """A string with a colon as an import path; anything else unchanged."""
    return ImportPath(value) if isinstance(value, str) and ":" in value else value


def is_model(folder: str | Path | None) -> TypeGuard[str | Path]:
    """Whether a folder holds a model of ``transformers``, written by ``save_pretrained``."""
    return folder is not None and (Path(folder) / "config.json").is_file()


def named_code(value: Any) -> set[str]:
    """Every string in JSON that could be an import path."""
    if isinstance(value, str):
        return {value} - {OURS} if re.fullmatch(PATH, value) else set()
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*map(named_code, value)) if isinstance(value, list) else set()


def check_trust(value: Any, trust: Trust, where: Path) -> None:
    """Refuse JSON that names code, unless that is trusted."""
    code = sorted(named_code(value))
    if code and not (trust(code) if callable(trust) else trust):
        raise Untrusted(
            f"{where} names code that would run here: {', '.join(code)}. If you know who wrote it, "
            "permit it: trust=True in Python, --trust on the command line"
        )


def permit(folder: Path, code: Collection[str]) -> None:
    """Remember that this user may run code that a folder names."""
    if permitted(folder, code):
        return
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(file.parent):
        permissions, key = _permissions(), str(folder.resolve())
        permissions[key] = sorted({*permissions.get(key, ()), *code})
        content = json.dumps(permissions, indent=2, sort_keys=True)
        write_bytes(file, (content + "\n").encode())


def permitted(folder: Path, code: Collection[str]) -> bool:
    """Whether this user may run all of this code for a folder."""
    return not code or set(code) <= set(_permissions().get(str(folder.resolve()), ()))


def _file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "incontrast" / "permissions.json"


def _permissions() -> dict[str, list[str]]:
    """The permitted code by folder."""
    try:
        permissions: dict[str, list[str]] = json.loads(_file().read_text(encoding="utf-8"))
        if not isinstance(permissions, dict):
            raise ValueError(f"it must have a list for each folder, got {permissions!r:.40}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problem = f"{_file()}, which lists permitted code, cannot be read ({error})"
        raise Untrusted(f"{problem}: fix or delete it, then permit code again") from error
    return permissions
