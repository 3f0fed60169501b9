"""Collections of images: in memory, on disk, both, and what can be wrong with files."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from incontrast.domains.images.collection import ImageCollection
from incontrast.domains.images.domain import Images
from incontrast.domains.images.files import fit


def decode(path: str, size: int, channels: int) -> NDArray[np.uint8]:
    """(C, S, S) pixels of a file, as a collection takes them."""
    collection = Images(size, channels).collect([path])
    return collection.take(torch.tensor([0]))[0].numpy()


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photograph(height: int, width: int) -> NDArray[np.uint8]:
    """Smooth colours, which a JPEG keeps."""
    y, x = np.mgrid[0:height, 0:width]
    colors = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return np.stack(colors, axis=-1).astype(np.uint8)


@pytest.fixture
def mixed(tmp_path: Path) -> ImageCollection:
    """Items 0 and 1 in memory, 2 and 3 on disk, 4 in memory."""
    domain = Images(8)
    for name in ("c", "d"):
        Image.fromarray(noise(8, 8, 3, seed=ord(name))).save(tmp_path / f"{name}.png")
    first = domain.collect(noise(2, 8, 8, 3, seed=1))
    files = domain.collect([tmp_path / "c.png", tmp_path / "d.png"])
    return first.extend(files).extend(domain.collect(noise(1, 8, 8, 3, seed=2)))


def expected_rows() -> NDArray[np.uint8]:
    rows = [
        noise(2, 8, 8, 3, seed=1),
        noise(1, 8, 8, 3, seed=ord("c")),
        noise(1, 8, 8, 3, seed=ord("d")),
        noise(1, 8, 8, 3, seed=2),
    ]
    return np.concatenate(rows).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("indices", [[0, 1, 2, 3, 4], [3, 0, 3, 4, 2], [1], [2], []])
def test_take_and_select_agree_with_indexing(mixed: ImageCollection, indices: list[int]) -> None:
    chosen = torch.tensor(indices, dtype=torch.int64)
    expected = torch.from_numpy(expected_rows()[indices])
    assert torch.equal(mixed.take(chosen), expected)
    selected = mixed.select(chosen)
    assert len(selected) == len(indices)
    assert selected.background == any(index in (2, 3) for index in indices)
    assert torch.equal(selected.take(torch.arange(len(indices))), expected)


def test_sizes_count_what_is_in_memory(mixed: ImageCollection) -> None:
    path = len(mixed.files[0])
    assert mixed.sizes().tolist() == [192, 192, path, path, 192]
    assert mixed.nbytes == 3 * 192 + 2 * path
    assert mixed.select(torch.tensor([4])).nbytes == 192


def test_extend_leaves_both_as_they_are(mixed: ImageCollection) -> None:
    other = mixed.select(torch.tensor([3, 1]))
    joined = other.extend(mixed)
    assert (len(other), len(mixed), len(joined)) == (2, 5, 7)
    everything = torch.from_numpy(expected_rows()[[3, 1, 0, 1, 2, 3, 4]])
    assert torch.equal(joined.take(torch.arange(7)), everything)


def test_extend_refuses_another_size(mixed: ImageCollection) -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\).*got \(1, 8, 8\): collect both"):
        mixed.extend(Images(8, 1).collect(noise(1, 8, 8)))


def test_files_are_decoded_like_their_arrays(tmp_path: Path) -> None:
    pixels = noise(2, 20, 31, 3)
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    for channels in (1, 3):
        domain = Images(12, channels)
        everything = torch.arange(2)
        decoded = domain.collect(paths).take(everything)
        arrays = domain.collect(pixels).take(everything)
        assert decoded.shape == (2, channels, 12, 12)
        assert (decoded.int() - arrays.int()).abs().max() <= 1  # two libraries, two roundings


def test_a_resized_image_is_the_centred_square() -> None:
    wide = np.zeros((10, 30), dtype=np.uint8)
    wide[:, 10:20] = 200
    assert (fit(Image.fromarray(wide), 5, 1) == 200).all()


def test_a_greyscale_jpeg_becomes_colour_and_back(tmp_path: Path) -> None:
    path = tmp_path / "grey.jpg"
    Image.fromarray(photograph(40, 40)).convert("L").save(path, quality=95)
    red, green, blue = decode(str(path), 16, 3)
    assert np.array_equal(red, green)
    assert np.array_equal(red, blue)
    assert np.array_equal(decode(str(path), 16, 1)[0], red)


def test_a_colour_jpeg_becomes_luma(tmp_path: Path) -> None:
    path = tmp_path / "colour.jpg"
    pixels = photograph(64, 64)
    Image.fromarray(pixels).save(path, quality=98, subsampling=0)
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decode(str(path), 64, 1)[0] - luma).max() < 5


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    pixels = photograph(640, 800)
    Image.fromarray(pixels).save(path, quality=95)
    expected = fit(Image.fromarray(pixels), 32, 3)
    assert np.abs(decode(str(path), 32, 3).astype(int) - expected).max() < 8


def test_exif_orientation_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    upright = photograph(32, 32)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    lying = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    lying.save(path, quality=98, subsampling=0, exif=exif)
    difference = decode(str(path), 32, 3).transpose(1, 2, 0).astype(int) - upright
    assert np.abs(difference).max() < 8
    with Image.open(path) as image:
        from_memory = Images(32).collect([image]).pixels[0].permute(1, 2, 0).numpy()
    assert np.abs(from_memory.astype(int) - upright).max() < 8


def test_transparent_parts_become_white_and_palettes_colours(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 4), dtype=np.uint8)
    pixels[:, 4:] = (255, 0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    Image.fromarray(pixels).save(tmp_path / "alpha.gif")
    Image.fromarray(pixels[..., :3]).quantize(4).save(tmp_path / "palette.png")
    for name, left in (("alpha.png", 255), ("alpha.gif", 255), ("palette.png", 0)):
        image = decode(str(tmp_path / name), 8, 3)
        assert image[:, 0, 0].tolist() == [left] * 3, name
        assert image[:, 0, 7].tolist() == [255, 0, 0], name


def test_sixteen_bits_become_eight_and_floats_are_refused(tmp_path: Path) -> None:
    deep = (noise(8, 8).astype(np.uint16) << 8) + 7
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(decode(str(tmp_path / "deep.png"), 8, 1)[0], deep >> 8)
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match=r"float\.tif .*mode F.* have no fixed range"):
        decode(str(tmp_path / "float.tif"), 8, 1)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_truncated_file_is_named_when_it_is_taken(tmp_path: Path, suffix: str) -> None:
    good, bad = tmp_path / f"good.{suffix}", tmp_path / f"bad.{suffix}"
    Image.fromarray(noise(64, 64, 3)).save(good)
    bad.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    collection = Images(32).collect([good, bad, good])  # the header is fine
    with pytest.raises(ValueError, match=rf"bad\.{suffix} cannot be read.*truncated.*Replace"):
        collection.take(torch.arange(3))


def test_bad_headers_are_known_before_training(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "folder.jpg").mkdir()
    for name, reason in (("empty", "it is empty"), ("text", "identify"), ("folder", "not a file")):
        path = tmp_path / f"{name}.jpg"
        with pytest.raises(
            ValueError, match=rf"{name}\.jpg cannot be read as an image: .*{reason}"
        ):
            Images(32).collect([path])
    with pytest.raises(ValueError, match=r"gone\.jpg does not exist"):
        Images(32).collect([tmp_path / "gone.jpg"])


@pytest.mark.parametrize("limit", [100, 1000])  # far above, where Pillow raises; above, it warns
def test_decompression_bombs_are_refused(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("L", (40, 40)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError, match=rf"bomb\.png is larger than the {limit} pixels"):
        Images(8).collect([path])


def test_few_files_are_decoded_once_and_many_at_every_step(tmp_path, monkeypatch) -> None:
    for number in range(4):
        Image.fromarray(noise(8, 8, 3, seed=number)).save(tmp_path / f"{number}.png")
    collection = Images(8).collect(str(tmp_path))
    first = collection.take(torch.tensor([2, 0]))
    for name in ("0.png", "2.png"):
        (tmp_path / name).unlink()
    assert torch.equal(collection.take(torch.tensor([0, 2])), first.flip(0))
    assert torch.equal(collection.take(torch.tensor([3, 2]))[1], first[0])
    assert collection.background
    collection.take(torch.tensor([1]))
    assert not collection.background  # nothing is left to be read
    assert collection.item_bytes == 3 * 8 * 8
    monkeypatch.setattr("incontrast.domains.images.collection.CACHE_BYTES", 4 * 3 * 8 * 8 - 1)
    with pytest.raises(ValueError, match=r"0\.png"):
        collection.take(torch.tensor([0]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_decodes_files(tmp_path) -> None:
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / "0.png")
    path = str(tmp_path / "0.png")
    decode(path, 8, 3)  # starts the threads, which a child does not have
    process = multiprocessing.get_context("fork").Process(target=decode, args=(path, 8, 3))
    process.start()
    process.join(60)
    assert process.exitcode == 0
