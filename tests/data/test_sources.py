"""A path on the command line becomes items, or a clear refusal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from incontrast import Domain, Graphs, Images, Learner, Retrain, Vectors
from incontrast.data import read_source
from incontrast.data.sources import collect


def picture(path: Path, seed: int = 0, *, size: int = 12, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size, size, 3) if mode == "RGB" else (size, size)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "Fotos für später"
    for number in range(5):
        picture(folder / f"Ünïcode {number}.png", number)
    return folder


# Images ------------------------------------------------------------------------------------------


def test_a_folder_of_images(photos: Path) -> None:
    source = read_source(photos)
    assert (source.kind, len(source), source.skipped) == ("images", 5, ())
    assert source.domain() == Images(12, 3, encoder="small")
    assert source.domain(size=48, channels=1) == Images(48, 1, encoder="resnet18")
    (chunk,) = source.chunks(Images(12, 3))
    assert chunk.names == [f"Ünïcode {number}.png" for number in range(5)]
    assert not chunk.items.background
    assert torch.equal(
        chunk.items.take(torch.arange(5)), Images(12).collect(photos).take(torch.arange(5))
    )


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", mode="L")
    assert read_source(tmp_path).domain() == Images(12, 1, encoder="small")
    assert len(read_source(tmp_path / "a.png")) == 1


def test_a_damaged_image_is_named_skipped_and_counted(photos: Path) -> None:
    whole = picture(photos / "x.jpg", size=64).read_bytes()
    (photos / "x.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "y.png").write_bytes(b"")
    source = read_source(photos)
    assert len(source) == 5
    assert [Path(skip.file).name for skip in source.skipped] == ["x.jpg", "y.png"]
    assert "y.png cannot be read as an image: it is empty" in source.skipped[1].reason
    lazy = read_source(photos, check=False)
    assert len(lazy) == 7
    (chunk,) = lazy.chunks(Images(12))
    assert len(chunk.items) == len(chunk.names) == 5
    assert chunk.skipped == source.skipped
    for refuse in (
        lambda: read_source(photos, strict=True),
        lambda: list(lazy.chunks(Images(12), strict=True)),
    ):
        with pytest.raises(ValueError, match=r"x\.jpg cannot be read as an image"):
            refuse()


def test_an_image_bomb_is_refused(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    picture(photos / "bomb.png", size=40)
    (skip,) = read_source(photos).skipped
    assert "bomb.png is larger than the 1000 pixels" in skip.reason


def test_links_that_go_round_in_circles(photos: Path) -> None:
    (photos / "below").mkdir()
    (photos / "below" / "up").symlink_to(photos)
    (photos / "self").symlink_to(photos / "self")
    assert len(read_source(photos)) == 5
    with pytest.raises(ValueError, match="self is a link that leads nowhere"):
        read_source(photos / "self")


def test_a_folder_without_anything_to_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nor \.txt files \(empty\)"):
        read_source(tmp_path)
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(ValueError, match=r"it has notes\.md\): give a folder of images"):
        read_source(tmp_path)
    with pytest.raises(ValueError, match=r"notes\.md has an unsupported format"):
        read_source(tmp_path / "notes.md")
    with pytest.raises(ValueError, match="does not exist: give a folder"):
        read_source(tmp_path / "missing")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="none of the 1 images"):
        read_source(tmp_path)


def test_the_fingerprint_changes_with_the_files(photos: Path) -> None:
    before = read_source(photos).fingerprint()
    assert read_source(photos, check=False).fingerprint() == before
    os.utime(photos / "Ünïcode 1.png", ns=(1, 1))
    assert read_source(photos).fingerprint() != before


# Vectors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "parquet"])
def test_tables_of_numbers(tmp_path: Path, suffix: str) -> None:
    rows = np.arange(12.0).reshape(4, 3)
    path = tmp_path / f"rows.{suffix}"
    if suffix == "npy":
        np.save(path, rows)
    elif suffix == "npz":
        np.savez(path, rows=rows)
    elif suffix == "csv":
        np.savetxt(path, rows, delimiter=",")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        write_table(pyarrow.table({name: rows[:, i] for i, name in enumerate("abc")}), path)
    source = read_source(path)
    assert (source.kind, len(source)) == ("vectors", 4)
    assert source.domain() == Vectors(3)
    (chunk,) = source.chunks(Vectors(3))
    assert chunk.items.data.numpy() == pytest.approx(rows)
    assert chunk.names == ["0", "1", "2", "3"]
    assert source.fingerprint() == read_source(path).fingerprint()


def test_a_column_of_lists_in_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"embedding": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "e.parquet")
    assert read_source(tmp_path / "e.parquet").items.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    write_table(pyarrow.table({"embedding": [None, [1.0, 2.0], None]}), tmp_path / "e.parquet")
    source = read_source(tmp_path / "e.parquet")
    assert (source.items.tolist(), source.names()) == ([[1.0, 2.0]], ["1"])
    assert "none in row 0 (counted from 0), column 0" in source.skipped[0].reason
    write_table(pyarrow.table({"embedding": [[1.0, 2.0], [3.0]]}), tmp_path / "e.parquet")
    with pytest.raises(ValueError, match="must hold lists of one length in 'embedding'"):
        read_source(tmp_path / "e.parquet")
    write_table(pyarrow.table({"a": [1.0], "name": ["x"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="numbers only, but not in column 'name'"):
        read_source(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ValueError, match="cannot be read"):
        read_source(tmp_path / "t.parquet")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects, which could run code"):
        read_source(path)
    np.savez(tmp_path / "rows.npz", a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="cannot be read"):
        read_source(tmp_path / "rows.npz")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros(3), r"must hold a table \(n, d\), got shape \(3,\)"),
        (np.array([["a"]]), "must hold real numbers"),
        (np.array([[np.inf], [np.nan]]), "no row of .* is whole; the first: .* has none in row 0"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, rows: np.ndarray, message: str) -> None:
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match=message):
        read_source(tmp_path / "rows.npy")


def test_rows_that_are_not_whole_are_left_out_and_the_others_keep_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,kind\n1,2,x\n3,,y\n\n5,nan,x\n1e60,1,x\n7,8,z\n")
    source = read_source(path, label="kind")
    assert np.asarray(source.items).tolist() == [[1, 2], [7, 8]]
    assert source.names() == ["0", "4"]
    assert list(source.labels) == ["x", "z"]
    places = [skip.reason.rpartition(" in ")[2] for skip in source.skipped]
    assert places == ["line 3, column 'b'", "line 5, column 'b'", "line 6, column 'a'"]
    with pytest.raises(ValueError, match="has none in line 3, column 'b': fix"):
        read_source(path, label="kind", strict=True)
    path.write_text("a,b\n1,2\n3,inf\n")
    with pytest.raises(ValueError, match="has none in line 3, column 'b': fix or remove it"):
        read_source(path, strict=True)
    assert len(collect(path, Vectors(2))) == 1
    assert "1 items of" not in caplog.text
    assert "is left out: " in caplog.text


def test_rows_of_arrays_that_are_not_whole_are_left_out(tmp_path: Path) -> None:
    rows = np.arange(8.0).reshape(4, 2)
    rows[1, 1] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    np.savez(tmp_path / "rows.npz", rows=rows, id=np.array(list("abcd")))
    for source in (read_source(tmp_path / "rows.npy"), read_source(tmp_path / "rows.npz", id="id")):
        assert np.asarray(source.items).tolist() == [[0, 1], [4, 5], [6, 7]]
        (skip,) = source.skipped
        assert skip.reason.endswith("row 1 (counted from 0), column 1 (counted from 0)")
    assert source.names() == ["a", "c", "d"]


def test_a_number_beyond_single_precision_leaves_its_row_out_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[1.0, 2.0], [1e60, 3.0], [4.0, 5.0]]))
    source = read_source(tmp_path / "rows.npy")
    assert [skip.reason.partition(" in ")[2] for skip in source.skipped] == [
        "row 1 (counted from 0), column 0 (counted from 0)"
    ]
    assert Vectors(2).collect(source.items).data.tolist() == [[1.0, 2.0], [4.0, 5.0]]


def test_a_cell_without_a_value_in_parquet_leaves_its_row_out_alone(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    table = pyarrow.table({"a": [1.0, None, 3.0], "b": [1, 2, 3], "name": ["x", "y", "z"]})
    write_table(table, tmp_path / "rows.parquet")
    source = read_source(tmp_path / "rows.parquet", id="name")
    assert (source.names(), len(source)) == (["x", "z"], 2)
    assert "row 1 (counted from 0), column 'a'" in source.skipped[0].reason


# Graphs ------------------------------------------------------------------------------------------


def lines(path: Path, *graphs: object) -> Path:
    path.write_text("\n".join(json.dumps(graph) for graph in graphs))
    return path


def test_graphs_as_json_lines(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "g.jsonl",
        {"edges": [[0, 1], [1, 2], [1, 0], [2, 2]], "x": [[1], [2], [3]]},
        {"edges": [], "x": [[4.5]]},
    )
    source = read_source(path)
    assert (source.kind, len(source), source.domain()) == ("graphs", 2, Graphs())
    assert source.items.x.tolist() == [[1.0], [2.0], [3.0], [4.5]]
    assert source.items.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    (chunk,) = source.chunks(Graphs())
    assert len(chunk.items) == 2
    bare = read_source(lines(path, {"edges": [[0, 1]], "nodes": 3}))
    assert bare.items.x.shape == (3, 5)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([1], 'line 2 must be a .* or {"edges"'),
        (
            {"edges": [[0, 1, 2]], "x": [[1]]},
            r"pairs of node numbers, got torch.int64 of shape \(1, 3\)",
        ),
        ({"edges": [[0, 0.5]], "x": [[1]]}, "edges must be pairs of node numbers"),
        (
            {"edges": [[0, -1]], "x": [[1]]},
            "nodes 0 to 0, got an edge from -1 to 0",
        ),
        (
            {"edges": [[0, 3]], "x": [[1], [2]]},
            "line 2 must join its nodes 0 to 1, got",
        ),
        (
            {"edges": [], "x": [[1, 2]]},
            "line 1 have 1 feature, those of .*line 2 have 2 features: give",
        ),
        (
            {"edges": [[0, 1]]},
            "line 1 have 1 feature, those of .*line 2 have no features: give",
        ),
        ({"edges": [], "x": "abc"}, "x must be a row of numbers"),
        ({"edges": [], "x": [[1e99]]}, "features must be finite"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, graph: object, message: str) -> None:
    path = lines(tmp_path / "g.jsonl", {"edges": [], "x": [[1.0]]}, graph)
    with pytest.raises(ValueError, match=message):
        read_source(path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    for content, message in (
        (b"{", "is not JSON"),
        (b"\n", "holds no text"),
        (b"\xff", "is not JSON"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_source(path)


def test_a_folder_of_tu_graphs(tmp_path: Path) -> None:
    folder = tmp_path / "PAIRS"
    (folder / "raw").mkdir(parents=True)
    for kind, text in {
        "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
        "graph_indicator": "1\n1\n2\n2\n",
        "graph_labels": "0\n1\n",
    }.items():
        (folder / "raw" / f"PAIRS_{kind}.txt").write_text(text)
    source = read_source(folder)
    assert (source.kind, len(source)) == ("graphs", 2)
    assert source.fingerprint()


def test_another_kind_of_data_than_expected(photos: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"rows\.npy holds vectors, but images are expected here"):
        next(read_source(tmp_path / "rows.npy").chunks(Images(12)))
    with pytest.raises(ValueError, match="holds images, but graphs are expected here"):
        next(read_source(photos).chunks(Graphs()))


# Paths and sources in a learner ------------------------------------------------------------------


def every_kind(folder: Path) -> Iterator[tuple[Domain, Path, Any]]:
    """A domain, a path, and a torch Dataset or a list with the same items."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
    yield Images(8, 1, encoder="small"), folder / "images", pixels
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b,c", comments="")
    pairs = TensorDataset(torch.from_numpy(rows), torch.zeros(8))
    yield Vectors(3), folder / "rows.npy", pairs
    yield Vectors(3), folder / "rows.csv", pairs
    lines = [{"edges": [[0, 1], [1, 2], [n % 3, 3]]} for n in range(8)]
    (folder / "graphs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    edges = [torch.tensor([[0, 1, 1, 2, n % 3, 3], [1, 0, 2, 1, 3, n % 3]]) for n in range(8)]
    yield Graphs(hidden=4), folder / "graphs.jsonl", [(edge_index, None) for edge_index in edges]


def test_paths_and_sources_work_in_a_learner(tmp_path: Path) -> None:
    for domain, path, items in every_kind(tmp_path):
        embeddings = []
        for given in (items, path, str(path), read_source(path)):
            learner = Learner(domain, fit_strategy=Retrain(max_epochs=1))
            learner.fit(given)
            embeddings.append(learner.embed(given))
        assert len(embeddings[0]) == 8
        for other in embeddings[1:]:
            torch.testing.assert_close(other, embeddings[0], rtol=1e-3, atol=1e-4)


def test_another_kind_of_data_is_refused_by_a_learner(tmp_path: Path, photos: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((8, 3)))
    with pytest.raises(ValueError, match=r"rows\.npy holds vectors, but images are expected here"):
        Learner(Images(8)).fit(tmp_path / "rows.npy")
    with pytest.raises(ValueError, match="holds images, but vectors are expected here"):
        Learner(Vectors(3)).fit(photos)
    with pytest.raises(ValueError, match="holds images, but graphs are expected here"):
        Learner(Graphs()).fit(read_source(photos))
