"""The commands from end to end: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from incontrast import Workspace
from incontrast.cli import main
from incontrast.cli.app import app
from incontrast.cli.command import Answer, Exit


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def rows(tmp_path: Path, blobs) -> list[Path]:
    """Three weeks of vectors."""
    weeks = []
    for week, (count, shift) in enumerate([(80, 0.0), (30, 0.5), (30, 1.0)]):
        weeks.append(tmp_path / f"week {week}.npy")
        np.save(weeks[-1], blobs(count, seed=week, shift=shift).numpy())
    return weeks


@pytest.fixture
def space(tmp_path: Path, rows: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fitted workspace, which the environment names."""
    folder = tmp_path / "space"
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(folder))
    run("init", folder, "--like", rows[0], "--fit-epochs", 3, "--epochs", 2)
    run("fit", rows[0])
    return folder


def test_from_nothing_to_the_third_week(space: Path, rows: list[Path], tmp_path: Path) -> None:
    shown = run("update", rows[1])
    for words in (
        "Version 2: ICL on 30 new items, 2 epochs",
        "loss of old items",
        "change ratio",
        "of the 10 nearest neighbours stayed",
        "Too few items to say how precise search with the map is; recall@10",
        "embed --space 1` embeds queries",
        "Version 2 is the current one.",
        "ingested 30 items",
    ):
        assert words in shown
    assert "Nothing to do: version 2 has learned from these data already" in run("update", rows[1])
    embedded = tmp_path / "week.npy"
    assert "30 embeddings of version 2, 30 of them new" in run("embed", rows[1], embedded)
    assert "is up to date: 30 embeddings" in run("embed", rows[1], embedded)
    run("update", rows[2])
    assert "week.npy: version 2, out of date" in run("status")
    assert "of version 2, these would be of version 3" in run(
        "embed", rows[1], embedded, code=Exit.STATE
    )
    run("embed", rows[1], embedded, "--overwrite")
    assert "week.npy: version 3, up to date" in run("status")
    assert "Version 2 is the current one." in run("rollback")
    assert "Version 2 is the current one." in run("report", "--version", 1)
    shown = run("forget", 0, 5)
    assert "2 items forgotten." in shown
    assert f"Embeddings of them may still be in {embedded}." in shown
    log = run("log")
    for words in ("workspace created", "30 items of", "version 3 promoted", "2 items forgotten"):
        assert words in log
    assert "ingested as 80 to 109" in log
    assert "every file is as it was written" in run("status", "--check")


def test_json_for_machines(space: Path, rows: list[Path], tmp_path: Path) -> None:
    step = run_json("update", rows[1])
    assert (step["version"], step["promoted"], step["items"]) == (2, True, 30)
    assert step["outcome"]["loss"]["after"]["old"] > 0
    assert Path(step["report"]).is_file()
    status = run_json("status")
    assert (status["current"], status["kept"], status["seen"]) == (2, 110, 110)
    assert (status["writer"], status["unfinished"]) == (None, None)
    drift = run_json("drift", rows[2])
    assert set(drift) >= {"p_value", "advice", "drifted", "change_ratio", "seconds", "version"}
    assert [event["step"] for event in run_json("log", "--last", 2)] == ["evaluate", "promote"]
    assert run_json("embed", rows[2], tmp_path / "e.npy")["rows"] == 30
    assert run_json("report")["version"] == 2
    assert run_json("rollback") == {"current": 1, "dropped": None}
    assert run_json("forget", 1) == {"forgotten": 1, "embeddings": [str(tmp_path / "e.npy")]}
    assert run_json("rollback", "--to", 1) == {"current": 1, "dropped": None}
    failed = run_json("rollback", code=Exit.STATE)
    assert failed == {"error": "there is no earlier version to go back to", "exit": 9}


def test_settings_from_a_file(tmp_path: Path, rows: list[Path]) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(
        f'[init]\nlike = "{rows[0]}"\nfit-epochs = 1\nmemory = "reservoir"\nmemory-items = 50\n'
        'set = ["keep=3"]\njson = true\n'
        f'[fit]\nworkspace = "{tmp_path / "space"}"\n'
    )
    made = run("init", tmp_path / "space", "--config", config, "--memory-items", 40)
    assert json.loads(made)["kind"] == "vectors"  # options have the names that one types
    assert Workspace.open(tmp_path / "space").settings["keep"] == 3
    run("fit", rows[0], "--config", config)
    learner = Workspace.open(tmp_path / "space").learner()
    assert learner.fit_strategy.max_epochs == 1
    assert len(learner.memory) == 40  # a flag comes before the file
    config.write_text("[init]\nfit_epoch = 1\n")
    shown = run("init", tmp_path / "other", "--like", rows[0], "--config", config, code=2)
    assert "[init] has no setting 'fit_epoch'" in plain(shown)
    config.write_text("[intit]\nseed = 1\n")
    shown = run("init", tmp_path / "other", "--like", rows[0], "--config", config, code=2)
    assert "'intit' is not a command" in plain(shown)
    config.write_text("[init")
    assert "cannot be used" in plain(run("init", tmp_path / "o", "--config", config, code=2))


def plain(text: str) -> str:
    """What a box of rich says, without the box."""
    return re.sub(r"[\s│]+", " ", text)


@pytest.mark.parametrize(
    "command",
    ["init", "fit", "update", "embed", "drift", "status", "log", "rollback", "forget", "report"],
)
def test_every_command_explains_itself(command: str) -> None:
    shown = plain(run(command, "--help"))
    assert "--json" in shown
    assert "--config" in shown
    assert "<bool>" not in shown  # a flag takes no value
    if command == "init":
        for default in ("[default: 200]", "[default: icl]", "[default: 0.05]", "[default: all]"):
            assert default in shown


def test_a_refused_candidate(space: Path, rows: list[Path], monkeypatch) -> None:
    monkeypatch.setattr(
        "incontrast.workspace.evaluation.failed_checks", lambda **about: ["it is Monday"]
    )
    shown = run("update", rows[1], code=Exit.REFUSED)
    assert "Not promoted: it is Monday." in shown
    assert "Version 1 keeps serving." in shown
    assert "version 2 was not promoted: it is Monday" in run("status")
    assert "it is Monday" in run("report")
    assert run_json("update", code=Exit.REFUSED)["failed_checks"] == ["it is Monday"]
    assert "Version 2 is the current one." in run("update", "--force")
    run("update", rows[2], code=Exit.REFUSED)
    refusal = run("fit", "--discard", code=Exit.STATE)
    assert re.search(r"an update with .* is unfinished: .*incontrast update --discard", refusal)
    assert "dropped" in run("update", "--discard")
    assert "nothing to drop" in run("update", "--discard")
    run("update", rows[2], code=Exit.REFUSED)
    assert "Dropped: version 4 was not promoted: it is Monday." in run("rollback")
    assert not (space / "reports" / "version-4.html").exists()
    assert run_json("update", "--discard") == {"discarded": False}


def test_a_report_that_cannot_be_written(space: Path, rows: list[Path], monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("incontrast.cli.report.save", full)
    shown = run("update", rows[1])
    assert "the report cannot be written" in shown
    assert "Version 2 is the current one." in shown


def test_drift_can_end_a_script(space: Path, tmp_path: Path, blobs) -> None:
    np.save(tmp_path / "far.npy", blobs(40, seed=8).numpy() * 0.1 + 4)
    shown = run("drift", tmp_path / "far.npy")
    assert "Update: the new items differ" in shown
    assert "incontrast update" in shown.splitlines()[-1]
    run("drift", tmp_path / "far.npy", "--fail-on-drift", code=Exit.DRIFT)
    run("drift", tmp_path / "far.npy", "--significance", 3, code=Exit.USAGE)
    assert run_json("drift", tmp_path / "far.npy")["known"] == 0
    run("update", tmp_path / "far.npy", "--force")
    known = run("drift", tmp_path / "far.npy", "--fail-on-drift")  # exit 0, as update would
    assert "Nothing new: all 40 items have been ingested already" in known
    both = np.concatenate([np.load(tmp_path / "far.npy"), blobs(10, seed=9).numpy() * 0.1 - 9])
    np.save(tmp_path / "both.npy", both)
    assert "40 items had been ingested before, and were left out" in run(
        "drift", tmp_path / "both.npy"
    )
    assert "ingested 10 items" in run("update", tmp_path / "both.npy", "--force")


def test_items_are_forgotten_by_content(space: Path, rows: list[Path], tmp_path: Path) -> None:
    np.save(tmp_path / "gone.npy", np.load(rows[0])[[3, 4]])
    assert run_json("forget", "--like", tmp_path / "gone.npy")["forgotten"] == 2
    run("report")
    assert run_json("forget", "--hash", "00" * 16) == {"forgotten": 0, "embeddings": []}
    assert len(list((space / "reports").iterdir())) == 1  # nothing that it might show has gone
    assert "0 items forgotten. They were forgotten before" in run("forget", 3)
    assert "say which items" in plain(run("forget", code=2))
    assert "32 hexadecimal digits" in plain(run("forget", "--hash", "xyz", code=2))
    assert "ids go from 0 to 79" in run("forget", 80, code=Exit.STATE)
    run("forget", 10**20, code=Exit.USAGE)


def test_pictures_and_their_report(tmp_path: Path, monkeypatch) -> None:
    draws = np.random.default_rng(0)
    for week in (0, 1):
        folder = tmp_path / f"photos {week}"
        folder.mkdir()
        for number in range(16):
            pixels = draws.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"é {number}.png")
    (tmp_path / "photos 1" / "broken.png").write_bytes(b"no picture")
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(tmp_path / "space"))
    run("init", tmp_path / "space", "--like", tmp_path / "photos 0", "--fit-epochs", 1)
    run("fit", tmp_path / "photos 0")
    refused = run("update", tmp_path / "photos 1", "--strict", code=Exit.DATA)
    assert "broken.png cannot be read as an image" in refused
    shown = run("update", tmp_path / "photos 1", "--epochs", 2, "--force")
    assert "1 item was skipped:" in shown
    assert "broken.png" in shown
    page = (tmp_path / "space" / "reports" / "version-2.html").read_text()
    assert page.count("data:image/png;base64,") >= 6
    for words in ("Nearest neighbours before and after", "learning rate", "What was done"):
        assert words in page
    embedded = run("embed", tmp_path / "photos 1", tmp_path / "e.npy")
    assert "16 embeddings" in embedded
    names = (tmp_path / "e.ids.jsonl").read_text()
    assert json.loads(names.splitlines()[0]) == "é 0.png"
    # A page with pictures must not outlive the pictures; made again, it does not show them.
    run("forget", *range(32))
    assert not (tmp_path / "space" / "reports" / "version-2.html").exists()
    run("report", "--version", 2)
    page = (tmp_path / "space" / "reports" / "version-2.html").read_text()
    assert "data:image/png" not in page
    for turns in (1, 2):
        Image.fromarray(np.rot90(pixels, turns)).save(tmp_path / "photos 1" / f"{turns}.png")
    assert "memory holds 0" in run("drift", tmp_path / "photos 1", code=Exit.DATA)


def test_texts_and_their_report(tmp_path: Path, monkeypatch) -> None:
    weeks = [tmp_path / "start.jsonl", tmp_path / "week.txt"]
    messages = [f"<b>{thing}</b> was {verb}" for thing in "abcdefgh" for verb in "klmnopqr"]
    weeks[0].write_text("\n".join(json.dumps({"text": text, "id": 1}) for text in messages))
    fresh = [f"payment {number} twice \u202e" for number in range(40)]
    weeks[1].write_bytes("\n".join(fresh).encode() + b"\ncaf\xe9\n")
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(tmp_path / "space"))
    run("init", tmp_path / "space", "--like", weeks[0], "--encoder", "ngrams", "--fit-epochs", 2)
    run("fit", weeks[0])
    found = run_json("drift", weeks[1])["differences"]
    assert {"term": "payment", "old": 0.0, "new": 1.0} in found["terms"]
    assert "line 41 is not Unicode" in run("update", weeks[1], "--strict", code=Exit.DATA)
    shown = run("update", weeks[1], "--epochs", 1, "--force")
    assert "1 item was skipped:" in shown
    assert "line 41 is not Unicode text" in shown
    report = tmp_path / "space" / "reports" / "version-2.html"
    page = report.read_text()
    assert "Nearest neighbours before and after" in page
    assert "payment 0 twice" in page
    assert "&lt;b&gt;a" in page
    assert "\u202e" not in page
    assert "40 embeddings" in run("embed", weeks[1], tmp_path / "e.npy")
    run("forget", "--like", weeks[1])
    run("report", "--version", 2)
    assert "payment" not in report.read_text()


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_only_the_first_of_many_processes_prints(space: Path, monkeypatch, flag) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("incontrast.cli.encoder.update", lambda args: Answer(1, ["done"]))
    for rank, printed in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        assert bool(run("update", *flag)) == printed


def test_columns_of_a_table(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for week in (1, 2):
        lines = ["name,a,b,kind,junk"]
        lines += [
            f"item {week}-{n},{draws.normal():.3f},{draws.normal() + week:.3f},k{n % 2},text"
            for n in range(24)
        ]
        (tmp_path / f"{week}.csv").write_text("\n".join(lines))
    first, later, space = tmp_path / "1.csv", tmp_path / "2.csv", tmp_path / "space"
    table = ("--columns", "a, b", "--id", "name", "--label", "kind")
    assert "must hold numbers only" in run("init", space, "--like", first, code=Exit.DATA)
    assert "vectors" in run("init", space, "--like", first, *table, "--fit-epochs", 1)
    run("fit", first, "-w", space, *table, "--force")
    run("update", later, "-w", space, *table, "--force", "--epochs", 1)
    run("drift", later, "-w", space, *table)
    assert "24 items" in run("forget", "--like", later, "-w", space, *table)
    run("embed", later, tmp_path / "v.npy", "-w", space, *table)
    ids = (tmp_path / "v.ids.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in ids] == [f"item 2-{n}" for n in range(24)]
    assert "has no column 'c'" in run(
        "update", later, "-w", space, "--columns", "c", code=Exit.DATA
    )
    wider = tmp_path / "wider.csv"
    wider.write_text("name,a,b,label\n" + "x,1,2,3\n" * 5)
    assert "has 3 columns of numbers, but 2 are expected" in run(
        "update", wider, "-w", space, "--columns", "a,b,label", code=Exit.DATA
    )


def test_a_workspace_like_damaged_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photos" / "a.jpg")
    whole = (tmp_path / "photos" / "a.jpg").read_bytes()
    (tmp_path / "photos" / "a.jpg").write_bytes(whole[: len(whole) // 2])
    shown = run("init", tmp_path / "space", "--like", tmp_path / "photos", code=Exit.DATA)
    assert "none of 1 images can be read" in shown
    assert not (tmp_path / "space").exists()


def test_an_interrupt_while_the_program_starts(monkeypatch, capsys) -> None:
    monkeypatch.setattr("incontrast.cli.app.app", lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == Exit.INTERRUPTED
    assert capsys.readouterr().err == "incontrast: interrupted\n"


def test_init_says_how_long_a_fit_takes(rows: list[Path], tmp_path: Path) -> None:
    shown = run("init", tmp_path / "a", "--like", rows[0])
    assert re.search(r"A fit on 80 items takes at most [\d.]+ (s|min) on this machine;", shown)
    made = run_json("init", tmp_path / "b", "--like", rows[0], "--fit-epochs", 10**9)
    assert made["fit_seconds"] > 3600
    (tmp_path / "photos").mkdir()
    for number in range(9):
        pixels = np.random.default_rng(number).integers(0, 256, (80, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    photos = ("--like", tmp_path / "photos", "--encoder", "small")
    assert "A fit on 9 items takes at most" in run("init", tmp_path / "e", *photos)
    np.save(tmp_path / "same.npy", np.ones((20, 3)))
    assert "takes" not in run("init", tmp_path / "d", "--like", tmp_path / "same.npy")


def test_a_forecast_of_a_fit_has_more_than_its_steps(rows, tmp_path, monkeypatch) -> None:
    init = ("init", tmp_path / "a", "--like", rows[0])
    monkeypatch.setattr("incontrast.cli.init.TRIED", 40)
    monkeypatch.setattr("incontrast.cli.init.Learner.forecast", lambda *_: 10.0)
    begin = time.perf_counter()
    found = run_json(*init)["fit_seconds"]
    assert 20.0 < found < 20.0 + time.perf_counter() - begin


def test_an_interrupted_init_says_what_to_do(rows, tmp_path, monkeypatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("incontrast.cli.init.read_source", interrupt)
    shown = run("init", tmp_path / "space", "--like", rows[0], code=Exit.INTERRUPTED)
    assert "interrupted: what was complete is kept; run the same command again" in shown


def test_an_init_that_cannot_tell_how_long_a_fit_takes(rows, tmp_path, monkeypatch) -> None:
    error: BaseException = KeyboardInterrupt()

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("incontrast.cli.init.Learner.forecast", fail)
    init = ("init", tmp_path / "space", "--like", rows[0])
    assert "run the same command again" in run(*init, code=Exit.INTERRUPTED)
    assert not (tmp_path / "space").exists()
    error = RuntimeError("CUDA out of memory")
    assert run_json(*init)["fit_seconds"] is None
