"""A probe set judges every version of a workspace, with the classes that the data brought."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import incontrast as ic
from incontrast.text import sentence


def table(path: Path, classes: str, count: int, seed: int) -> Path:
    """Rows around a centre for each class, with their labels."""
    draws = np.random.default_rng(seed)
    lines = ["x,y,z,label"]
    for name in classes:
        centre = np.random.default_rng(ord(name)).normal(size=3) * 6
        rows = (centre + draws.normal(size=(count, 3))).round(4).tolist()
        lines += [",".join(map(str, [*row, name])) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> ic.data.Source:
    return ic.data.read_source(path, label="label")


def test_a_probe_set_is_remembered_and_told(tmp_path: Path, caplog) -> None:
    learner = ic.Learner(
        ic.Vectors(3), fit_strategy=ic.Retrain(max_epochs=2), strategy=ic.ICL(max_epochs=1)
    )
    space = ic.Workspace.create(tmp_path / "space", learner)
    probe = table(tmp_path / "probe.csv", "abcd", 12, seed=9)
    first = space.fit(read(table(tmp_path / "old.csv", "ab", 30, seed=0)), probe=probe)
    assert first.outcome["probe"]["after"]["new"] is None
    new = read(table(tmp_path / "new.csv", "bc", 20, seed=1))
    second = space.update(new, force=True)  # by the same probe
    scores = second.outcome["probe"]["after"]
    assert {part: scores[part]["items"] for part in scores} == {"all": 48, "old": 24, "new": 12}
    event = next(e for e in reversed(space.journal.events()) if e["step"] == "evaluate")
    assert "kNN accuracy of new classes" in sentence(event)
    probe.unlink()
    with caplog.at_level(logging.WARNING):
        third = space.update(read(table(tmp_path / "more.csv", "ab", 9, seed=2)), force=True)
    assert third.outcome["probe"] is None
    assert "the probe set of the version before is left out" in caplog.text


def test_a_probe_that_cannot_be_read_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    space = ic.Workspace.create(tmp_path / "space", ic.Learner(ic.Vectors(3)))
    old = read(table(tmp_path / "old.csv", "ab", 5, seed=0))
    with pytest.raises(ValueError, match="does not exist"):
        space.fit(old, probe=tmp_path / "nothing.csv")
    assert [event["step"] for event in space.journal.events()] == ["init"]


def test_callbacks_follow_a_workspace_and_end_it_in_good_order(tmp_path: Path, blobs) -> None:
    class Stop(ic.Callback):
        ended = 0

        def on_epoch(self, progress: ic.Progress) -> bool | None:
            return False

        def on_end(self, run: object) -> None:
            self.ended += 1

    space = ic.Workspace.create(tmp_path / "space", ic.Learner(ic.Vectors(8)))
    stop = Stop()
    step = space.fit(blobs(40), callbacks=[stop, lambda progress: None], force=True)
    assert (step.outcome["stopped"], step.outcome["epochs"], stop.ended) == ("callback", 1, 1)
