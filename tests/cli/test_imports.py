"""Commands that train nothing do not wait for torch."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from incontrast import ICL, Learner, Retrain, Vectors, Workspace
from incontrast.cli.app import app
from incontrast.cli.command import CODES, Exit

# Runs commands one after another in a process, and says how each ended and what it imported.
RUN = """
import json, sys
from incontrast.cli.app import app
ended, known = [], set()
for command in json.loads(sys.argv[1]):
    try:
        app(command)
    except SystemExit as end:
        ended.append([end.code, sorted(set(sys.modules) - known)])
    known = set(sys.modules)
print(json.dumps(ended))
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


def imported(commands: list[list[str]]) -> list[tuple[int, set[str]]]:
    """The exit code of each, and the modules that those before it had not imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, set(modules)) for code, modules in json.loads(done.stdout.splitlines()[-1])]


def test_help_needs_neither_torch_nor_numpy() -> None:
    commands = [[], *([name] for name in get_command(app).commands)]  # type: ignore[attr-defined]
    found = imported([[*command, "--help"] for command in commands])
    for command, (code, modules) in zip(commands, found, strict=True):
        assert code == 0, command
        assert not modules & {"torch", "numpy", "matplotlib"}, command


def test_what_trains_nothing_needs_no_torch(space: Path, tmp_path: Path) -> None:
    commands = ["status", "status --check", "config", "log", "report", "rollback", "forget 0"]
    asked = [[*command.split(), "--workspace", str(space)] for command in commands]
    error = ["status", "--workspace", str(tmp_path)]
    *found, (failed, others) = imported([*asked, error])
    for command, (code, modules) in zip(commands, found, strict=True):
        assert code == 0, command
        assert "torch" not in modules, command
    assert failed == Exit.STATE
    assert "torch" not in others


def test_every_command_is_carried_out_with_the_options_it_declares() -> None:
    """The functions that do the work read no other option, and each option is read somewhere."""
    shared = options_read(import_module("incontrast.cli.encoder").opened)
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        closure = inspect.getclosurevars(command.callback.__wrapped__).nonlocals
        declared = {parameter.name for parameter in command.params} - {"as_json", "config", "help"}
        groups = {
            group.__name__: {*inspect.signature(group).parameters} for group in closure["groups"]
        }
        module = import_module(f"incontrast.cli.{closure['module']}")
        anywhere, named = options_read(module) | shared, options_read(getattr(module, name))
        assert named <= {*declared, *groups, "begun"}, name
        for group in anywhere & groups.keys():  # read as a dict
            declared -= groups[group]
        assert declared <= anywhere, name


def options_read(code: object) -> set[str]:
    """The options that source code takes from ``args``, one by one or by a tuple of names."""
    tree = ast.parse(inspect.getsource(code))  # type: ignore[arg-type]
    read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_args(n.value)}
    passes_on = any(
        isinstance(n, ast.Call) and ast.unparse(n.func) == "getattr" and is_args(n.args[0])
        for n in ast.walk(tree)
    )
    names = {
        each.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Tuple)
        for each in n.elts
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    return read | (names if passes_on else set())


def is_args(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "args"


@pytest.mark.parametrize("name", CODES)
def test_every_error_with_a_code_exists(name: str) -> None:
    homes = ("builtins", "incontrast.workspace", "incontrast.memory.store", "incontrast")
    found = [getattr(import_module(home), name, None) for home in homes]
    assert any(isinstance(kind, type) and issubclass(kind, Exception) for kind in found)
