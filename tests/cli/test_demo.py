"""The demonstration from end to end, with less patience."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from incontrast import ICL, NoUpdate, Retrain
from incontrast.cli import compare as demo
from incontrast.cli.app import app
from incontrast.data import digits


def test_the_demonstration_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "digits", lambda: digits().select(np.arange(300)))
    quick = {"no update": NoUpdate(), "ICL": ICL(max_epochs=1), "retraining": Retrain(max_epochs=1)}
    monkeypatch.setattr(demo, "STRATEGIES", quick)
    page = tmp_path / "page.html"
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, ["demo", "--out", str(page)])
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
    assert page.read_text().count("<polyline") == 6  # three strategies, old and new items
    assert page.read_text().count("stroke-dasharray") == 2  # no update: a level in each panel


def test_a_page_that_cannot_be_written_is_refused_at_once() -> None:
    result = CliRunner().invoke(app, ["demo", "--out", "missing/page.html"])
    assert result.exit_code == 2
    assert "must name a file in a folder that exists" in " ".join(result.output.split())


def test_a_full_disk_is_told(tmp_path, monkeypatch) -> None:
    def full(args: object) -> None:
        raise OSError(28, "No space left on device", "page.html")

    monkeypatch.setattr(demo, "demo", full)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 7
    expected = "No space left on device (page.html): what was complete is kept"
    assert expected in result.output
