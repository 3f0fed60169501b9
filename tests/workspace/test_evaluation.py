"""Which checks a candidate fails, and how far embeddings moved."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from incontrast.compat.quality import nearest
from incontrast.workspace.evaluation import Health, failed_checks, health, movement
from incontrast.workspace.files import (
    FORMAT,
    Damaged,
    Journal,
    read_json,
    sealed,
    unsealed,
    write_json,
)

FINE = Health(20.0, -2.5)


def probed(before: float, after: float, items: int = 400) -> dict:
    scores = [
        {"knn_accuracy": value, "precision": value, "items": items} for value in (before, after)
    ]
    parts = [{"all": score, "old": None, "new": None} for score in scores]
    return dict(zip(("before", "after"), parts, strict=True))


def checks_failed_by(**about) -> list[str]:
    usual = {
        "loss_before": 1.0,
        "loss_after": 1.0,
        "tolerance": 0.05,
        "before": FINE,
        "after": FINE,
    }
    return failed_checks(**(usual | about))


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({}, None),
        ({"loss_after": 1.05}, None),
        (
            {"loss_after": 1.06},
            "rose from 1.000 to 1.060, by more than the 5%",
        ),
        ({"loss_after": 1.06, "tolerance": 0.1}, None),
        ({"loss_after": None}, "the loss of old items is no longer a finite number"),
        ({"loss_before": None, "loss_after": None, "before": None}, None),
        ({"after": Health(1.0, 0.0)}, "have collapsed: their effective rank is 1.0"),
        ({"after": Health(20.0, -0.001)}, "have collapsed"),
        ({"after": Health(math.nan, math.nan)}, "have collapsed"),
        (
            {"after": Health(9.0, -2.0)},
            "are collapsing: their effective rank fell from 20.0",
        ),
        ({"after": Health(9.0, -2.0), "before": None}, None),
        ({"probe": probed(0.9, 0.88)}, None),
        ({"probe": probed(0.9, 0.8, items=10)}, None),  # which chance does on ten items
        ({"probe": probed(0.9, 0.8)}, "tolerated: of all classes from 0.900 to 0.800"),
        ({"probe": probed(0.9, 0.8), "tolerance": 0.2}, None),
    ],
)
def test_failed_checks(about: dict, reason: str | None) -> None:
    found = checks_failed_by(**about)
    if reason is None:
        assert found == []
    else:
        assert len(found) == 1
        assert reason in found[0]


def test_one_point_is_a_collapse_and_noise_is_none(blobs) -> None:
    assert checks_failed_by(before=None, after=health(torch.ones(50, 6)))
    assert not checks_failed_by(before=None, after=health(blobs(50)))


def test_neighbours_are_the_nearest_by_cosine() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 2.0, 2.1])
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert nearest(rows, rows, 2).tolist() == [[1, 2], [0, 2], [1, 0], [4, 2], [3, 2]]


def test_what_did_not_move_and_what_did(blobs) -> None:
    rows, ids = blobs(40), torch.arange(100, 140)
    still = movement(rows, 2 * rows, ids, new=10)
    assert still["cosine"] == pytest.approx([1.0, 1.0, 1.0])
    assert still["overlap"] == 1.0
    assert [example["item"] for example in still["examples"]] == [100, 114, 129, 130, 134, 139]
    assert [example["new"] for example in still["examples"]] == [False] * 3 + [True] * 3
    for example in still["examples"]:
        assert example["before"] == example["after"]
        assert example["item"] not in example["before"]
    moved = movement(rows, blobs(40, seed=7), ids, new=10)
    assert moved["overlap"] < 0.6
    assert movement(rows[:2], rows[:2], ids[:2], new=1)["overlap"] == 1.0


# Files -------------------------------------------------------------------------------------------


def test_json_files_tell_when_they_were_changed(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"name": "ü", "list": [1, 2.5, None]})
    assert read_json(file) == {"name": "ü", "list": [1, 2.5, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    file.write_text(file.read_text().replace("2.5", "2.6"))
    with pytest.raises(Damaged, match="its checksum is wrong"):
        read_json(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(Damaged, match="is damaged"):
        read_json(file)
    for text in ("[]", "7", "{}", '{"format": 1}'):
        with pytest.raises(Damaged, match="is damaged"):
            unsealed(text, "x")
    assert sealed({"a": 1})["format"] == FORMAT


def test_several_may_write_a_journal(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        journal = Journal(tmp_path / "journal.jsonl")
        for number in range(40):
            journal.add(journal.event("note", writer=writer, number=number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    events = Journal(tmp_path / "journal.jsonl").events()
    assert len({(event["writer"], event["number"]) for event in events}) == len(events) == 160


def test_the_end_of_a_journal_is_read_by_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    events = [journal.event("note", text="x" * length) for length in (10, 9000, 0, 5000, 20)]
    for event in events:
        journal.add(event)
    for count in range(7):
        assert journal.events(count) == events[len(events) - min(count, len(events)) :]


def test_a_torn_line_of_a_journal_goes_with_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    assert (journal.records(), journal.events(1)) == ([], [])
    journal.add(journal.event("one"))
    with journal.path.open("ab") as file:
        file.write(b'{"half')
    journal.add(journal.event("two"))
    assert [event["step"] for event in journal.events()] == ["one", "two"]
    assert journal.records() == journal.events()
