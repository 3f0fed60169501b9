"""Hostile, huge and damaged inputs: one clear ValueError each, and little memory."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import incontrast as ic
from incontrast.data import read_source, tables, tu
from incontrast.domains.images.files import typical_image


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_source(path)


# Graphs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"edges":[[0,1]],"nodes":300000000}',
            "nodes at most in all, got 300000000, of which .*1",
        ),
        ('{"edges":[[0,9000000000000000000]]}', "is the number of a node wrong"),
        ('{"edges":[[0,99999999999999999999]]}', "edges must be pairs of node numbers"),
        ('{"edges":[[0,1]],"nodes":99999999999999999999999}', "nodes at most in all"),
        ('{"edges":[[0,1]],"nodes":1e3}', "nodes must be a number of at least 1, got 1000.0"),
        ('{"edges":[[0,1]],"nodes":-1}', "nodes must be a number of at least 1, got -1"),
        ('{"edges":' + "[" * 100_000, "is not JSON"),
        ('{"edges":[[0,' + "1" * 10_000 + "]]}", "line 1"),
        ('{"edges":[],"x":[[1],[1,2]]}', "x must be a row of numbers for each node"),
        ('{"edges":[],"x":[]}', "line 1"),
        ('{"edges":[],"x":[[[1]]]}', "line 1: x must be a row of numbers for each node"),
        ('{"edges":{},"x":[[1]]}', "edges must be pairs"),
        ('{"edges":[[true,false]],"x":[[1],[2]]}', "edges must be pairs"),
    ],
)
def test_lines_that_are_no_graphs(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "g.jsonl").write_text(line)
    refused(tmp_path / "g.jsonl", message)


def test_a_line_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LONGEST", 2**20)
    (tmp_path / "g.jsonl").write_text('{"edges":[[0,1]]}\n' + "1" * (2**20 + 1))
    refused(tmp_path / "g.jsonl", "line 2 has more than 1 MiB")


def tu_folder(root: Path, **changes: str) -> Path:
    files = {
        "A": "1,2\n2,1",
        "graph_indicator": "1\n1\n2",
        "graph_labels": "0\n1",
        "node_labels": "0\n1\n0",
    }
    for kind, text in {**files, **changes}.items():
        (root / f"T_{kind}.txt").write_text(text)
    return root


HUGE = "9" * 30


@pytest.mark.parametrize("kind", ["A", "graph_indicator", "graph_labels", "node_labels"])
@pytest.mark.parametrize(
    "text", [HUGE, f"1\n{HUGE}\n1", "1\n\n2", "\0", "1;2\n3;4\n5;6", "nan\n1\n1", "1e400\n1\n1"]
)
def test_tu_files_that_are_no_tables(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"T_{kind}.txt"):
        tu(tu_folder(tmp_path, **{kind: text}), "T")


def test_far_apart_labels_take_little_memory(tmp_path: Path) -> None:
    items = tu(tu_folder(tmp_path, node_labels="0\n4000000000\n-7"), "T").items
    assert items.node_labels == ((-7, 0, 4000000000),)


def test_too_many_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incontrast.data.graphs.LARGEST", 20)
    with pytest.raises(ValueError, match="has 2 labels, too many for a feature each"):
        tu(tu_folder(tmp_path), "T")


# Tables ------------------------------------------------------------------------------------------


def test_a_small_archive_of_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", np.zeros((1000, 1000)))
    assert (tmp_path / "a.npz").stat().st_size < 20_000
    monkeypatch.setattr("incontrast.data.tables.LARGEST", 2**20)
    refused(tmp_path / "a.npz", r"a\.npz has more than the 0 GiB that are read into memory")


def test_a_small_parquet_of_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"a": np.zeros(1_000_000)}), tmp_path / "a.parquet")
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(1_000_000)), 100)
    write_table(pyarrow.table({"x": lists}), tmp_path / "x.parquet")
    monkeypatch.setattr("incontrast.data.tables.LARGEST", 2**20)
    refused(tmp_path / "a.parquet", "read into memory: divide it, or save rows of numbers as .npy")
    refused(tmp_path / "x.parquet", "read into memory")


def test_a_long_text_of_short_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("0,0\n" * 1000)
    monkeypatch.setattr("incontrast.data.tables.LARGEST", 10_000)
    refused(tmp_path / "a.csv", "read into memory")


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + body


SHAPE = "{'descr': '<f8', 'fortran_order': False, 'shape': "
ODD_HEADERS = [
    npy(SHAPE + "(2, 10**9)}"),
    npy(SHAPE + "(2, 99999999999999999999)}"),
    npy(SHAPE + "(-2, 3)}", bytes(48)),
    npy("{'descr': '<f8', 'fortran_order': True, 'shape': (99999, 99999)}"),
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}", bytes(48)),
    npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 3)}", bytes(48)),
    npy("{'descr': '<f999999999', 'fortran_order': False, 'shape': (2, 3)}", bytes(48)),
    npy(SHAPE + "(" * 5000),
    npy("{'descr': '<f8', 'fortran_order': False"),
    npy("[1, 2]"),
    npy("{" + "[" * 300 + "]" * 300 + "}"),
    npy(SHAPE + "(2, 3)}", bytes(47)),
    npy("{'descr': '<U4', 'fortran_order': False, 'shape': (2, 3)}", bytes(96)),
    npy("{}", version=b"\x09\x00"),
    b"\x93NUMPY",
    b"",
    b"PK\x03\x04",
]


@pytest.mark.parametrize("content", ODD_HEADERS)
def test_odd_arrays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    refused(tmp_path / "a.npy", r"a\.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    refused(tmp_path / "a.npz", r"a\.npz")


@pytest.mark.parametrize(
    "text",
    [
        'a,b\n"1,2\n3,4\n',
        '"a,b\n1,2\n',
        "a,b\n1,2\n" + '"' + "3," * 200_000,
        "a," + "b" * 200_000 + "\n1,2\n",
        "1,2\n3\n",
        "a,b\n1,\0\n",
        "\0\0\0",
        "a,a\n",
        ",\n,\n",
    ],
)
def test_odd_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    try:
        read_source(tmp_path / "a.csv")
    except ValueError as error:
        assert "a.csv" in str(error)  # noqa: PT017 (numpy may read some of them in its own way)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """A memory map would end the process."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(50_000, 8)))
    source = read_source(tmp_path / "a.npy")
    chunks = source.chunks(ic.Vectors(8))
    next(chunks)
    os.truncate(tmp_path / "a.npy", 100_000)
    with pytest.raises(ValueError, match="was shortened while it was read"):
        list(chunks)
    with pytest.raises(ValueError, match="was shortened while it was read"):
        ic.Vectors(8).collect(source.items)


def test_rows_on_disk_are_those_of_numpy(tmp_path: Path) -> None:
    for dtype in ("<f8", ">f4", "<i2", "|u1", "|b1", "<f2"):
        rows = np.arange(24).reshape(6, 4).astype(dtype)
        for order in ("C", "F"):
            np.save(tmp_path / "a.npy", np.asarray(rows, order=order))  # type: ignore[call-overload]
            source = read_source(tmp_path / "a.npy")
            assert len(source) == 6
            collected = ic.Vectors(4).collect(source.items)
            assert collected.data.tolist() == rows.astype(float).tolist()
            (chunk,) = source.chunks(ic.Vectors(4), start=2, stop=5)
            assert chunk.items.take(torch.arange(3)).tolist() == rows[2:5].astype(float).tolist()
            assert np.array_equal(ic.streams.pick(source.items, torch.tensor([4, 1])), rows[[4, 1]])


def test_an_archive_says_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "graphs.zip", "w") as archive:
        archive.writestr("T_A.txt", "1,2")
    refused(tmp_path / "graphs.zip", r"graphs\.zip is an archive: unpack it, and give the folder")


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 0)
    picture(tmp_path / "b.png", 1)
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "rows.npy")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "broken.png").symlink_to("nowhere")
    source = read_source(tmp_path)
    assert [Path(skip.file).name for skip in source.skipped] == [
        "broken.png",
        "device.png",
        "pipe.png",
    ]
    assert "pipe.png cannot be read as an image: it is not a file" in source.skipped[2].reason
    assert source.fingerprint() == read_source(tmp_path).fingerprint()
    refused(tmp_path / "rows.npy", r"rows\.npy is neither a file nor a folder")


def test_texts_beyond_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LONGEST", 20)
    texts = ["short", "this one is longer than " + 9 * "it may be ", "", "again", "long too " * 9]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(text) for text in texts if text))
    (tmp_path / "a.txt").write_text("\r\n".join(texts), newline="")
    (tmp_path / "a.csv").write_text("\n".join(["text", *texts]))
    for name, lines in (("a.jsonl", (2, 4)), ("a.txt", (2, 5)), ("a.csv", (3, 6))):
        source = read_source(tmp_path / name)
        assert source.items.contents == [b"short", b"again"]
        reasons = [f"{tmp_path / name}, line {n} has more than 0 MiB: divide it" for n in lines]
        assert [skip.reason for skip in source.skipped] == reasons
    monkeypatch.setattr(tables, "LARGEST", 4)
    for name in ("a.jsonl", "a.txt", "a.csv"):
        refused(tmp_path / name, "more than the 0 GiB that are read into memory")


def test_a_small_parquet_of_many_long_texts(tmp_path: Path, monkeypatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"text": ["x" * 10_000] * 1000}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    monkeypatch.setattr("incontrast.data.tables.LARGEST", 2**20)
    refused(tmp_path / "a.parquet", "GiB that are read into memory: divide it")


# Columns -----------------------------------------------------------------------------------------

PEOPLE = "name,age,height,label\nann,30,1.7,x\nbob,40,1.8,y\ncyd,50,1.6,x\n"


def tables_of_people(folder: Path) -> list[Path]:
    (folder / "p.csv").write_text(PEOPLE)
    (folder / "p.tsv").write_text(PEOPLE.replace(",", "\t"))
    paths = [folder / "p.csv", folder / "p.tsv"]
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        return paths
    rows = list(csv.reader(io.StringIO(PEOPLE)))
    columns: dict[str, Any] = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    columns |= {name: [float(value) for value in columns[name]] for name in ("age", "height")}
    write_table(pyarrow.table(columns), folder / "p.parquet")
    return [*paths, folder / "p.parquet"]


def test_columns_ids_and_labels(tmp_path: Path) -> None:
    for path in tables_of_people(tmp_path):
        source = read_source(path, id="name", label="label")
        expected = [[30, 1.7], [40, 1.8], [50, 1.6]]
        np.testing.assert_allclose(np.asarray(source.items), expected, rtol=1e-6)
        assert source.labels is not None
        assert source.labels.tolist() == ["x", "y", "x"]
        (chunk,) = source.chunks(ic.Vectors(2))
        assert chunk.names == ["ann", "bob", "cyd"]
        (later,) = source.chunks(ic.Vectors(2), start=1)
        assert later.names == ["bob", "cyd"]
        heights = read_source(path, columns=["height", "age"])
        assert np.asarray(heights.items)[0].tolist() == pytest.approx([1.7, 30.0])
        with pytest.raises(ValueError, match=r"has no column 'hight': it has \['name', 'age'"):
            read_source(path, columns=["hight"])
        refused(path, "must hold numbers only")


def test_a_label_that_is_a_number_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("age,target,Label\n30,2,1\n40,3,0\n")
    read_source(tmp_path / "a.csv")
    read_source(tmp_path / "a.csv", label="Label")
    named = [name for record in caplog.records for name in record.args[1:]]
    assert named == ["target", "Label", "target"]
    assert "the column 'target' is taken as a feature: is it one?" in caplog.text
    with pytest.raises(ValueError, match="there is no column 'Label' to choose"):
        read_source(tmp_path, label="Label")
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    with pytest.raises(ValueError, match="holds one array and no column 'y'"):
        read_source(tmp_path / "a.npy", id="y")


# Images ------------------------------------------------------------------------------------------


def picture(path: Path | str, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    Path(folder).mkdir()
    for number in range(12):
        picture(os.fsdecode(os.fsencode(folder) + b"/\xff%d.png" % number), number)
    (Path(folder) / "damaged.png").write_bytes(b"")
    once: dict[str, Any] = {"max_epochs": 1}
    learner = ic.Learner(
        ic.Images(8, 1, encoder="small"), fit_strategy=ic.Retrain(**once), strategy=ic.ICL(**once)
    )
    space = ic.Workspace.create(tmp_path / "space", learner)
    step = space.fit(read_source(folder, check=False), force=True)
    assert len(step.skipped) == 1
    step = space.update(folder, force=True, again=True)
    (chunk,) = read_source(folder).chunks(learner.domain)
    for text in (*chunk.names, *step.skipped, json.dumps(space.versions.record(step.version))):
        assert text.encode("utf-8").decode() == text
    assert chunk.names[0] == r"\xff0.png"


def test_a_typical_image_can_be_read(tmp_path: Path) -> None:
    picture(tmp_path / "whole.png", 0)
    content = (tmp_path / "whole.png").read_bytes()
    for number in range(4):
        (tmp_path / f"half {number}.png").write_bytes(content[: len(content) // 2])
    halves = [str(tmp_path / f"half {number}.png") for number in range(4)]
    with pytest.raises(ValueError, match=r"none of 4 images can be read; the first: .*half 0"):
        typical_image(halves)
    assert typical_image([*halves, str(tmp_path / "whole.png")]) == (8, 1)


@pytest.mark.parametrize(
    ("domain", "items"),
    [
        (ic.Vectors(3), np.ones((150, 3))),
        (ic.Images(8, 1, encoder="small"), np.full((9, 8, 8), 7, np.uint8)),
        (ic.Graphs(), [(torch.tensor([[0, 1], [1, 0]]), torch.eye(2))] * 5),
    ],
)
def test_items_that_are_all_the_same(domain: ic.Domain, items: Any) -> None:
    with pytest.raises(ValueError, match=f"all {len(items)} items are the same, so there is no"):
        ic.Learner(domain).fit(items)


# Everything --------------------------------------------------------------------------------------


def damaged(content: bytes, draws: random.Random) -> bytes:
    """Some bytes changed, cut off, repeated or put in."""
    changed = bytearray(content)
    for _ in range(draws.choice((1, 1, 2, 8))):
        place = draws.randrange(len(changed) + 1)
        kind = draws.randrange(4)
        if kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << draws.randrange(8)
        elif kind == 1:
            del changed[place:]
        elif kind == 2:
            changed[place:place] = changed[: draws.randrange(len(changed) + 1)]
        else:
            changed[place:place] = draws.randbytes(draws.randrange(9))
    return bytes(changed)


def inputs(folder: Path) -> dict[str, Callable[[Path], object]]:
    """A file of each kind, and what reads it."""
    np.save(folder / "a.npy", np.arange(24.0).reshape(6, 4))
    np.savez_compressed(folder / "a.npz", np.arange(24.0).reshape(6, 4))
    (folder / "a.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "a.jsonl").write_text('{"edges":[[0,1]],"x":[[1],[2]]}\n' * 2)
    picture(folder / "a.png", 0)
    for table in tables_of_people(folder):
        table.rename(folder / f"b{table.suffix}")
    tu_folder(folder)
    readers: dict[str, Callable[[Path], object]] = {
        file.name: read_source
        for file in sorted(folder.iterdir())
        if file.suffix not in (".txt", ".tsv") and file.name != "b.csv"
    }
    if "b.parquet" in readers:
        readers["b.parquet"] = lambda path: read_source(path, id="name", label="label")
    for kind in ("A", "graph_indicator", "graph_labels", "node_labels"):
        readers[f"T_{kind}.txt"] = lambda path: tu(path.parent, "T")
    return readers


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(tmp_path: Path, rounds: int) -> None:
    draws = random.Random(0)
    for name, read in inputs(tmp_path).items():
        path = tmp_path / name
        whole = path.read_bytes()
        for _ in range(rounds):
            path.write_bytes(damaged(whole, draws))
            try:
                read(path)
            except ValueError as error:
                assert path.stem.split("_")[0] in str(error)  # noqa: PT017
        path.write_bytes(whole)


WORST = """
import resource, sys
from pathlib import Path
from incontrast.data import read_source
folder = Path(sys.argv[1])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30,) * 2)
for name in ("g.jsonl", "a.npz"):
    try:
        read_source(folder / name)
    except ValueError as error:
        print("refused:", error, flush=True)
import pyarrow
from pyarrow.parquet import write_table
path = folder / "a.parquet"
for values in ([1.0, 2.0], [[1.0], [2.0]]):
    write_table(pyarrow.table({"a": values}), path, store_schema=False)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (32, 64):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                read_source(path)
            except ValueError:
                pass
"""


@pytest.fixture(scope="module")
def worst(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A process that may have 3 GiB of addresses and no more, and reads the worst of each kind."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell how much memory a process has")
    folder = tmp_path_factory.mktemp("worst")
    (folder / "g.jsonl").write_text('{"edges":[[0,1]],"nodes":300000000}')
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy(SHAPE + "(400000, 1000)}"))
        archive.infolist()[0].file_size = 3_200_000_000
    command = [sys.executable, "-c", WORST, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_memory_stays_small(worst: subprocess.CompletedProcess[str]) -> None:
    assert worst.stdout.count("refused:") == 2, worst.stderr
    assert "300000000" in worst.stdout
    assert "GiB" in worst.stdout


def test_no_damaged_parquet_ends_the_process(worst: subprocess.CompletedProcess[str]) -> None:
    """pyarrow does, where it is asked about columns whose description is damaged."""
    pytest.importorskip("pyarrow")
    assert worst.returncode == 0, worst.stderr[-2000:]
