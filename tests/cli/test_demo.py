"""The demonstration from end to end, with less patience."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from incontrast import ICL, NoUpdate, Retrain
from incontrast.cli import demo
from incontrast.cli.app import app
from incontrast.data import digits


def test_the_demonstration_prints_a_table_and_draws_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "digits", lambda: digits().select(np.arange(300)))
    quick = {"no update": NoUpdate(), "ICL": ICL(max_epochs=1), "retraining": Retrain(max_epochs=1)}
    monkeypatch.setattr(demo, "STRATEGIES", quick)
    picture = tmp_path / "picture.svg"
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, ["demo", "--picture", str(picture)])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    for word in (
        "300 handwritten digits",
        "parity after",
        "kNN new",
        "no update",
        "retraining",
        "first-order",
    ):
        assert word in result.output
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize("picture", ["picture.txt", "missing/picture.svg"])
def test_a_picture_that_cannot_be_drawn_is_refused_at_once(picture: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--picture", picture])
    assert result.exit_code == 2
    assert "picture ends in" in result.output or "there is no folder" in result.output


def test_a_picture_that_cannot_be_written_is_told(tmp_path, monkeypatch) -> None:
    def full(**options: object) -> None:
        raise OSError(28, "No space left on device", "picture.svg")

    monkeypatch.setattr(demo, "demo", full)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 7
    expected = "No space left on device (picture.svg): nothing was changed; run it again"
    assert expected in result.output
