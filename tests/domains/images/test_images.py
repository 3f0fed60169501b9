"""The domain of images: what it collects, and what it makes of it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Generator, nn
from torch.utils.data import Dataset, IterableDataset

from incontrast.data import read_source
from incontrast.domains.images.domain import Images
from incontrast.domains.images.files import note_lost_colours
from incontrast.domains.images.views import ImageViews


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


PIXELS = noise(5, 8, 8, 3)
FIRST = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())  # (n, C, H, W)


class Pairs(Dataset[Any]):
    """(image, label) pairs that do not end with an IndexError."""

    def __init__(self, make: Callable[[NDArray[np.uint8]], Any]) -> None:
        self.make = make
        self.reads = 0

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.make(PIXELS[index % len(PIXELS)]), 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (Image.fromarray(image) for image in PIXELS)


@pytest.mark.parametrize(
    "items",
    [
        PIXELS,
        FIRST,
        FIRST.numpy(),
        PIXELS[::-1][::-1],
        (PIXELS / 255).astype(np.float32),
        (PIXELS / 255).astype(">f8"),
        (FIRST / 255).double(),
        list(PIXELS),
        list(FIRST),
        tuple(FIRST / 255),
        [Image.fromarray(image) for image in PIXELS],
        [Image.fromarray(PIXELS[0]), PIXELS[1], FIRST[2].permute(1, 2, 0), PIXELS[3], PIXELS[4]],
        [(image, 3) for image in PIXELS],
        Pairs(Image.fromarray),
        Pairs(lambda image: image),
        Pairs(lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255),
        Stream(),
        Images(8).collect(PIXELS),
    ],
)
def test_images_of_every_kind_become_the_same_pixels(items: Any) -> None:
    collection = Images(8).collect(items)
    assert torch.equal(collection.take(torch.arange(5)), FIRST)
    assert not collection.background
    assert collection.nbytes == FIRST.numel()


def test_a_dataset_is_read_once() -> None:
    data = Pairs(Image.fromarray)
    Images(8).collect(data)
    assert data.reads == len(PIXELS)


def test_an_array_that_cannot_be_written_to_is_fine() -> None:
    frozen = PIXELS.copy()
    frozen.flags.writeable = False
    assert torch.equal(Images(8).collect(frozen).take(torch.arange(5)), FIRST)


def test_channels_are_converted() -> None:
    gray = noise(3, 8, 8)
    colored = Images(8).collect(gray).take(torch.arange(3))
    assert torch.equal(colored, torch.from_numpy(gray)[:, None].expand(-1, 3, -1, -1))
    luma = Images(8, 1).collect(PIXELS).take(torch.arange(5))[:, 0]
    pillow = [np.asarray(Image.fromarray(image).convert("L")) for image in PIXELS]
    assert np.array_equal(luma.numpy(), np.stack(pillow))


def test_many_arrays_are_resized_in_chunks() -> None:
    many = np.repeat(noise(1, 12, 16), 1500, axis=0)
    pixels = Images(8, 1).collect(many).pixels
    assert pixels.shape == (1500, 1, 8, 8)
    assert torch.equal(pixels, pixels[:1].expand(1500, -1, -1, -1))
    listed = Images(8, 1).collect(list(many)).pixels
    assert torch.equal(listed, pixels)


def test_arrays_may_differ_in_size_channels_and_type() -> None:
    arrays = [noise(8, 8), noise(9, 12, 3), noise(9, 12, 3, seed=1), noise(3, 8, 8) / 255]
    collection = Images(8).collect([*arrays, Image.fromarray(arrays[0]), arrays[0]])
    alone = [Images(8).collect(array[None]).pixels for array in (*arrays, arrays[0], arrays[0])]
    assert torch.equal(collection.pixels, torch.cat(alone))


def test_pictures_may_differ_in_size_and_mode() -> None:
    images = [
        Image.new("RGB", (20, 30), "red"),
        Image.new("L", (9, 8), 255),
        Image.new("1", (4, 4)),
    ]
    corners = Images(8).collect(images).pixels[:, :, 0, 0].tolist()
    assert corners == [[255, 0, 0], [255, 255, 255], [0, 0, 0]]


def test_a_folder_is_searched_with_all_below_it(tmp_path: Path) -> None:
    names = ["b/zwei bilder/ü ñ 图.PNG", "a.jpg", "b/c.webp"]
    hidden = [".hidden.png", ".cache/x.png", "b/._c.webp"]
    for name in (*names, *hidden):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), "blue").save(path)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "b" / "loop").symlink_to(tmp_path, target_is_directory=True)
    for folder in (tmp_path, str(tmp_path)):
        collection = Images(8).collect(folder)
        found = [Path(file).relative_to(tmp_path).as_posix() for file in collection.files]
        assert found == sorted(names)
        assert collection.background
        assert collection.take(torch.tensor([2])).shape == (1, 3, 8, 8)
    assert len(Images(8).collect(tmp_path / "a.jpg")) == 1


def test_relative_paths_still_work_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    collection = Images(8).collect(["a.png"])
    monkeypatch.chdir(tmp_path.parent)
    assert collection.take(torch.tensor([0])).shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (PIXELS.astype(np.int64), r"uint8 \(0 to 255\) or floating point \(0 to 1\), got int64"),
        (torch.zeros(2, 8, 8, dtype=torch.int32), "got int32: convert"),
        ([PIXELS[0].astype(np.uint16)], "got uint16"),
        (np.array([["a"]]), "got <U1"),
        (PIXELS[0, 0], r"\(n, H, W\), \(n, H, W, C\) or \(n, C, H, W\), got shape \(8, 3\)"),
        (noise(8, 8, 3), r"looks like one image.*: pass images\[None\]"),
        (noise(2, 8, 8, 4), r"shape \(2, 8, 8, 4\), which has neither 1 nor 3 channels"),
        (noise(2, 3, 8, 3), "can be read as two of them"),
        (noise(2, 0, 8), "no pixels"),
        (np.full((2, 8, 8), 3.5), r"lie in \[0, 1\], got 3.5 to 3.5: undo the normalisation"),
        (np.full((2, 8, 8), np.nan), "finite numbers, got nan"),
        (np.full((2, 8, 8), np.inf), "finite numbers, got nan or inf"),
        ([noise(2, 8, 8, 3)], r"item 0 has shape \(2, 8, 8, 3\): an image is \(H, W\)"),
        ([Image.new("F", (8, 8))], "item 0 cannot be used as an image: .*mode F"),
        ([], "there are no images"),
        (noise(0, 8, 8), "there are no images"),
        (Images(4).collect(PIXELS), r"shape \(3, 4, 4\), this domain takes \(3, 8, 8\)"),
        ("no such folder", "no such folder does not exist"),
    ],
)
def test_wrong_images_are_refused(items: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Images(8).collect(items)


@pytest.mark.parametrize(
    ("items", "message"),
    [(3, "or a list of paths, PIL images or arrays, got int"), ([PIXELS[0], 4], "item 1 is int")],
)
def test_what_is_no_image_is_refused(items: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Images(8).collect(items)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no images in .*: looked for \.jpg"):
        Images(8).collect(tmp_path)


def test_prepare_normalises() -> None:
    domain = Images(8, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    expected = (PIXELS / 255 - [0.5, 0.4, 0.3]) / [0.1, 0.2, 0.3]
    prepared = domain.prepare(FIRST)
    assert prepared.dtype == torch.float32
    np.testing.assert_allclose(prepared.permute(0, 2, 3, 1).numpy(), expected, atol=1e-5)


def test_one_number_normalises_all_channels() -> None:
    assert Images(8, mean=0.5, std=0.25) == Images(8, mean=(0.5,) * 3, std=(0.25,) * 3)
    with pytest.raises(TypeError, match=r"mean\[1\] must be a number, got None"):
        Images(8, mean=(0.5, None, 0.5))


def test_views_without_change_are_the_prepared_images() -> None:
    still = ImageViews(scale=(1, 1), ratio=(1, 1), flip=0, jitter_probability=0, grayscale=0)
    domain = Images(8, views=still)
    for view in domain.views(FIRST, Generator().manual_seed(0)):
        torch.testing.assert_close(view, domain.prepare(FIRST), atol=1e-4, rtol=0)


def test_views_differ_repeat_with_the_seed_and_leave_the_batch() -> None:
    domain, before = Images(8), FIRST.clone()
    first, second = domain.views(FIRST, Generator().manual_seed(1))
    again, _ = domain.views(FIRST, Generator().manual_seed(1))
    assert first.shape == second.shape == (5, 3, 8, 8)
    assert torch.equal(first, again)
    assert not torch.isclose(first, second).flatten(1).all(1).any()
    assert torch.equal(FIRST, before)
    joined = domain.join([first, second])
    assert joined.shape == (10, 3, 8, 8)


def test_an_encoder_of_ones_own_keeps_its_weights() -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    domain = Images(8, encoder=own)
    first, second = domain.encoder(), domain.encoder()
    assert first is not own
    assert torch.equal(first[1].weight, own[1].weight)
    with torch.no_grad():
        first[1].weight.zero_()
    assert torch.equal(second[1].weight, own[1].weight)
    made = Images(8, encoder=lambda: nn.Flatten())
    assert isinstance(made.encoder(), nn.Flatten)
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, got int"):
        Images(8, encoder=lambda: 3).encoder()  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 3}, "size must be at least 4, got 3"),
        ({"size": 8, "channels": 4}, r"channels must be 1 \(grey\) or 3 \(colour\), got 4"),
        ({"size": 8, "encoder": "resnet50"}, "'small', or a module of your own, got 'resnet50'"),
        ({"size": 8, "mean": (0.5,)}, "mean must have 3 numbers"),
        ({"size": 8, "channels": 1, "std": (0.0,)}, r"std\[0\] must be at least 1e-06, got 0.0"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Images(**arguments)


def test_domains_are_values() -> None:
    assert Images(8) == Images(8, 3, views=ImageViews())
    assert Images(8) != Images(8, 1)
    assert repr(Images(8, 1)).startswith("Images(size=8, channels=1, encoder='resnet18', views=Im")
    with pytest.raises(AttributeError, match="cannot assign"):
        Images(8).size = 9  # type: ignore[misc]


def test_pack_and_unpack_are_inverse(tmp_path: Path) -> None:
    path = tmp_path / "straße 图.png"
    Image.fromarray(PIXELS[4]).save(path)
    domain = Images(8)
    collection = domain.collect([PIXELS[0], path, PIXELS[2], PIXELS[0]])
    blobs = domain.pack(collection, torch.tensor([3, 1, 0, 2]))
    assert blobs[0] == blobs[2]
    assert len(blobs[0]) == 1 + 192
    assert blobs[1] == b"f" + str(path).encode()
    back = domain.unpack(blobs)
    assert torch.equal(back.take(torch.arange(4)), FIRST[[0, 4, 0, 2]])
    assert domain.pack(back, torch.arange(4)) == blobs
    assert len(domain.unpack([])) == 0


@pytest.mark.parametrize("blob", [b"", b"p", b"p" + bytes(191), b"x" + bytes(192), b"f", b"f\0a"])
def test_damaged_blobs_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match=r"packed item 1 .* is damaged or from another domain"):
        Images(8).unpack([b"p" + bytes(192), blob])


def test_imagenet_pictures(shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "ImageNet-2-tiny.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    domain = Images(32)
    collection = domain.collect(tmp_path)
    assert len(collection) == 1100
    batch = collection.take(torch.arange(64))
    first, _ = domain.views(batch, Generator().manual_seed(0))
    assert domain.encoder().eval()(first[:2]).shape == (2, 512)
    assert 0 < domain.prepare(batch).std() < 2


def test_the_standard_beginning_can_be_asked_for_at_any_size() -> None:
    encoder = Images(32, encoder="resnet18-standard").encoder()
    assert encoder.conv1.weight.shape == (64, 3, 7, 7)
    assert Images(32).encoder().conv1.weight.shape == (64, 3, 3, 3)
    assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, 512)


@pytest.mark.parametrize("how", ["array", "image", "png", "jpg"])
def test_colours_that_are_lost_are_told_once(tmp_path, caplog, how: str) -> None:
    pictures = [Image.fromarray(pixels) for pixels in noise(3, 8, 8, 3)]
    files = [tmp_path / f"{number}.{how}" for number in range(3)]
    for picture, file in zip(pictures, files if how in ("png", "jpg") else [], strict=False):
        picture.save(file)
    items = {"array": noise(3, 8, 8, 3), "image": pictures}.get(how, files)
    note_lost_colours.cache_clear()
    Images(8).collect(items).take(torch.arange(3))
    Images(8, 1).collect([picture.convert("L") for picture in pictures])
    if items is files:
        read_source(tmp_path, check=True)  # only whether they can be read
    assert not caplog.records
    for _ in range(2):
        Images(8, 1).collect(items).take(torch.arange(3))
    (told,) = caplog.messages
    assert "images with 3 channels are made grey" in told
