"""Code of one's own by its import path, which files and command lines can name; and who may."""

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

from incontrast.files import alone_in, write_bytes

NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
PATH = f"{NAME}:{NAME}"
OURS = "incontrast.pretrained:model"  # which reads a folder, and runs nothing that is in it

Trust = bool | Callable[[Collection[str]], bool]
"""Whether code that a file names may be imported, or what says so of these import paths."""


class Untrusted(ValueError):
    """A file names code that its reader has not been permitted to run."""


@dataclass(frozen=True)
class ImportPath:
    """A function or class by the name ``package.module:function``, called with these arguments.

    It is imported when it is first called: from what is installed, or from the current folder.

    Args:
        path: Where it is.
        arguments: Keyword arguments, as JSON has them.

    >>> ImportPath("torch.nn:Linear", {"in_features": 3, "out_features": 2})()
    Linear(in_features=3, out_features=2, bias=True)
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(PATH, self.path):
            raise ValueError(
                "code is named as package.module:function, as in torch.nn:Identity, got "
                f"{self.path!r}"
            )
        try:
            json.dumps(self.arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the arguments of {self.path} must be what JSON has, got {self.arguments!r}: "
                f"{error}"
            ) from error

    @property
    def folder(self) -> str | None:
        """Where ``pretrained`` reads a model; None of any other code."""
        return self.arguments["folder"] if self.path == OURS else None

    def __call__(self, *given: Any) -> Any:
        function = self.resolve()
        try:
            return function(*given, **self.arguments)
        except Exception as error:
            raise ValueError(
                f"{self.path} failed with {dict(self.arguments)}: {type(error).__name__}: {error}"
            ) from error

    def resolve(self) -> Any:
        """What the path names; imports its module."""
        module, _, name = self.path.partition(":")
        here = str(Path.cwd())
        added = here not in sys.path
        if added:
            sys.path.append(here)  # last: it hides nothing that is installed
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
        for part in name.split("."):
            if not hasattr(found, part):
                near = get_close_matches(part, dir(found), n=1)
                nearest = f": the nearest name is {near[0]}" if near else ""
                raise ValueError(f"{self.path} is not there{nearest}")
            found = getattr(found, part)
        if not callable(found):
            raise ValueError(f"{self.path} is a {type(found).__name__}: name a function or a class")
        return found


def as_import_path(value: Any) -> Any:
    """A string with a colon in it is an import path; anything else stays as it is."""
    return ImportPath(value) if isinstance(value, str) and ":" in value else value


def is_model(folder: str | Path | None) -> TypeGuard[str | Path]:
    """Whether a model lies there, as ``save_pretrained`` of ``transformers`` writes it."""
    return folder is not None and (Path(folder) / "config.json").is_file()


def named_code(value: Any) -> set[str]:
    """Every string in settings as JSON that could be an import path."""
    if isinstance(value, str):
        return {value} - {OURS} if re.fullmatch(PATH, value) else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(named_code, parts))


def check_trust(value: Any, trust: Trust, where: Path) -> None:
    """Refuse settings that name code, unless their reader trusts who wrote them."""
    code = sorted(named_code(value))
    if code and not (trust(code) if callable(trust) else trust):
        raise Untrusted(
            f"{where} names code that would run here: {', '.join(code)}. If you know who wrote it, "
            "permit it: trust=True in Python, --trust on the command line"
        )


def permit(folder: Path, code: Collection[str]) -> None:
    """Remember that this user may run this code for what is in a folder."""
    folder = folder.resolve()  # however its path was spelt
    if permitted(folder, code):
        return
    _record().parent.mkdir(parents=True, exist_ok=True)
    with alone_in(_record().parent):  # others may permit meanwhile
        known = _permissions()
        known[str(folder)] = sorted({*known.get(str(folder), ()), *code})
        content = json.dumps(known, indent=2, sort_keys=True)
        write_bytes(_record(), (content + "\n").encode())


def permitted(folder: Path, code: Collection[str]) -> bool:
    """Whether this user may run all of this code for what is in a folder."""
    return not code or set(code) <= set(_permissions().get(str(folder.resolve()), ()))


def _record() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "incontrast" / "permissions.json"


def _permissions() -> dict[str, list[str]]:
    try:
        found: dict[str, list[str]] = json.loads(_record().read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it must have a list for each folder, got {found!r:.40}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Untrusted(
            f"{_record()}, which says what code may run, cannot be read ({error}): fix or delete "
            "it, then permit code again"
        ) from error
    return found
