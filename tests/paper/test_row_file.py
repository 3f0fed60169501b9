"""The file of rows: only ever added to, and not damaged by a run that was killed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paper.row_file import append_row, key_of, read_rows, without_times


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = tmp_path / "deep" / "rows.jsonl"
    append_row(rows, {"key": "a", "loss": 1.5})
    append_row(rows, {"key": "b", "loss": None})
    return rows


def test_rows_come_back_in_order(path: Path) -> None:
    assert [(row["key"], row["loss"]) for row in read_rows(path)] == [("a", 1.5), ("b", None)]
    assert read_rows(path.with_name("none.jsonl")) == []


@pytest.mark.parametrize("tail", [b'{"format": 2, "key": "c', b'{"format": 2, "key"\n', b"\0\0\n"])
def test_a_damaged_last_line_is_left_out_with_a_warning(
    path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with path.open("ab") as file:
        file.write(tail)
    assert [row["key"] for row in read_rows(path)] == ["a", "b"]
    assert "rows.jsonl: the last line is" in caplog.text
    assert "left out, the rest is used" in caplog.text
    caplog.clear()
    append_row(path, {"key": "d"})
    assert [row["key"] for row in read_rows(path)] == ["a", "b", "d"]
    assert caplog.text == ""
    assert path.with_name("rows.jsonl.damaged").read_bytes().startswith(tail.rstrip(b"\n"))


def test_a_last_line_that_only_lacks_its_end_is_kept(path: Path, caplog) -> None:
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [row["key"] for row in read_rows(path)] == ["a", "b"]
    append_row(path, {"key": "c"})
    assert [row["key"] for row in read_rows(path)] == ["a", "b", "c"]
    assert caplog.text == ""


def test_other_damage_is_an_error_that_says_where(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"nonsense\n" + content)
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1 is not a row: restore the file"):
        read_rows(path)
    path.write_bytes(content.replace(b'"format": 2', b'"format": 9', 1))
    with pytest.raises(ValueError, match="has a row of format 9, this version reads up to 2"):
        read_rows(path)


def test_rows_of_something_else_are_refused(path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"rows\.jsonl, row 1 has no 'kind': it is not a row of a grid"
    ):
        read_rows(path, needs=("key", "kind"))


def test_several_may_add_rows_at_once(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"

    def add(writer: int) -> None:
        for number in range(20):
            append_row(rows, {"key": f"{writer}-{number}", "padding": "x" * 5000})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len({row["key"] for row in read_rows(rows)}) == 80
    assert not rows.with_name("rows.jsonl.damaged").exists()


def test_times_are_what_differs() -> None:
    row = {"loss": 1.0, "seconds": 2.0, "parity": [{"seconds": 1.0, "steps": 3}], "machine": {}}
    assert without_times(row) == {"loss": 1.0, "parity": [{"steps": 3}]}


def test_no_number_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        append_row(tmp_path / "rows.jsonl", {"loss": float("nan")})


def test_rows_of_the_first_format_are_read_in_the_words_of_today(tmp_path: Path) -> None:
    strategy = {"type": "ICL", "rates": {"type": "Fixed", "rate": 2e-3, "largest_change": 0.125}}
    old = {
        "format": 1,
        "key": "old",
        "kind": "cell",
        "strategy": "inference",
        "rate": 1e-3,
        "settings": {"kind": "cell", "fitting": {"batch": 32, "average": 0.99}}
        | {"strategy": strategy},
        "ours": {"reached": {"passes": 3}},
        "bias": {"inference": {"old": 0.1}},
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(old) + "\n")
    (row,) = read_rows(path)
    settings = {
        "kind": "run",
        "fit_strategy": {"batch_size": 32, "ema_decay": 0.99},
        "strategy": {
            "type": "ICL",
            "lr": 2e-3,
            "optimizer": {"type": "Adam", "max_relative_update": 0.125},
        },
    }
    assert row == {
        "format": 2,
        "key": key_of(settings),
        "kind": "run",
        "strategy": "no-update",
        "lr": 1e-3,
        "settings": settings,
        "parity": {"reached": {"forward_passes": 3}},
        "bias": {"no_update": {"old": 0.1}},
    }
