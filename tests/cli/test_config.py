"""Settings from the command line: shown, changed, refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from incontrast import Workspace
from incontrast.cli.app import app
from incontrast.cli.command import Exit


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def init(tmp_path: Path, blobs, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(tmp_path / "space"))
    np.save("rows.npy", blobs(40).numpy())
    return ("init", "space", "--like", "rows.npy", "--fit-epochs", 1)


def test_settings_are_shown_before_and_after_init_and_changed_both_times(init) -> None:
    changes = (
        "--set",
        "objective.temperature=0.3",
        "--set",
        "head=mlp",
        "--set",
        "domain.hidden=32",
    )
    shown = tomllib.loads(run(*init, *changes, "--show-config"))
    assert not Path("space").exists()
    assert shown["objective"]["temperature"] == 0.3
    assert (shown["head"], shown["domain"]["hidden"]) == ("mlp", 32)
    told = run(*init, *changes)
    assert "for vectors: rows of 8 numbers, encoder MLP of 2 × 32 units" in told, "as created"
    assert tomllib.loads(run("config")) == shown
    assert "strategy.lr = 0.01" in run("config", "--set", "strategy.lr=0.01")
    assert tomllib.loads(run("config"))["strategy"]["lr"] == 0.01
    assert "settings changed: strategy.lr = 0.01" in run("log")
    run("fit", "rows.npy")
    assert Workspace.open("space").learner().strategy.lr == 0.01


def test_names_that_are_not_there_get_the_nearest(init) -> None:
    shown = run(*init, "--set", "strategy.learning_rate=1", code=Exit.DATA)
    assert "there is no setting 'strategy.learning_rate': the nearest is strategy.lr" in shown
    assert not Path("space").exists()
    run(*init)
    assert "nearest is objective.temperature" in run(
        "config", "--set", "temperture=1", code=Exit.DATA
    )
    shown = run("config", "--set", "nope=1", code=Exit.DATA)
    assert "no setting 'nope': there are budget, compile, device, domain, fit_strategy" in shown
    assert "cannot be changed any more" in run("config", "--set", "domain.dim=3", code=Exit.STATE)


def test_values_that_make_no_sense_are_refused_by_the_name_of_their_setting(init) -> None:
    run(*init)
    shown = run("config", "--set", "strategy.lr=fast", code=Exit.DATA)
    assert "strategy: a learning rate must be a number, or a schedule" in shown
    assert "got 'fast'" in shown
    shown = run("config", "--set", 'strategy.lr={type = "Cosin", lr = 0.1}', code=Exit.DATA)
    assert "names an unknown strategy.lr, 'Cosin': the nearest is Cosine" in shown


def test_help_names_the_common_ones() -> None:
    for name in ("strategy.lr", "strategy.batch_size", "objective.temperature", "budget.seconds"):
        assert name in "".join(run("config", "--help").replace("│", "").split())


def test_help_shows_options_that_commands_share_under_titles() -> None:
    shown = CliRunner().invoke(app, ["update", "--help"]).output
    places = [shown.index(f"─ {title} ─") for title in ("Options", "Training", "Probe set")]
    assert places == sorted(places)
    assert places[1] < shown.index("--seconds") < places[2] < shown.index("--probe-label")


def test_help_says_something_of_every_option() -> None:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        silent = [parameter.name for parameter in command.params if not parameter.help]
        assert not silent, name


def test_help_leaves_the_wrapping_of_paragraphs_to_the_terminal() -> None:
    """A line that were broken in the source and again by the terminal would leave a short one."""
    shown = CliRunner().invoke(app, ["update", "--help"], env={"COLUMNS": "80"}).output
    text = shown.partition("If it was interrupted")[2].partition("╭")[0]
    *whole, last = [line.strip() for line in text.strip().splitlines()]
    assert last.endswith("drops it.")
    assert all(len(line) > 50 for line in whole[1:]), whole
