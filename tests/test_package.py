"""The package as a whole: what importing it costs, its public names, its command."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import ModuleType

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


def test_the_lists_of_names_agree() -> None:
    """Where a name lives, that it is public, and what type checkers see, are told in one file."""
    homes = [name for names in incontrast._HOME.values() for name in names.split()]
    assert len(homes) == len(set(homes))
    rest = set(incontrast.__all__) - set(homes) - {"__version__"}
    assert all(isinstance(getattr(incontrast, name), ModuleType) for name in rest), rest
    assert set(homes) <= set(incontrast.__all__)
    assert incontrast.__all__ == sorted(incontrast.__all__, key=ruff_order)
    assert dir(incontrast) == sorted(incontrast.__all__)
    source = Path(incontrast.__file__).read_text()
    typed = source.partition("if TYPE_CHECKING:")[2].partition("\n_HOME")[0]
    seen = re.findall(r"\w+", re.sub(r"from [\w.]+ import", "", typed))
    assert sorted(seen) == sorted({*homes, *rest})


def ruff_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'incontrast' has no attribute 'Lerner'"):
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
