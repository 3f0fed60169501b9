"""Commands that train nothing do not wait for torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from incontrast import ICL, Learner, Retrain, Vectors, Workspace
from incontrast.cli.app import app
from incontrast.cli.command import CODES, Exit

# Runs a command in this process and says what has been imported.
RUN = """
import sys
from incontrast.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(code, *sys.modules)
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    """A workspace with two versions."""
    folder: Path = tmp_path_factory.mktemp("imports") / "space"
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1), strategy=ICL(max_epochs=1))
    workspace = Workspace.create(folder, learner)
    workspace.fit(blobs(40))
    workspace.update(blobs(20, seed=1), force=True)
    return folder


def imported(*arguments: object, code: int = 0) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended, *modules = done.stdout.splitlines()[-1].split()
    assert int(ended) == code, done.stdout + done.stderr
    return set(modules)


@pytest.mark.parametrize("command", ["", *get_command(app).commands])  # type: ignore[attr-defined]
def test_help_needs_neither_torch_nor_numpy(command: str) -> None:
    assert not imported(*filter(None, [command]), "--help") & {"torch", "numpy", "matplotlib"}


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "--check"],
        ["config"],
        ["log"],
        ["report"],
        ["rollback"],
        ["forget", "0"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_needs_no_torch(space: Path, command: list[str]) -> None:
    assert "torch" not in imported(*command, "--workspace", space)


def test_nor_does_an_error(tmp_path: Path) -> None:
    assert "torch" not in imported("status", "--workspace", tmp_path, code=Exit.STATE)


def test_every_command_is_carried_out_with_the_options_it_declares() -> None:
    """Options pass by name from the declaration to the function that does the work.

    Those of a group come as a dict by the group's name.
    """
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        closure = inspect.getclosurevars(command.callback.__wrapped__).nonlocals
        work = getattr(import_module(f"incontrast.cli.{closure['module']}"), name)
        declared = {parameter.name for parameter in command.params} - {"as_json", "config", "help"}
        for group in closure["groups"]:
            declared -= {*inspect.signature(group).parameters}
            declared.add(group.__name__)
        declared |= {"begun"} if closure["timed"] else set()
        taken = inspect.signature(work).parameters
        named = {p.name for p in taken.values() if p.kind is p.KEYWORD_ONLY}
        assert named <= declared, name
        assert named == declared or any(p.kind is p.VAR_KEYWORD for p in taken.values()), name


@pytest.mark.parametrize("name", CODES)
def test_every_error_with_a_code_exists(name: str) -> None:
    homes = ("builtins", "incontrast.workspace", "incontrast.memory.store", "incontrast")
    found = [getattr(import_module(home), name, None) for home in homes]
    assert any(isinstance(kind, type) and issubclass(kind, Exception) for kind in found)
