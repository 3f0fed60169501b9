"""Images in columns: pixels in memory, files decoded when they are taken, or both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

__all__ = ["ImageCollection", "check_files", "decode", "fit"]

# By content, whatever the name says: some of Pillow's other formats start programs to decode them.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")

_A = TypeVar("_A")
_R = TypeVar("_R")


class ImageCollection:
    """Images of one size, each a row of one tensor or a file that stays on disk.

    Args:
        pixels: (rows, C, S, S) uint8; without rows it still tells channels and size.
        files: Paths of images, decoded by ``take``.
        source: (n,) int64, where each item is: r for row r of ``pixels``, -1 - f for file f.
            All rows and then all files, unless given.

    >>> gray = ImageCollection(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    >>> len(gray), gray.background, gray.take(torch.tensor([1])).shape
    (2, False, torch.Size([1, 1, 8, 8]))
    """

    def __init__(
        self, pixels: Tensor, files: Sequence[str] = (), source: Tensor | None = None
    ) -> None:
        self.pixels = pixels
        self.files = tuple(files)
        if source is None:
            source = torch.cat([torch.arange(len(pixels)), -1 - torch.arange(len(self.files))])
        self.source = source

    @property
    def background(self) -> bool:
        return bool(self.files)

    @property
    def nbytes(self) -> int:
        return int(self.sizes().sum())

    def sizes(self) -> Tensor:
        """(n,) bytes in memory of each item: its pixels, or only the path of its file."""
        sizes = torch.full((len(self),), self.pixels.shape[1:].numel())
        paths = torch.tensor([len(path) for path in self.files], dtype=torch.int64)
        on_disk = self.source < 0
        sizes[on_disk] = paths[-1 - self.source[on_disk]]
        return sizes

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Tensor:
        """(n, C, S, S) uint8 pixels of these items.

        Raises:
            ValueError: A file is missing or damaged.
        """
        source = self.source[indices]
        if not self.files:
            return self.pixels.index_select(0, source)  # ten times as fast as pixels[source]
        channels, size = self.pixels.shape[1:3]
        on_disk = source < 0
        batch = self.pixels.new_empty(len(source), channels, size, size)
        batch[~on_disk] = self.pixels[source[~on_disk]]
        read = partial(decode, size=size, channels=channels)
        rows = on_disk.nonzero().squeeze(1).tolist()
        for row, image in zip(rows, _in_threads(read, self._paths(source[on_disk])), strict=True):
            batch.numpy()[row] = image
        return batch

    def select(self, indices: Tensor) -> Self:
        # Rows are copied, so that a small selection does not keep all pixels alive.
        source = self.source[indices]
        on_disk = source < 0
        places = torch.where(on_disk, -on_disk.long().cumsum(0), (~on_disk).long().cumsum(0) - 1)
        return type(self)(self.pixels[source[~on_disk]], self._paths(source[on_disk]), places)

    def extend(self, other: Self) -> Self:
        if other.pixels.shape[1:] != self.pixels.shape[1:]:
            raise ValueError(
                f"images must have shape {tuple(self.pixels.shape[1:])} (channels, height, width) "
                f"like the first ones, got {tuple(other.pixels.shape[1:])}: "
                "collect both with the same domain"
            )
        shifted = torch.where(
            other.source < 0, other.source - len(self.files), other.source + len(self.pixels)
        )
        return type(self)(
            torch.cat([self.pixels, other.pixels]),
            self.files + other.files,
            torch.cat([self.source, shifted]),
        )

    def _paths(self, source: Tensor) -> list[str]:
        return [self.files[-1 - place] for place in source.tolist()]


def decode(path: str, size: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(C, S, S) pixels of a file: turned upright as its EXIF tells, then as ``fit`` does it.

    Raises:
        ValueError: The file is missing, damaged, no image, or too large to be one.
    """
    return _reading(path, lambda image: _decoded(image, size, channels))


def check_files(paths: Sequence[str]) -> None:
    """Read the header of every file, so that a bad one is known before training begins.

    Raises:
        ValueError: A file is missing, empty, no image, or too large to be one.
    """
    # In portions: one future per file would cost more memory than the paths.
    portions = [paths[start : start + 256] for start in range(0, len(paths), 256)]
    _in_threads(_check_headers, portions)


def fit(image: Image.Image, size: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(C, S, S) pixels: the centred square of the image, resized (bilinear, antialiased).

    That is the shorter side brought to S, then a centre crop. Transparent parts become white,
    colours become luma where one channel is asked for, 16 bits become 8.
    """
    image = _convert(image, "L" if channels == 1 else "RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    if side != size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _decoded(image: Image.Image, size: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice the size asked for is left to
    # the better filter of fit().
    image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)
    return fit(image, size, channels)


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no fixed range: save it with 8 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def _check_headers(paths: Sequence[str]) -> None:
    for path in paths:
        _reading(path, lambda image: None)


def _reading(path: str, use: Callable[[Image.Image], _R]) -> _R:
    """Open a file and use it; whatever is wrong with it becomes a ValueError that names it."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise Image.DecompressionBombError(f"{image.width}×{image.height} pixels")
            return use(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(
            f"{path} is larger than the {Image.MAX_IMAGE_PIXELS} pixels that Pillow takes for safe "
            f"({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist: was it moved or deleted?") from error
    except Exception as error:  # damaged files make Pillow raise nearly anything
        reason = "it is empty" if _is_empty(path) else str(error) or type(error).__name__
        raise ValueError(
            f"{path} cannot be read as an image: {reason}. Replace or remove the file"
        ) from error


def _is_empty(path: str) -> bool:
    try:
        return Path(path).stat().st_size == 0
    except OSError:
        return False


def _in_threads(function: Callable[[_A], _R], items: Iterable[_A]) -> list[_R]:
    """The results in order. Pillow lets other threads run while it decodes."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(function, items))
