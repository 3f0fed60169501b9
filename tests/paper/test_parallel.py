"""Several processes write the rows of one, and lose none, whatever ends the run."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paper import parallel as module
from paper.__main__ import app
from paper.group_run import Event
from paper.parallel import LAST_EVENT, _until_done
from paper.row_file import read_rows, without_times
from paper.run import run
from paper.search import identity
from paper.sets import SMALL

DIE = partial(exec, "import os; os._exit(9)")  # in place of reading data: kills its process


def timeless(path: Path) -> dict[tuple[str, str], dict]:
    return {identity(row): without_times(row) for row in read_rows(path)}


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_processes_write_the_rows_of_one(tiny, tmp_path: Path, seeds: int) -> None:
    grid = tiny(strategies=("fine-tuning",), seeds=tuple(range(seeds)))
    (data,) = grid.sets.values()
    grid = replace(grid, sets={"seven": data, "eight": replace(data, new_classes=(8, 9))})
    for jobs, name in ((1, "one"), (2, "two")):
        created = run(grid, tmp_path / f"{name}.jsonl", work=tmp_path / name, jobs=jobs)
        kinds = [row["kind"] for row in created]
        # Each set has two trials of the initial training and two of fine-tuning; each seed of it
        # an initial training and two runs.
        counts = {kind: kinds.count(kind) for kind in kinds}
        assert counts == {"trial": 8, "fit": 2 * seeds, "run": 4 * seeds}
    one, two = timeless(tmp_path / "one.jsonl"), timeless(tmp_path / "two.jsonl")
    assert two == one
    assert len(one) == len(read_rows(tmp_path / "two.jsonl")) == 8 + 6 * seeds


def test_an_event_that_comes_after_its_task_is_done_is_received() -> None:
    done: Future[None] = Future()
    done.set_result(None)
    events: queue.Queue = queue.Queue()
    row = Event(group="here", doing="icl", row={"kind": "run"})

    def send() -> None:
        events.put((0, row))
        events.put((0, None))

    threading.Timer(0.5, send).start()
    assert list(_until_done({0: done}, set(), events)) == [row]


def test_nobody_waits_for_the_events_of_a_dead_worker_or_of_a_task_that_never_began() -> None:
    dead: Future[None] = Future()
    dead.set_exception(BrokenProcessPool())
    waiting: Future[None] = Future()
    events: queue.Queue = queue.Queue()
    row = Event(group="here", doing="icl", row={"kind": "run"})
    events.put((0, row))
    begin = time.monotonic()
    assert list(_until_done({0: dead, 1: waiting}, set(), events)) == [row]
    assert waiting.cancelled()
    assert time.monotonic() - begin < LAST_EVENT / 2


def test_rows_that_were_finished_before_an_interruption_are_kept(tiny, tmp_path: Path) -> None:
    path, work = tmp_path / "rows.jsonl", tmp_path / "work"

    def interrupt(event: Event) -> None:
        deadline = time.monotonic() + 120
        while not any(work.glob("*/learner.json")):  # its row is on its way by then
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise KeyboardInterrupt

    grid = tiny(strategies=("no-update",), learning_rates=(1e-3,))
    with pytest.raises(KeyboardInterrupt):
        run(grid, path, work=work, jobs=2, notify=interrupt)
    assert "fit" in [row["kind"] for row in read_rows(path)]


def test_a_worker_that_is_to_end_sends_the_row_that_it_has_finished(tiny, monkeypatch) -> None:
    row = Event(group="here", doing="icl", row={"kind": "run"})

    class Finishing:
        def __init__(self, group, rows, folder, work, notify) -> None:
            self.run = lambda: notify(row)

    stop, events = threading.Event(), queue.Queue()
    stop.set()
    monkeypatch.setattr(module, "GroupRun", Finishing)
    monkeypatch.setattr(module, "_events", events)
    monkeypatch.setattr(module, "_stop", stop)
    with pytest.raises(InterruptedError):
        module._work(3, next(tiny().groups()), {}, None, Path())
    assert list(events.queue) == [(3, row), (3, None)]


def test_a_killed_process_is_an_error_in_a_sentence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("INCONTRAST_DATA", raising=False)  # which reading would be given
    monkeypatch.setitem(SMALL, "digits-vectors", replace(SMALL["digits-vectors"], read=DIE))
    command = ["run", "--set", "digits-vectors", "--strategy", "no-update", "--jobs", "2"]
    command += ["--rows", str(tmp_path / "rows.jsonl"), "--work", str(tmp_path / "work")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 7, shown.output
    assert "a process was killed, perhaps for lack of memory" in shown.output
    assert "finished rows are kept, the same command resumes" in shown.output
