"""Data as other libraries have them give what the plain items give."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app

IMAGES = ic.Images(size=8, channels=1, encoder="small")
DIGITS = ic.data.digits().items[:20]


def collected(items, domain: ic.Domain) -> torch.Tensor:
    """What a learner would be given."""
    from incontrast.data.sources import collect

    found = collect(items, domain)
    return found.take(torch.arange(len(found)))


def shard(path: Path, images: np.ndarray, kind: str = "PNG") -> Path:
    with tarfile.open(path, "w") as file:
        for number, pixels in enumerate(images):
            content = io.BytesIO()
            Image.fromarray(pixels).save(content, kind)
            for name, data in (
                (f"a/{number:03}.png", content.getvalue()),
                (f"a/{number}.cls", b"1"),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return path


def test_data_loaders_and_memory_maps(tmp_path: Path, blobs) -> None:
    rows = blobs(30)
    loader = DataLoader(TensorDataset(rows, torch.zeros(30)), batch_size=8)
    assert torch.equal(collected(loader, ic.Vectors(8)), rows)
    assert torch.equal(collected(DataLoader(rows, batch_size=7), ic.Vectors(8)), rows)
    images = DataLoader(list(torch.from_numpy(DIGITS)), batch_size=6)
    assert torch.equal(collected(images, IMAGES), collected(DIGITS, IMAGES))
    np.save(tmp_path / "rows.npy", rows.numpy())
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert torch.equal(collected(mapped, ic.Vectors(8)), rows)
    np.save(tmp_path / "digits.npy", DIGITS)
    digits = np.load(tmp_path / "digits.npy", mmap_mode="r")
    assert torch.equal(collected(digits, IMAGES), collected(DIGITS, IMAGES))
    with pytest.raises(ValueError, match=r"got dictionaries of \['x'\]: choose one"):
        collected(DataLoader([{"x": rows[0]}]), ic.Vectors(8))
    with pytest.raises(ValueError, match="the DataLoader gave no batch"):
        collected(DataLoader(rows[:2], batch_size=8, drop_last=True), ic.Vectors(8))


def test_a_dataset_whose_items_have_labels(blobs) -> None:
    class Rows(Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return rows[index], 1

    rows = blobs(12)
    assert torch.equal(collected(Rows(), ic.Vectors(8)), rows)


def test_shards_of_images(tmp_path: Path) -> None:
    first, second = shard(tmp_path / "0.tar", DIGITS[:12]), shard(tmp_path / "1.tar", DIGITS[12:])
    expected = collected(DIGITS, IMAGES)
    assert torch.equal(collected([str(first), second], IMAGES), expected)
    assert torch.equal(collected(first, IMAGES), expected[:12])
    assert ic.data.TarImages(second).keys() == [f"a/{number:03}" for number in range(8)]
    cut = tmp_path / "cut.tar"
    cut.write_bytes(first.read_bytes()[:700])
    for path, reason in (
        (cut, "cannot be read as"),
        (tmp_path / "none.tar", "cannot be read as a .tar file"),
        (shard(tmp_path / "empty.tar", DIGITS[:0]), "holds no images"),
        (shard(tmp_path / "pcx.tar", DIGITS[:1], "PCX"), "cannot be read as an image"),
    ):
        with pytest.raises(ValueError, match=reason):
            collected(path, IMAGES)


def test_a_shard_from_the_command_line(tmp_path: Path) -> None:
    learner = ic.Learner(IMAGES, fit_strategy=ic.Retrain(max_epochs=1))
    ic.Workspace.create(tmp_path / "space", learner)
    path = shard(tmp_path / "0.tar", DIGITS)
    arguments = ["fit", str(path), "-w", str(tmp_path / "space"), "--force"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "on 20 items" in shown.output


def test_hugging_face_datasets(blobs) -> None:
    datasets = pytest.importorskip("datasets")
    rows = blobs(12)
    named = {"row": rows.tolist(), "name": [f"item {n}" for n in range(12)], "label": [1] * 12}
    table = datasets.Dataset.from_dict(named)
    assert torch.allclose(collected(table, ic.Vectors(8)), rows)
    pictures = [Image.fromarray(pixels) for pixels in DIGITS]
    features = datasets.Features({"picture": datasets.Image()})
    images = datasets.Dataset.from_dict({"picture": pictures}, features=features)
    assert torch.equal(collected(images, IMAGES), collected(DIGITS, IMAGES))
    with pytest.raises(ValueError, match=r"has no column of images \(it has row, name, label\)"):
        collected(table, IMAGES)
    twice = table.add_column("other", rows.tolist())
    with pytest.raises(ValueError, match=r"several columns \(row, other\) of vectors"):
        collected(twice, ic.Vectors(8))
