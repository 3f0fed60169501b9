"""The whole chain on embedded data: run, show, report, and run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from paper.__main__ import app
from paper.sets import SMALL


def test_the_chain_from_data_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = replace(SMALL["digits-vectors"], folds=2)
    monkeypatch.setitem(SMALL, "digits-vectors", quick)
    rows, out = str(tmp_path / "rows.jsonl"), tmp_path / "paper.html"
    run = ["run", "--set", "digits-vectors", "--strategy", "no-update", "--strategy", "icl"]
    run += ["--items", "90", "--epochs", "2", "--rows", rows, "--work", str(tmp_path / "work")]
    threads = torch.get_num_threads()
    first = CliRunner().invoke(app, run)
    torch.set_num_threads(threads)
    assert first.exit_code == 0, first.output
    assert "3 runs, 3 without a row" in first.output
    assert "nothing left" in first.output
    assert "4 new rows" in first.output  # the initial training has one too
    again = CliRunner().invoke(app, run)
    assert "3 runs, 0 without a row" in again.output
    assert "0 new rows" in again.output
    shown = CliRunner().invoke(app, ["show", "--rows", rows])
    assert shown.exit_code == 0, shown.output
    for word in ("Who comes to", "to parity", "median speed-up", f"paper report --rows {rows}"):
        assert word in "".join(shown.output.splitlines())
    for word in ("Table 3", "Claims", "The sweep"):
        assert word not in shown.output, f"{word} has no rows"
    written = CliRunner().invoke(app, ["report", "--rows", rows, "--out", str(out)])
    assert written.exit_code == 0, written.output
    assert "the paper, reproduced" in out.read_text()


def test_what_cannot_be_run_is_an_error_with_a_code(tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.jsonl")
    for wrong, code, message in (
        (["--set", "nope"], 2, "there is no data set 'nope'"),
        (["--strategy", "nope"], 2, "there is no strategy 'nope'"),
        (["--set", "proteins", "--data", str(tmp_path / "none")], 3, "there is no folder"),
        (["--set", "mnist-2", "--data", str(tmp_path)], 3, "there is no train-images-idx3-ubyte"),
    ):
        shown = CliRunner().invoke(app, ["run", "--rows", rows, *wrong])
        assert shown.exit_code == code, shown.output
        assert message in shown.output
