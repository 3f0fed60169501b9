"""Probe sets are found behind paths, and say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from incontrast.data import ProbeSet, read_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (8, 8), 40 * number).save(tmp_path / "set" / name / f"{number}.png")
    return tmp_path / "set"


def test_a_folder_with_class_subfolders(folder: Path) -> None:
    found = ProbeSet(folder).read()
    assert (len(found), found.classes) == (4, ("cat", "dog"))
    assert read_source(folder).classes == ("cat", "dog")
    assert read_source(folder / "cat").classes == ()
    with pytest.raises(ValueError, match="has no subfolders: a probe set has one for each class"):
        ProbeSet(folder / "cat").read()


def test_a_list_of_files_with_labels(folder: Path) -> None:
    lines = folder / "labels.csv"
    lines.write_text("kind,file\ntabby,cat/0.png\nhound,dog/0.png\ntabby,cat/1.png\n")
    found = ProbeSet(lines, label="kind").read()
    assert [found.classes[label] for label in found.labels] == ["tabby", "hound", "tabby"]
    with pytest.raises(ValueError, match="has no column 'label': it has \\['kind', 'file'\\]"):
        ProbeSet(lines).read()
    lines.write_text("label,file\na,cat/0.png\nb,cat/9.png\n")
    with pytest.raises(ValueError, match=r"9\.png, which is not there"):
        ProbeSet(lines).read()


def test_a_table_of_vectors_with_labels(tmp_path: Path) -> None:
    table = tmp_path / "probe.csv"
    table.write_text("x,y,label\n0,1,a\n1,1,b\n")
    assert ProbeSet(table).read().classes == ("a", "b")
    assert read_source(table, label="label").classes == ("a", "b")
    with pytest.raises(ValueError, match="is not a probe set: give a folder"):
        ProbeSet(tmp_path / "probe.pkl").read()


def test_texts_with_labels(tmp_path: Path) -> None:
    table = tmp_path / "probe.csv"
    table.write_text("name,text,label\n1,a cat,a\n2,a dog,b\n")
    found = ProbeSet(table).read({"columns": None, "id": "name", "label": "other"})
    assert (len(found), found.classes) == (2, ("a", "b"))
    lines = tmp_path / "probe.jsonl"
    lines.write_text('{"text": "a cat", "kind": "a"}\n{"text": "a dog", "kind": "b"}\n')
    found = ProbeSet(lines, label="kind").read({"columns": ["text"], "id": "name"})
    assert (len(found), found.classes) == (2, ("a", "b"))


def test_graphs_and_texts_without_labels_are_refused(tmp_path: Path) -> None:
    lines = tmp_path / "probe.jsonl"
    lines.write_text(
        '{"edges": [[0, 1]], "label": "a"}\n{"edges": [[0, 1], [1, 2]], "label": "b"}\n'
    )
    message = "holds graphs, whose labels are read from TU folders only"
    with pytest.raises(ValueError, match=message):
        ProbeSet(lines).read()
    lines.write_text('"a cat"\n"a dog"\n')
    with pytest.raises(ValueError, match="line 1 has no field 'label': it has no fields"):
        ProbeSet(lines).read()
