"""Collections of images: pixels in memory, files decoded when they are taken, or both."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from incontrast.domains.base import Collection, dataset_items, tensor_of
from incontrast.domains.images.files import (
    check_headers,
    decode,
    find_images,
    fit,
    is_coloured,
    note_lost_colours,
)

CACHE_BYTES = 256 * 2**20  # files whose pixels fit into this are decoded once, not at every step
CHUNK = 1024  # images converted at a time, so that large arrays need little memory beside them
DTYPES = ("uint8", "float16", "bfloat16", "float32", "float64")  # that images may have


class ImageCollection(Collection):
    """Images of one size, each a row of one tensor or a file that stays on disk.

    Args:
        pixels: (rows, C, S, S) uint8; also without rows it determines channels and size.
        files: Paths of images, decoded by ``take``.
        on_disk: (n,) whether each item is the next file, or else the next row; by default, all
            rows come first.

    >>> gray = ImageCollection(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    >>> len(gray), gray.background, gray.take(torch.tensor([1])).shape
    (2, False, torch.Size([1, 1, 8, 8]))
    """

    background: bool = False
    """Whether there are files that have not been decoded, or do not fit into the cache."""

    def __init__(
        self, pixels: Tensor, files: Sequence[str] = (), on_disk: Tensor | None = None
    ) -> None:
        self.pixels = pixels
        self.files = tuple(files)
        self.on_disk = torch.arange(len(self)) >= len(pixels) if on_disk is None else on_disk
        self.background = bool(files)
        self._cache: Tensor | None = None  # (files, C, S, S) uint8, filled as they are decoded
        self._in_cache = torch.zeros(len(files), dtype=torch.bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pixels, self.files, self.on_disk)  # a copy has its own cache

    @cached_property
    def _source(self) -> Tensor:
        """(n,) row r as r, file f as -1 - f."""
        return torch.where(self.on_disk, -self.on_disk.cumsum(0), (~self.on_disk).cumsum(0) - 1)

    @property
    def item_bytes(self) -> float:
        return math.prod(self.pixels.shape[1:])

    def sizes(self) -> Tensor:
        """(n,) bytes of each item: its pixels, or only the path of its file (without the cache)."""
        sizes = torch.full((len(self),), self.pixels.shape[1:].numel())
        sizes[self.on_disk] = torch.tensor([len(path) for path in self.files], dtype=torch.int64)
        return sizes

    def __len__(self) -> int:
        return len(self.pixels) + len(self.files)

    def take(self, indices: Tensor) -> Tensor:
        """(n, C, S, S) uint8 pixels of these items; an error if a file is missing or damaged."""
        if not self.files:
            return self.pixels.index_select(0, indices)  # ten times as fast as pixels[indices]
        source = self._source[indices]
        on_disk = source < 0
        batch = self.pixels.new_empty(len(source), *self.pixels.shape[1:])
        batch[~on_disk] = self.pixels[source[~on_disk]]
        batch[on_disk] = self._decoded(-1 - source[on_disk])
        return batch

    def _decoded(self, numbers: Tensor) -> Tensor:
        """The pixels of these files, from the cache if those of all files fit into it."""
        shape = (len(self.files), *self.pixels.shape[1:])
        if math.prod(shape) > CACHE_BYTES:
            return self._read(numbers)
        if self._cache is None:
            self._cache = torch.empty(shape, dtype=torch.uint8)
        missing = numbers[~self._in_cache[numbers]]
        if len(missing):
            self._cache[missing] = self._read(missing)
            self._in_cache[missing] = True
            self.background = not bool(self._in_cache.all())
        return self._cache[numbers]

    def _read(self, numbers: Tensor) -> Tensor:
        channels, size = self.pixels.shape[1:3]
        files = [self.files[number] for number in numbers.tolist()]
        return decode(files, size=size, channels=channels, strict=True)[0]

    def select(self, indices: Tensor) -> Self:
        # Rows are copied, so that a small selection does not keep all pixels alive.
        source, on_disk = self._source[indices], self.on_disk[indices]
        files = [self.files[-1 - place] for place in source[on_disk].tolist()]
        return type(self)(self.pixels[source[~on_disk]], files, on_disk)

    def extend(self, other: Self) -> Self:
        if other.pixels.shape[1:] != self.pixels.shape[1:]:
            raise ValueError(
                f"images must have shape {tuple(self.pixels.shape[1:])} (channels, height, width) "
                f"like the first ones, got {tuple(other.pixels.shape[1:])}: "
                "collect both with the same domain"
            )
        return type(self)(
            torch.cat([self.pixels, other.pixels]),
            self.files + other.files,
            torch.cat([self.on_disk, other.on_disk]),
        )


def read_images(items: Any, size: int, channels: int) -> ImageCollection:
    """The collection of these images; see ``Images.collect`` for what they can be."""
    if isinstance(items, ImageCollection):
        shape = tuple(items.pixels.shape[1:])
        if shape != (channels, size, size):
            raise ValueError(
                f"the collection holds images of shape {shape}, this domain takes "
                f"{(channels, size, size)}: collect the original images with this domain"
            )
        collection = items
    elif isinstance(items, np.ndarray | Tensor):
        collection = ImageCollection(_fit_arrays(_as_tensor(items), size, channels))
    elif isinstance(items, str | Path):
        path = Path(items)
        files = find_images(path) if path.is_dir() else [path]
        collection = _from_sequence(files, size, channels)
    elif isinstance(items, Dataset | list | tuple):
        sequence = dataset_items(items) if isinstance(items, Dataset) else items
        collection = _from_sequence(sequence, size, channels)
    else:
        raise TypeError(
            "images must be an array, a tensor, a folder, a torch Dataset, or a list of paths, "
            f"PIL images or arrays, got {type(items).__name__}"
        )
    if len(collection) == 0:
        raise ValueError("there are no images: the input is empty")
    return collection


def _from_sequence(items: Iterable[Any], size: int, channels: int) -> ImageCollection:
    """Paths, PIL images and arrays in any order; of tuples, the first entry."""
    pixels = [torch.empty(0, channels, size, size, dtype=torch.uint8)]
    files: list[str] = []
    on_disk: list[bool] = []
    arrays: list[Tensor] = []  # waiting to be converted together, which is faster

    def convert_arrays() -> None:
        if arrays:
            pixels.append(_fit_arrays(torch.stack(arrays), size, channels))
            arrays.clear()

    for number, item in enumerate(items):
        image = item[0] if isinstance(item, tuple) and item else item
        on_disk.append(isinstance(image, str | Path))
        if isinstance(image, str | Path):
            files.append(str(Path(image).absolute()))
        elif isinstance(image, Image.Image):
            convert_arrays()
            try:
                upright = ImageOps.exif_transpose(image)
                if channels == 1 and is_coloured(upright):
                    note_lost_colours()
                pixels.append(torch.tensor(fit(upright, size, channels))[None])
            except (OSError, ValueError) as error:
                raise ValueError(f"item {number} cannot be used as an image: {error}") from error
        elif isinstance(image, np.ndarray | Tensor):
            array = _as_tensor(image)
            if array.dim() not in (2, 3):
                raise ValueError(
                    f"item {number} has shape {tuple(array.shape)}: an image is (H, W), (H, W, C) "
                    "or (C, H, W)"
                )
            last = arrays[-1] if arrays else array
            if len(arrays) == CHUNK or (array.shape, array.dtype) != (last.shape, last.dtype):
                convert_arrays()
            arrays.append(array.clone())  # a Dataset may use one buffer for all its items
        else:
            raise TypeError(
                f"item {number} is {type(image).__name__}: an image is a path, a PIL image, "
                "an array or a tensor, or a tuple that begins with one"
            )
    convert_arrays()
    check_headers(files)
    return ImageCollection(torch.cat(pixels), files, torch.tensor(on_disk, dtype=torch.bool))


def _as_tensor(array: np.ndarray[Any, Any] | Tensor) -> Tensor:
    """The array as a tensor on the CPU, without a copy where that is possible."""
    dtype = array.dtype if isinstance(array, Tensor) else array.dtype.newbyteorder("=")
    kind = str(dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise ValueError(
            f"images must be uint8 (0 to 255) or floating point (0 to 1), got {kind}: convert them"
        )
    return array.detach().cpu() if isinstance(array, Tensor) else tensor_of(array)


def _fit_arrays(images: Tensor, size: int, channels: int) -> Tensor:
    """(n, channels, size, size) uint8 pixels of images; what fits already is not copied."""
    images = _channels_first(images)
    if images.dtype == torch.uint8 and images.shape[1:] == (channels, size, size):
        return images.contiguous()
    pixels = torch.empty(len(images), channels, size, size, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        chunk = _to_bytes(images[start : start + CHUNK])
        if chunk.shape[1] != channels:
            chunk = _luma(chunk) if channels == 1 else chunk.expand(-1, 3, -1, -1)
        pixels[start : start + CHUNK] = _resized(chunk, size)
    return pixels


def _channels_first(images: Tensor) -> Tensor:
    """(n, H, W), (n, H, W, C) or (n, C, H, W), checked, as a (n, C, H, W) view."""
    shape = tuple(images.shape)
    first = len(shape) == 4 and shape[1] in (1, 3)
    last = len(shape) == 4 and shape[3] in (1, 3)
    problem = ""
    if len(shape) not in (3, 4):
        problem = f"has {len(shape)} dimensions"
    elif len(shape) == 3 and shape[2] in (1, 3):
        problem = "looks like one image: pass images[None]"
    elif len(shape) == 4 and not (first or last):
        problem = "has neither 1 nor 3 channels: leave other channels out"
    elif first and last:
        problem = "can be read as two of them: images must be larger than 3 pixels"
    elif 0 in shape[1:]:
        problem = "has no pixels"
    if problem:
        shapes = "(n, H, W), (n, H, W, C) or (n, C, H, W)"
        raise ValueError(f"images must be {shapes}, got shape {shape}, which {problem}")
    if len(shape) == 3:
        return images[:, None]
    return images if first else images.permute(0, 3, 1, 2)


def _to_bytes(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    low, high = images.min().item(), images.max().item()
    if not math.isfinite(low + high):
        raise ValueError("images must be finite numbers, got nan or infinite: fix or remove them")
    if low < 0 or high > 1:
        raise ValueError(
            f"floating point images must lie in [0, 1], got {low:.4g} to {high:.4g}: undo the "
            "normalisation (x * std + mean), which the domain does itself"
        )
    return (images.float() * 255).round_().to(torch.uint8)


def _luma(images: Tensor) -> Tensor:
    """Grey images, by Pillow's integers, so that arrays and files give exactly the same pixels."""
    note_lost_colours()
    red, green, blue = images.to(torch.int32).unbind(1)
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma.to(torch.uint8)[:, None]


def _resized(images: Tensor, size: int) -> Tensor:
    """The centred square of each image, resized, as ``files.fit`` does it."""
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, :, top : top + side, left : left + side]
    if side == size:
        return square
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True)
