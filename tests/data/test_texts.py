"""Texts in files: every format, chosen columns, and what is damaged."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import incontrast as ic
from incontrast.data import read_source
from incontrast.domains.text.collection import BETWEEN

HELLO = ["Where is my card?", "Ça va, « très » bien 😀", 'Line, with "quotes"']


def texts(path: Path, **chosen: object) -> list[str]:
    source = read_source(path, **chosen)  # type: ignore[arg-type]
    assert source.kind == "texts"
    return [content.decode() for content in source.items.contents]


def test_every_format_of_texts(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes("\ufeff".encode() + "\r\n".join([*HELLO, "", "  "]).encode())
    assert texts(lines) == HELLO
    folder = tmp_path / "folder" / "below"
    folder.mkdir(parents=True)
    for number, text in enumerate(HELLO):
        (folder / f"{number}.txt").write_text(text)
    assert texts(folder.parent) == HELLO
    assert read_source(folder.parent).ids == [f"below/{number}.txt" for number in range(3)]
    strings, records = tmp_path / "strings.jsonl", tmp_path / "records.jsonl"
    strings.write_text("\n".join(map(json.dumps, HELLO)))
    records.write_text("\n".join(json.dumps({"id": 7, "text": text}) for text in HELLO))
    assert texts(strings) == texts(records) == HELLO
    assert read_source(records, id="id").ids == ["7", "7", "7"]


def test_columns_of_a_table_of_texts(tmp_path: Path) -> None:
    from pyarrow import parquet, table

    columns = {"number": [1, 2, 3], "text": HELLO, "kind": ["a", "b", "a"]}
    parquet.write_table(table(columns), tmp_path / "t.parquet")
    rows = zip(*columns.values(), strict=True)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    for name in ("t.parquet", "t.csv"):
        assert texts(tmp_path / name) == HELLO
        source = read_source(tmp_path / name, columns=["text", "kind"], id="number", label="kind")
        assert source.items.contents[0] == HELLO[0].encode() + BETWEEN + b"a"
        assert source.ids == ["1", "2", "3"]
        assert source.labels is not None
        assert source.labels.tolist() == ["a", "b", "a"]
        assert read_source(tmp_path / name, columns=["number"]).kind == "vectors"
        with pytest.raises(ValueError, match=r"no (column|field) 'txt'"):
            read_source(tmp_path / name, columns=["txt"])
    other = tmp_path / "other.csv"
    other.write_text("question,label\nwhy?,3\n")
    assert texts(other, label="label") == ["why?"]
    other.write_text("text,2020\nwhy?,3\n")
    assert texts(other, columns=["text"]) == ["why?"]
    strings = tmp_path / "strings.jsonl"
    strings.write_text('{"text": "a", "id": 1}\n"b"\n')
    with pytest.raises(ValueError, match="line 2 has no field 'id': it has no fields"):
        read_source(strings, id="id")


def test_what_is_no_text_is_left_out_and_said(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"fine\ncaf\xe9\na\0b\n")
    source = read_source(lines)
    assert source.items.contents == [b"fine", b"a\0b"]
    [skipped] = source.skipped
    assert "line 2 is not Unicode text that UTF-8 can hold" in skipped.reason
    with pytest.raises(ValueError, match="line 2 is not Unicode"):
        list(source.chunks(ic.Text(), strict=True))
    table = tmp_path / "table.csv"
    table.write_bytes(b"text,kind\nfine,1\n  ,2\ncaf\xe9,3\n")
    source = read_source(table)
    assert source.items.contents == [b"fine"]
    assert [("empty" in s.reason, "UTF-8" in s.reason) for s in source.skipped] == [
        (True, False),
        (False, True),
    ]
    records = tmp_path / "records.jsonl"
    records.write_bytes(b'"fine"\n"caf\xe9"\n""\n')
    assert len(read_source(records).skipped) == 2
    for content, message in (
        (b"", "holds no text"),
        (b"\n \n", "holds no text"),
        (b"\xff\xfe\n", "holds no text; the first: .*line 1 is not Unicode"),
    ):
        lines.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_source(lines)
    records.write_text('"fine"\n{"text": \n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_source(records)


def test_ten_megabytes_in_one_line(tmp_path: Path) -> None:
    long = "word " * 2_000_000
    for name, content in (
        ("long.txt", long),
        ("long.csv", f"text\n{long}\n"),
        ("long.jsonl", json.dumps({"text": long})),
    ):
        (tmp_path / name).write_text(content)
        assert [len(text) for text in texts(tmp_path / name)] == [len(long)]


def test_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "lines.txt").write_text("hello\nworld\n")
    with pytest.raises(ValueError, match="holds vectors, but texts are expected here"):
        ic.Learner(ic.Text()).fit(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="holds texts, but vectors are expected here"):
        ic.Learner(ic.Vectors(2)).fit(tmp_path / "lines.txt")
