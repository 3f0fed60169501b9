"""Readers: digits, MNIST, image folders and arrays."""

from __future__ import annotations

import gzip
import struct
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from incontrast.data import Labelled, arrays, digits, image_folder, mnist, read_source
from incontrast.domains.base import TensorCollection
from incontrast.domains.images.domain import Images


@pytest.mark.parametrize(
    "items",
    [np.arange(4), torch.arange(4), [0, 1, 2, 3], TensorCollection(torch.arange(4))],
    ids=["array", "tensor", "list", "collection"],
)
@pytest.mark.parametrize("indices", [[3, 0], np.array([3, 0]), torch.tensor([3, 0])])
def test_select_keeps_items_and_labels_together(items: Any, indices: Any) -> None:
    chosen = Labelled(items, np.array([0, 0, 1, 1]), ("a", "b")).select(indices)
    values = chosen.items.data if isinstance(items, TensorCollection) else chosen.items
    assert list(values) == [3, 0]
    assert chosen.labels is not None
    assert chosen.labels.tolist() == [1, 0]
    assert chosen.classes == ("a", "b")


def test_select_takes_masks_and_nothing() -> None:
    data = Labelled(["a", "b", "c"])
    assert data.select([True, False, True]).items == ["a", "c"]
    assert len(data.select([])) == 0


def test_every_item_needs_a_label() -> None:
    with pytest.raises(ValueError, match="got 3 items and 2 labels"):
        Labelled(np.zeros(3), np.zeros(2, dtype=np.int64))


def test_digits() -> None:
    data = digits()
    assert data.items.shape == (1797, 8, 8)
    assert data.items.dtype == np.uint8
    assert data.items.max() == 255
    assert data.labels is not None
    assert data.labels.dtype == np.int64
    assert np.bincount(data.labels).min() == 174
    assert data.classes == tuple("0123456789")
    assert len(Images(8, 1).collect(data.items)) == 1797


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    content = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "") -> None:
    images = np.arange(4 * 6 * 5).reshape(4, 6, 5)
    write_idx(folder / f"train-images-idx3-ubyte{suffix}", images)
    write_idx(folder / f"train-labels-idx1-ubyte{suffix}", np.array([0, 7, 1, 7]))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("below", [".", "raw", "MNIST/raw"])
def test_mnist_is_found_and_read(tmp_path: Path, below: str, suffix: str) -> None:
    write_mnist(tmp_path / below, suffix)
    data = mnist(tmp_path)
    assert data.items.tolist() == np.arange(120).reshape(4, 6, 5).tolist()
    assert data.labels is not None
    assert data.labels.tolist() == [0, 7, 1, 7]
    some = mnist(str(tmp_path), classes=[7, 0])
    assert some.labels is not None
    assert some.labels.tolist() == [0, 7, 7]
    assert [some.classes[label] for label in some.labels] == ["0", "7", "7"]


def test_mnist_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no train-images-idx3-ubyte .*nor in raw or MNIST/raw"):
        mnist(tmp_path)
    write_mnist(tmp_path)
    with pytest.raises(ValueError, match=r"has the label 5"):
        mnist(tmp_path, classes=[0, 5])
    with pytest.raises(ValueError, match=r"no t10k-images-idx3-ubyte"):
        mnist(tmp_path, train=False)
    images, labels = (tmp_path / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    good = images.read_bytes()
    for content, message in (
        (b"", "begins with nothing, expected 00 00 08 03"),
        (labels.read_bytes(), "begins with 00 00 08 01, expected 00 00 08 03"),
        (good[:10], "truncated, or no idx file of bytes in 3 dimensions"),
        (good[:-1], r"119 bytes of data where its header says 120 \(4, 6, 5\)"),
        (good + b"x", "121 bytes of data"),
    ):
        images.write_bytes(content)
        with pytest.raises(ValueError, match=rf"train-images-idx3-ubyte .*{message}"):
            mnist(tmp_path)
    write_idx(images, np.zeros((3, 6, 5)))
    with pytest.raises(ValueError, match=r"has 3 images but .*train-labels.* has 4 labels"):
        mnist(tmp_path)
    images.unlink()
    for broken in (gzip.compress(good)[:-9], b"not gzip"):
        images.with_name(f"{images.name}.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"images-idx3-ubyte\.gz cannot be unpacked: "):
            mnist(tmp_path)


def test_the_real_mnist(shared_data: Path) -> None:
    folder = shared_data / "MNIST"
    assert mnist(folder).items.shape == (60000, 28, 28)
    assert mnist(folder, train=False).items.shape == (10000, 28, 28)
    assert len(mnist(folder, classes=(0, 1))) == 12665
    assert len(mnist(folder, classes=(0, 1), train=False)) == 2115


def save_images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name)


def test_image_folder_with_classes(tmp_path: Path) -> None:
    save_images(tmp_path, "hund/b.png", "hund/a.jpg", "Käfer/x y/1.png", ".trash/no.png")
    data = image_folder(tmp_path)
    assert [Path(path).name for path in data.items] == ["1.png", "a.jpg", "b.png"]
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 1]
    assert data.classes == ("Käfer", "hund")
    assert len(Images(8).collect(data.select([2, 0]).items)) == 2


def test_a_flat_image_folder_has_no_labels(tmp_path: Path) -> None:
    save_images(tmp_path, "b.png", "a.png")
    data = image_folder(str(tmp_path))
    assert len(data) == 2
    assert data.labels is None
    assert data.classes == ()


def test_image_folder_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there are no images in"):
        image_folder(tmp_path)
    save_images(tmp_path, "cat/a.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(ValueError, match=r"there are no images in .*dog"):
        image_folder(tmp_path)
    save_images(tmp_path, "dog/a.png", "loose.png")
    with pytest.raises(ValueError, match=r"1 images beside them: move loose\.png into a class"):
        image_folder(tmp_path)


def test_the_real_imagenet(shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "ImageNet-2.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    train, val = (image_folder(tmp_path / "ImageNet-2" / part) for part in ("train", "val"))
    assert train.classes == val.classes == ("n01440764", "n02102040")
    assert train.labels is not None
    assert val.labels is not None
    assert np.bincount(train.labels).tolist() == [963, 955]
    assert np.bincount(val.labels).tolist() == [387, 395]
    gray = []
    for number, path in enumerate(train.items):
        with Image.open(path) as image:
            if image.mode == "L":
                gray.append(number)
    assert len(gray) == 9
    batch = Images(224).collect(train.items).take(torch.tensor(gray))
    assert batch.shape == (9, 3, 224, 224)
    assert torch.equal(batch[:, 0], batch[:, 2])


TABLE = [[1.5, 2.0], [3.0, -4.0], [0.0, 1e3]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", "1.5,2\n3,-4\n0,1e3\n"),
        ("header.csv", "\ufefffirst,second\n1.5,2\n3,-4\n0,1e3\n"),
        ("windows.csv", '"a";"b"\r\n1.5;2\r\n3;-4\r\n0;1e3\r\n'),
        ("tabs.tsv", "1.5\t2\n3\t-4\n0\t1e3"),
        ("pandas.csv", ",a,b\n0,1.5,2\n1,3,-4\n2,0,1e3\n"),
    ],
)
def test_arrays_reads_text(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    data = arrays(path)
    assert data.items.dtype == np.float32
    assert data.items.tolist() == TABLE
    assert data.labels is None


def test_arrays_reads_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(TABLE))
    np.savez_compressed(tmp_path / "a.npz", x=np.array(TABLE), y=np.array([7, 5, 7]))
    np.savez(tmp_path / "one.npz", whatever=np.array(TABLE, dtype=np.int32))
    assert arrays(tmp_path / "a.npy").items.tolist() == TABLE
    assert arrays(str(tmp_path / "one.npz")).items.tolist() == [[1, 2], [3, -4], [0, 1000]]
    data = arrays(tmp_path / "a.npz", label="y")
    assert data.items.tolist() == TABLE
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.classes == ("5", "7")


def test_arrays_takes_labels_from_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('x,kind,2\n1,dog,2\n3,"a, cat",4\n5,dog,6\n')
    data = arrays(path, label="kind")
    assert data.items.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.classes == ("a, cat", "dog")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2\n3,x\n", "must hold numbers only, got 'x' in line 2, column 2$"),
        (
            "a,b\n1,2\n\n3,x\n",
            "must hold numbers only, got 'x' in line 4, column 'b': if it is no f",
        ),
        (
            "a b,c\nu,2\n",
            ".*'a b': if it is no feature, give --id 'a b', --label 'a b' or --columns$",
        ),
        ("1,2\n3\n", "has 2 columns, but 1 in line 2$"),
        ("a,b\n1,2,x\n", "has 2 columns, but 3 in line 2$"),
        ("a,b\n1,2\n3,4,5\n", "has 2 columns, but 3 in line 3$"),
        ("1,2\n3,1_0\n", "must hold numbers only, got '1_0' in line 2, column 2$"),
        (f'a\n1\n"{"x" * 200_000}\n', "must hold numbers only, got .* in line 3, column 'a': "),
        ("1,2\n3,\n", "must hold finite numbers, and has none in line 2, column 2: fix"),
        ("a,b\n1, \n", "must hold finite numbers, and has none in line 2, column 'b': fix"),
        ("1,2\n3,nan\n", "must hold finite numbers, and has none in line 2, column 2: fix"),
        (
            "a,b\n1,2\n3,1e60\n",
            "must hold finite numbers, and has none in line 3, column 'b': fix",
        ),
        ("a,b\n", "has names of columns but no rows"),
        ("", "is empty, or its first line is"),
    ],
)
def test_arrays_says_what_is_wrong_with_text(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"a\.csv {message}"):
        arrays(path)


def test_a_gap_does_not_cost_memory(tmp_path: Path) -> None:
    """Python's own numbers take four times as much as an array's."""
    rows = np.arange(200_000.0).reshape(-1, 10) + 0.5
    most = {}
    for last in ("1.5", ""):
        np.savetxt(
            tmp_path / "rows.csv", rows, "%g", ",", footer=",".join(["2"] * 9 + [last]), comments=""
        )
        tracemalloc.start()
        table = read_source(tmp_path / "rows.csv", strict=False)
        most[last] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(table), len(table.skipped)) == ((20_001, 0) if last else (20_000, 1))
    assert most[""] < 4 * rows.nbytes


def test_arrays_says_what_is_wrong(tmp_path: Path) -> None:
    def fails(name: str, message: str, label: str | None = None) -> None:
        with pytest.raises(ValueError, match=message):
            arrays(tmp_path / name, label=label)

    fails("a.npy", r"a\.npy does not exist")
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    fails("a.npy", r"a\.npy must hold a table \(n, d\), got shape \(2, 3, 4\)")
    fails("a.npy", r"a\.npy holds one array and no column 'y'", label="y")
    np.save(tmp_path / "object.npy", np.array([[{}]]), allow_pickle=True)
    fails("object.npy", r"object\.npy cannot be read: it holds Python objects")
    np.save(tmp_path / "complex.npy", np.array([[1j]]))
    fails("complex.npy", r"complex\.npy must hold real numbers, got complex128")
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-9])
    fails("cut.npy", r"cut\.npy cannot be read")
    (tmp_path / "empty.npy").touch()
    fails("empty.npy", r"empty\.npy cannot be read")
    np.savez(tmp_path / "two.npz", x=np.zeros((2, 2)), y=np.zeros(3))
    assert read_source(tmp_path / "two.npz", columns=["x"]).items.shape == (2, 2)
    fails("two.npz", r"two\.npz must hold one array .*got \['x', 'y'\]")
    fails("two.npz", r"two\.npz has no column 'z': it has \['x', 'y'\]", label="z")
    fails("two.npz", r"two\.npz has 2 rows but .y. of shape \(3,\)", label="y")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    fails("cut.npz", r"cut\.npz cannot be read")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    fails("a.csv", r"a\.csv has no column 'z': it has \['x', 'y'\]", label="z")
    (tmp_path / "none.csv").write_text("x,y\n")
    fails("none.csv", r"none\.csv has names of columns but no rows", label="y")
    (tmp_path / "bare.csv").write_text("1,2\n")
    fails("bare.csv", r"bare\.csv has no column 'z': it has \['0', '1'\]", label="z")
    (tmp_path / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    fails("latin.csv", r"latin\.csv has a first line that cannot be read: 'utf-8' codec")
    (tmp_path / "a.xlsx").touch()
    fails("a.xlsx", r"a\.xlsx has an unsupported format: .* \.npy, \.npz, \.csv, \.tsv, \.parquet")
