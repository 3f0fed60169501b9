"""``paper run``: its help, and what it shows while it runs."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from paper import progress as progress_module
from paper.group_run import Event
from paper.names import OWN_SETS, SETS
from paper.progress import grid_progress
from paper.sets import PAPER, SMALL
from paper.strategies import STRATEGIES

ROW = {
    "key": "a",
    "kind": "run",
    "set": "digits-vectors",
    "strategy": "icl",
    "cost": {"seconds": 3.0},
}


def test_help_names_every_set_and_strategy_and_what_runs_without_options() -> None:
    assert set(SETS) - set(OWN_SETS) == set(PAPER)
    code = """
import sys
from typer.testing import CliRunner
from paper.__main__ import app
shown = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["run", "--help"])
print(shown.output)
sys.exit("torch" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, f"help waits for torch: {shown.stderr}"
    for name in (*SMALL, *STRATEGIES):
        assert name in shown.stdout
    assert "Without it: 0 alone" in shown.stdout


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)


def test_the_estimate_is_made_when_a_row_arrives_and_not_when_it_is_drawn(
    tiny, terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[int] = []

    def estimate(left: list, rows: list, *, jobs: int) -> float:
        estimates.append(len(rows))
        return 60.0 * len(rows)

    monkeypatch.setattr(progress_module, "seconds_left", estimate)
    monkeypatch.setattr(progress_module, "REDRAWS", 1e9)
    with grid_progress(terminal, tiny(), [], jobs=1) as notify:
        for epoch in range(20):
            notify(Event(group="here", doing="icl", epoch=epoch))
        assert "epoch 19" in terminal.file.getvalue()
        assert estimates == [0]
        notify(Event(group="here", doing="icl", row=ROW))
    assert estimates == [0, 1]
    assert "4 of 4 runs left, about 60 s" in terminal.file.getvalue()


def test_with_one_job_nothing_draws_while_it_trains(tiny, terminal: Console) -> None:
    """A thread that draws would be part of the processor time of training."""
    threads = set(threading.enumerate())
    with grid_progress(terminal, tiny(), [], jobs=1) as notify:
        assert set(threading.enumerate()) == threads
        notify(Event(group="digits by class, seed 0", doing="icl", epoch=7, share=0.5))
        assert "epoch 7" in terminal.file.getvalue()
        drawn = len(terminal.file.getvalue())
        notify(Event(group="digits by class, seed 0", doing="icl", epoch=8, share=0.5))
        assert len(terminal.file.getvalue()) == drawn, "at most four times a second"
    with grid_progress(terminal, tiny(), [], jobs=2):
        assert set(threading.enumerate()) > threads
