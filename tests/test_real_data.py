"""The paper's data sets, from their files to a lower loss, in its settings where time allows.

What the readers' own tests already count is not counted here again.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

from incontrast import Domain, Fixed, Graphs, Images, ImageViews, Learner, Retrain
from incontrast.data import image_folder, mnist, tu


@pytest.fixture(scope="session")
def pictures(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet-2 and ImageNet-2-tiny as folders of JPEG files."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("ImageNet-2", "ImageNet-2-tiny"):
        with tarfile.open(shared_data / f"{name}.tar") as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def graphs(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TU data sets as folders of text files."""
    folder = tmp_path_factory.mktemp("graphs")
    for archive in (shared_data / "TU").glob("*.zip"):
        (folder / archive.stem).mkdir()
        with ZipFile(archive) as content:
            for member in content.namelist():
                if member.endswith(".txt"):
                    (folder / archive.stem / Path(member).name).write_bytes(content.read(member))
    return folder


def assert_learns(domain: Domain, items: Any, fit_strategy: Retrain, *, to: float) -> Learner:
    """A short fit brings the evaluation loss down to a share of what it was; returns the learner.

    The loss before is that of an encoder whose BatchNorm has not seen the data. Seeing them alone
    takes up to 6 % off the loss of images and up to 20 % off that of graphs, so ask for more.
    """
    learner = Learner(domain, fit_strategy=fit_strategy)
    before, after = learner.fit(items).loss_new
    assert after < to * before, f"{before} became {after}"
    return learner


def of_both_classes(files: list[str], count: int) -> list[str]:
    return [*files[: count // 2], *files[-count // 2 :]]


def test_mnist_is_learned(shared_data: Path) -> None:
    data = mnist(shared_data / "MNIST", train=False)
    assert np.bincount(data.labels).tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ]
    domain = Images(28, 1, encoder="small", views=ImageViews(flip=0.0))
    assert_learns(domain, data.items[:600], Retrain(max_epochs=3, batch_size=16), to=0.9)


def test_files_are_learned_and_a_learner_of_files_survives_saving(
    pictures: Path, tmp_path: Path
) -> None:
    files = of_both_classes(image_folder(pictures / "ImageNet-2" / "train").items, 64)
    domain = Images(32, encoder="small")
    learner = assert_learns(domain, files, Retrain(max_epochs=40, batch_size=16), to=0.9)
    assert learner.memory.items is not None
    assert learner.memory.items.files
    held_out = of_both_classes(image_folder(pictures / "ImageNet-2" / "val").items, 8)
    learner.save(tmp_path / "learner")
    # The files stay where they are: what is saved of 64 pictures are their paths.
    (memory,) = (tmp_path / "learner").glob("memory-*.safetensors")
    assert memory.stat().st_size < 64 * 512
    loaded = Learner.load(tmp_path / "learner")
    assert torch.equal(loaded.embed(held_out), learner.embed(held_out))
    assert loaded.memory.items is not None
    rows = torch.tensor([63, 0])
    assert torch.equal(loaded.memory.items.take(rows), learner.memory.items.take(rows))


def test_the_paper_s_setting_for_images(pictures: Path) -> None:
    """ResNet-18 on 224×224 pixels: one step raises or lowers the loss by chance."""
    files = of_both_classes(image_folder(pictures / "ImageNet-2" / "train").items, 4)
    learner = Learner(Images(224), fit_strategy=Retrain(max_epochs=1, batch_size=4))
    outcome = learner.fit(files)
    assert outcome.steps == 1
    assert np.isfinite(outcome.loss_new.after)
    assert sum(weights.numel() for weights in learner.encoder.parameters()) == 11_176_512


def test_small_pictures_and_grey_ones(pictures: Path) -> None:
    for part, count in (("train", 500), ("val", 50)):
        data = image_folder(pictures / "ImageNet-2-tiny" / part)
        assert data.classes == ("n02099601", "n02123045")
        assert np.bincount(data.labels).tolist() == [count, count]
    grey = []
    for path in image_folder(pictures / "ImageNet-2" / "val").items:
        with Image.open(path) as image:
            if image.mode == "L":
                grey.append(path)
    assert len(grey) == 5
    pixels = Images(16).collect(grey).take(torch.arange(5))
    assert torch.equal(pixels, pixels[:, :1].expand(-1, 3, -1, -1))


@pytest.mark.parametrize(
    "name", ["PROTEINS", pytest.param("REDDIT-BINARY", marks=pytest.mark.slow)]
)
def test_graphs_are_learned(graphs: Path, name: str) -> None:
    data = tu(graphs, name)
    items = data.select(np.arange(0, len(data), len(data) // 200)).items
    fitting = Retrain(max_epochs=15, batch_size=8, lr=Fixed(3e-3))
    assert_learns(Graphs(), items, fitting, to=0.75)


@pytest.mark.parametrize(
    ("name", "labels", "nodes", "edges", "features", "attributes"),
    [
        ("MUTAG", [63, 125], 3371, 3721, 7, 0),
        ("PROTEINS_full", [663, 450], 43471, 81044, 3, 29),
    ],
)
def test_other_graphs(
    graphs: Path,
    name: str,
    labels: list[int],
    nodes: int,
    edges: int,
    features: int,
    attributes: int,
) -> None:
    data = tu(graphs, name)
    assert np.bincount(data.labels).tolist() == labels
    assert data.items.x.shape == (nodes, features)
    assert data.items.edge_index.shape == (2, 2 * edges)
    if attributes:
        assert tu(graphs, name, attributes=True).items.features == features + attributes
