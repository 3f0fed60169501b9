"""Grids become rows: skipped when done, the same when interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incontrast.evaluate import probes
from paper.grid import Grid
from paper.group_run import Event
from paper.progress import seconds_left
from paper.row_file import read_rows, without_times
from paper.run import run, unfinished


@pytest.fixture(autouse=True, scope="module")
def one_c() -> Iterator[None]:
    """SVMs without a search for C, which takes half of the time of such small runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "C_GRID", (1.0,))
        yield


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a grid that ran without a break."""
    folder = tmp_path_factory.mktemp("finished")
    run(tiny(), folder / "rows.jsonl", work=folder / "work")
    return folder


def timeless(path: Path) -> list[dict]:
    return [without_times(row) for row in read_rows(path)]


def test_every_run_has_a_row_with_both_protocols(finished: Path, tiny) -> None:
    rows = read_rows(finished / "rows.jsonl")
    runs = {row["strategy"]: row for row in rows if row["kind"] == "run"}
    assert list(runs) == ["retraining", "no-update", "fine-tuning", "icl"]
    assert [row["kind"] for row in rows].count("fit") == 1, "the initial training is shared"
    assert {row["strategy"] for row in rows if row["kind"] == "trial"} == {"fit", "fine-tuning"}
    for name, row in runs.items():
        assert row["counts"]["old"] + row["counts"]["new"] == 90
        assert row["parity"]["target"] == runs["retraining"]["parity"]["after"]
        for protocol in ("paper", "parity"):
            assert 0.0 <= row[protocol]["accuracy"]["svm_new"] <= 1.0
            assert set(row[protocol]["accuracy"]["held_out"]) == {"old", "new"}
        assert row["curve"]["all"][0] == pytest.approx(row["parity"]["before"]["all"], rel=1e-4)
        assert row["machine"]["threads"] == 1
        assert row["clock"] == "processor"
        assert row["software"]["torch"]
        if name != "no-update":
            assert row["paper"]["best"]["epochs"] <= row["paper"]["epochs"] <= 3
    assert runs["no-update"]["paper"]["best"] is None
    assert runs["retraining"]["parity"]["reached"] is not None
    limit = runs["retraining"]["total"]["forward_passes"]
    assert runs["icl"]["total"]["stopped"] == "budget"
    step = 2 * (32 + 64)  # both views of what ICL takes at a time
    assert limit <= runs["icl"]["total"]["forward_passes"] < limit + step
    assert unfinished(tiny(), rows) == []


def test_what_is_done_is_skipped_and_other_settings_are_not(
    finished: Path, tiny, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((finished / "rows.jsonl").read_bytes())
    assert run(tiny(), path, work=tmp_path) == []
    # One more strategy: only its own rows are new; the fit is repeated, for nobody kept it.
    created = run(tiny(strategies=("no-update", "distillation")), path, work=tmp_path)
    assert {row["strategy"] for row in created if row["kind"] == "run"} == {"distillation"}
    left = unfinished(tiny(sample=16), read_rows(path))
    assert [strategy for _, strategy in left] == ["retraining", "no-update", "fine-tuning", "icl"]


def test_a_kept_encoder_that_cannot_be_read_is_fitted_again(
    finished: Path, tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, work = tmp_path / "rows.jsonl", tmp_path / "work"
    grid = tiny(strategies=("no-update",))
    run(grid, path, work=work)
    whole = timeless(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))  # the last run is to be repeated
    for weights in work.glob("*/encoder-*.safetensors"):
        weights.write_bytes(b"broken")
    run(grid, path, work=work)
    assert timeless(path) == whole
    assert "cannot be used, its encoder is fitted again" in caplog.text


def test_the_row_of_a_kept_encoder_is_added_again_if_it_was_lost(tiny, tmp_path: Path) -> None:
    path, work = tmp_path / "rows.jsonl", tmp_path / "work"
    grid = tiny(strategies=("no-update",))
    run(grid, path, work=work)
    whole = timeless(path)
    lines = path.read_text().splitlines(keepends=True)
    assert [row["kind"] for row in whole] == ["trial", "trial", "fit", "run", "run"]
    path.write_text("".join(lines[:2]))
    run(grid, path, work=work)
    assert timeless(path) == whole
    assert path.read_text().splitlines(keepends=True)[2] == lines[2], "it was not fitted again"


def test_an_interrupted_run_resumes_to_the_same_rows(finished: Path, tiny, tmp_path: Path) -> None:
    """Broken off after every single row, and once within a training."""
    path, work = tmp_path / "rows.jsonl", tmp_path / "work"
    breaks = 0

    def break_off(event: Event) -> None:
        if event.row is not None or (event.doing == "icl" and event.epoch == 1 and breaks % 2):
            raise KeyboardInterrupt

    for _ in range(40):
        try:
            run(tiny(), path, work=work, notify=break_off)
            break
        except KeyboardInterrupt:
            breaks += 1
    assert breaks >= len(read_rows(path))
    assert timeless(path) == timeless(finished / "rows.jsonl")


def test_a_killed_run_in_parallel_resumes_to_the_same_rows(
    finished: Path, tiny, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    code = f"""
from incontrast.evaluate import probes
from paper.grid import Grid
from paper.run import run
probes.C_GRID = (1.0,)  # in its workers as well, which import this file
if __name__ == "__main__":
    grid = Grid.of(sets=["digits-vectors"], strategies=["no-update", "fine-tuning", "icl"],
        items=90, max_epochs=3, patience=2, sample=32, learning_rates=(1e-3, 1e-4),
        search_epochs=1, folds=2)
    run(grid, {str(path)!r}, work={str(tmp_path / "work")!r}, jobs=2)
"""
    script = tmp_path / "grid.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    path_of_modules = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path_of_modules},
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while _lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _lives(process.pid), "a worker trains on for nobody"
    assert len(read_rows(path)) >= 2
    run(tiny(), path, work=tmp_path / "work", jobs=1)
    assert timeless(path) == timeless(finished / "rows.jsonl")


def _lives(group: int) -> bool:
    """Whether a process of this group is at work; one that nobody has buried is not."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    )
    states = [line.split() for line in listed.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in states)


def test_an_error_of_a_worker_is_raised(tmp_path: Path) -> None:
    grid = Grid.of(sets=["proteins"], strategies=["no-update"], ratios=[0.3])
    with pytest.raises(FileNotFoundError, match="PROTEINS needs a folder of data sets"):
        run(grid, tmp_path / "rows.jsonl", work=tmp_path, jobs=2)


def test_seeds_share_the_search(finished: Path, tiny, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((finished / "rows.jsonl").read_bytes())
    created = run(tiny(strategies=("fine-tuning",), seeds=(0, 1)), path, work=tmp_path)
    assert [row["kind"] for row in created] == ["fit", "run", "run"]
    assert {row["seed"] for row in created} == {1}


def test_the_time_that_is_left(finished: Path, tiny) -> None:
    rows = read_rows(finished / "rows.jsonl")
    more = tiny(seeds=(0, 1))
    left = unfinished(more, rows)
    assert len(left) == 4
    assert seconds_left(left, []) is None
    one, two = (seconds_left(left, rows, jobs=jobs) for jobs in (1, 2))
    assert one == pytest.approx(2 * two)
    assert seconds_left([], rows) == 0.0


def test_a_training_that_diverges_is_a_row(tiny, tmp_path: Path, monkeypatch) -> None:
    from incontrast import TrainingDiverged
    from paper import experiment

    real = experiment.trace

    def diverging(learner, old, new, strategy, **options):
        if type(strategy).__name__ == "ICL":
            raise TrainingDiverged("the loss became nan")
        return real(learner, old, new, strategy, **options)

    monkeypatch.setattr(experiment, "trace", diverging)
    created = run(tiny(strategies=("icl",)), tmp_path / "rows.jsonl", work=tmp_path)
    assert created[-1]["failed"] == "the loss became nan"
    assert unfinished(tiny(strategies=("icl",)), created) == []


def test_a_retraining_that_diverges_is_logged_and_the_grid_continues(
    tiny, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    from incontrast import TrainingDiverged
    from paper import experiment

    real = experiment.trace

    def diverging(learner, old, new, strategy, **options):
        if learner.seed == 0 and type(strategy).__name__ == "Retrain":
            raise TrainingDiverged("the loss became nan")
        return real(learner, old, new, strategy, **options)

    monkeypatch.setattr(experiment, "trace", diverging)
    grid = tiny(strategies=("no-update",), seeds=(0, 1))
    created = run(grid, tmp_path / "rows.jsonl", work=tmp_path)
    assert "retraining diverged, there is nothing to compare with" in caplog.text
    done = [(row["seed"], row["strategy"]) for row in created if row["kind"] == "run"]
    assert done == [(0, "retraining"), (1, "retraining"), (1, "no-update")]
    assert run(grid, tmp_path / "rows.jsonl", work=tmp_path) == []


def test_an_initial_training_that_diverges_takes_only_what_needs_it(
    tiny, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    from incontrast import TrainingDiverged
    from paper.experiment import Experiment

    real = Experiment.fit

    def diverging(bench, callback):
        if bench.group.seed == 0:
            raise TrainingDiverged("the loss became nan")
        return real(bench, callback)

    monkeypatch.setattr(Experiment, "fit", diverging)
    grid = tiny(strategies=("fine-tuning", "no-update"), seeds=(0, 1))
    created = run(grid, tmp_path / "rows.jsonl", work=tmp_path)
    done = [(row["seed"], row["strategy"]) for row in created if row["kind"] == "run"]
    assert done == [(1, "retraining"), (1, "no-update")], (
        "the learning rate of fine-tuning is seed 0's"
    )
    assert "seed 0: its initial training diverged and it is left out" in caplog.text
    assert (
        "seed 1: fine-tuning is left out, an initial training that it needs diverged" in caplog.text
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sets": ["nope"]}, "there is no data set 'nope': choose from proteins, "),
        ({"strategies": ["nope"]}, "there is no strategy 'nope': choose from retraining, "),
        ({"scale": "huge"}, "there is no scale 'huge': choose from small, paper"),
        ({"ratios": [1.0]}, r"a growth ratio must be in \(0, 1\), got 1.0"),
        ({"sets": ["digits"], "ratios": [0.7]}, "digits is split by class, which decides its"),
        ({"seeds": [-1]}, "a seed must not be negative, got -1"),
        ({"items": 0}, "items must be at least 16, got 0"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, got 0"),
    ],
)
def test_unknown_names_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid.of(**wrong)


def test_what_is_named_twice_counts_once() -> None:
    grid = Grid.of(
        sets=["proteins", "digits", "proteins"],
        strategies=["icl", "no-update", "icl"],
        seeds=[2, 0, 2],
    )
    assert list(grid.sets) == ["proteins", "digits"]
    assert grid.strategies == ("icl", "no-update")
    assert grid.seeds == (2, 0)
    assert Grid.of(sets=["proteins"], ratios=[0.5, 0.3, 0.50]).ratios == (0.5, 0.3)
    titles = [group.title for group in grid.groups()]
    assert len(set(titles)) == len(titles) == 8


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    grid = Grid.of(sets=["proteins"], strategies=["no-update"])
    with pytest.raises(FileNotFoundError, match="PROTEINS needs a folder of data sets: give --da"):
        run(grid, tmp_path / "rows.jsonl", work=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none: PROTEINS is looked"):
        run(grid, tmp_path / "rows.jsonl", folder=tmp_path / "none", work=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no PROTEINS_A.txt in .*PROTEINS\.zip"):
        run(grid, tmp_path / "rows.jsonl", folder=tmp_path, work=tmp_path)
    archive = tmp_path / "TU" / "PROTEINS.zip"
    archive.parent.mkdir()
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"PROTEINS\.zip cannot be unpacked, get it again"):
        run(grid, tmp_path / "rows.jsonl", folder=tmp_path, work=tmp_path)
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        run(grid, tmp_path / "rows.jsonl", work=tmp_path, jobs=0)


def test_rows_are_one_line_each(finished: Path) -> None:
    for line in (finished / "rows.jsonl").read_text().splitlines():
        json.loads(line)
