"""``incontrast serve`` refuses what cannot be served before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from incontrast import Learner, Vectors, Workspace
from incontrast.cli.app import app
from incontrast.cli.command import Exit
from incontrast.serve.settings import VARIABLE, ServeSettings


def refused(*arguments: object, code: Exit) -> str:
    done = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def space(tmp_path: Path) -> Path:
    return Workspace.create(tmp_path / "space", Learner(Vectors(4))).folder


def test_what_has_no_encoder(space: Path, tmp_path: Path) -> None:
    assert "run incontrast fit" in refused("-w", space, code=Exit.STATE)
    assert "not a workspace" in refused("-w", tmp_path, code=Exit.STATE)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "127.0.0.1.example.org"])
def test_an_address_that_others_reach_needs_a_token(space: Path, host: str) -> None:
    assert "--token" in refused("-w", space, "--host", host, code=Exit.USAGE)
    with_token = refused("-w", space, "--host", host, "--token", "s", code=Exit.STATE)
    assert "no encoder yet" in with_token


def test_options_that_contradict_each_other(space: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    both = ("--token", "secret", "--token-file", tmp_path / "token")
    assert "not both" in refused("-w", space, *both, code=Exit.USAGE)
    assert "--max-items" in refused("-w", space, "--max-waiting", 8, code=Exit.USAGE)


def test_settings_pass_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServeSettings(workspace=Path("W"), token="secret", threads=2, interval=0.25)
    monkeypatch.setenv(VARIABLE, "")
    settings.export()
    assert ServeSettings.from_environment() == settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"interval": 0.0}, "interval must be positive"),
        ({"max_waiting": 8}, "never be answered"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServeSettings(workspace=Path("W"), **wrong)
