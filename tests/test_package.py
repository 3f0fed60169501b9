"""The package as a whole: what importing it costs, its public names, its command."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import incontrast
from incontrast.cli.app import app

ALIASES = {"OptimizerFactory", "ProgressCallback", "ScheduleState"}  # of types
HEAVY = ("torch", "torch_geometric", "matplotlib", "sklearn", "numpy", "PIL", "typer", "rich")


def python(*arguments: str) -> str:
    """What another Python prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return {name for name in python("-c", code).split() if name in HEAVY}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import incontrast") == set()
    assert loaded_after("import incontrast; dir(incontrast); incontrast.__version__") == set()


def test_the_command_line_answers_without_torch() -> None:
    assert loaded_after("import incontrast.cli") <= {"typer", "rich"}


def test_a_learner_needs_neither_graphs_nor_pictures() -> None:
    loaded = loaded_after("import incontrast; incontrast.Learner; incontrast.Vectors")
    assert "torch" in loaded
    assert not loaded & {"torch_geometric", "matplotlib", "sklearn", "typer", "rich"}


@pytest.mark.parametrize("name", incontrast.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(incontrast, name)
    if name != "__version__":
        # What it is called is what it is: no name stands for something else.
        assert name in ALIASES or value.__name__.rpartition(".")[2] == name


def test_what_type_checkers_see_is_what_there_is() -> None:
    stub = ast.parse((Path(incontrast.__file__).parent / "__init__.pyi").read_text())
    listed = ast.literal_eval(stub.body[-1].value)
    assert sorted(listed) == sorted(incontrast.__all__) == sorted(dir(incontrast))


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "tools"])
def test_scripts_import_what_there_is(folder: str) -> None:
    """Nothing else runs them all."""
    for script in Path(__file__).parents[1].joinpath(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("incontrast."):
                found = import_module(str(node.module))
                for name in node.names:
                    assert hasattr(found, name.name) or find_spec(f"{node.module}.{name.name}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Lerner"):
        _ = incontrast.Lerner


def test_the_version() -> None:
    assert incontrast.__version__ == version("incontrast")
    assert re.fullmatch(r"\d+\.\d+\.\d+", incontrast.__version__)
    assert python("-m", "incontrast", "--version").strip() == incontrast.__version__


def test_the_command_explains_itself() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "demo" in shown.output
    assert "Keep a self-supervised encoder up to date" in shown.output
    assert CliRunner().invoke(app, ["demo", "--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2


def test_types_are_shipped() -> None:
    assert (files("incontrast") / "py.typed").is_file()
