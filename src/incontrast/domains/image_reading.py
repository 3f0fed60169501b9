"""Whatever users have that is images, brought into an ImageCollection."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from incontrast.domains.image_collection import ImageCollection, check_files, fit

__all__ = ["find_images", "is_image", "read_images"]

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_CHUNK = 1024  # images converted or resized at a time, so that large inputs need little memory
_NUMPY_TO_TORCH = {"u1", "f2", "f4", "f8"}


def read_images(items: Any, size: int, channels: int) -> ImageCollection:
    """The collection of these images; see ``Images.collect`` for what they can be."""
    if isinstance(items, ImageCollection):
        expected = (channels, size, size)
        if items.pixels.shape[1:] != expected:
            raise ValueError(
                f"the collection holds images of shape {tuple(items.pixels.shape[1:])}, this "
                f"domain takes {expected}: collect the original images with this domain"
            )
        collection = items
    elif isinstance(items, str | Path):
        path = Path(items)
        collection = _from_stream(find_images(path) if path.is_dir() else [path], size, channels)
    elif isinstance(items, np.ndarray | Tensor):
        pixels = _channels_first(_as_tensor(items))
        collection = ImageCollection(_fit_pixels(pixels, size, channels))
    elif isinstance(items, Dataset):
        collection = _from_stream(_each(items), size, channels)
    elif isinstance(items, list | tuple):
        collection = _from_stream(items, size, channels)
    else:
        raise TypeError(
            "images must be an array, a tensor, a folder, a torch Dataset, or a list of paths, "
            f"PIL images or arrays, got {type(items).__name__}"
        )
    if len(collection) == 0:
        raise ValueError("there are no images: the input is empty")
    return collection


def find_images(root: str | Path) -> list[str]:
    """All image files under a folder, sorted by name. Hidden files and folders are left out.

    Links to folders are followed, but no folder is entered twice.

    Raises:
        ValueError: There is no such folder, or no image in it.
    """
    root = Path(root).absolute()
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    found: list[str] = []
    entered: set[str] = set()
    for folder, below, names in os.walk(root, onerror=_stop, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            below.clear()
            continue
        entered.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        found += [
            os.path.join(folder, name)  # noqa: PTH118 (a Path for each of a million files is slow)
            for name in names
            if is_image(name)
        ]
    if not found:
        raise ValueError(f"there are no images in {root}: looked for {' '.join(_SUFFIXES)}")
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file of this name is an image; hidden ones are not."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(".")


def _stop(error: OSError) -> None:
    raise error  # os.walk would leave out a folder that it may not read


def _from_stream(items: Iterable[Any], size: int, channels: int) -> ImageCollection:
    """Images of any kind, each looked at once."""
    pixels = [torch.empty(0, channels, size, size, dtype=torch.uint8)]
    files: list[str] = []
    source: list[int] = []
    waiting: list[Tensor] = []  # arrays, to be converted together
    shape: tuple[int, ...] | None = None
    rows = 0

    def convert_waiting() -> None:
        if waiting:
            pixels.append(_fit_pixels(_channels_first(torch.stack(waiting)), size, channels))
            waiting.clear()

    for number, item in enumerate(items):
        image = item[0] if isinstance(item, tuple) and item else item
        if isinstance(image, str | Path):
            files.append(str(Path(image).absolute()))
            source.append(-len(files))
            continue
        if isinstance(image, Image.Image):
            convert_waiting()
            pixels.append(_fit_picture(image, size, channels, number))
        elif isinstance(image, np.ndarray | Tensor):
            array = _as_tensor(image)
            shape = shape or tuple(array.shape)
            _check_array(array, shape, number)
            waiting.append(array)
            if len(waiting) == _CHUNK:
                convert_waiting()
        else:
            raise TypeError(
                f"item {number} is {type(image).__name__}: an image is a path, a PIL image, "
                "an array or a tensor, or a tuple that begins with one"
            )
        source.append(rows)
        rows += 1
    convert_waiting()
    check_files(files)
    return ImageCollection(torch.cat(pixels), files, torch.tensor(source, dtype=torch.int64))


def _each(dataset: Dataset[Any]) -> Iterator[Any]:
    # Not every Dataset ends its own iteration with an IndexError.
    if isinstance(dataset, IterableDataset):
        yield from dataset
    else:
        for index in range(len(dataset)):  # type: ignore[arg-type]
            yield dataset[index]


def _as_tensor(array: np.ndarray[Any, Any] | Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    if array.dtype.str[1:] not in _NUMPY_TO_TORCH:
        raise ValueError(_DTYPE.format(array.dtype))
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


_DTYPE = (
    "images must be uint8 (0 to 255) or floating point (0 to 1), got {}: "
    "convert them, for example with .astype('uint8')"
)


def _check_array(array: Tensor, shape: tuple[int, ...], number: int) -> None:
    if array.dim() not in (2, 3):
        raise ValueError(
            f"item {number} has shape {tuple(array.shape)}: an image is (H, W), (H, W, C) or "
            "(C, H, W)"
        )
    if tuple(array.shape) != shape:
        raise ValueError(
            f"item {number} has shape {tuple(array.shape)} where the first array has {shape}: "
            "arrays must share one size and number of channels; resize them, or pass PIL images "
            "or files, which may differ"
        )


def _channels_first(images: Tensor) -> Tensor:
    """(n, H, W), (n, H, W, C) or (n, C, H, W), checked, as a (n, C, H, W) view."""
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(_DTYPE.format(str(images.dtype).removeprefix("torch.")))
    shape = tuple(images.shape)
    if images.dim() == 3:
        images = images[:, None]
    elif images.dim() == 4:
        first, last = shape[1] in (1, 3), shape[3] in (1, 3)
        if first and last:
            raise ValueError(
                f"shape {shape} can be read as (n, C, H, W) and as (n, H, W, C): "
                "images must be larger than 3 pixels"
            )
        if not (first or last):
            raise ValueError(
                f"images must have 1 or 3 channels, got shape {shape}: "
                "leave other channels (alpha) out"
            )
        images = images if first else images.permute(0, 3, 1, 2)
    else:
        raise ValueError(
            f"images must be (n, H, W), (n, H, W, C) or (n, C, H, W), got shape {shape}"
        )
    if images.shape[2] == 0 or images.shape[3] == 0:
        raise ValueError(f"images have no pixels: got shape {shape}")
    return images


def _fit_picture(image: Image.Image, size: int, channels: int, number: int) -> Tensor:
    try:
        return torch.tensor(fit(ImageOps.exif_transpose(image), size, channels))[None]
    except (OSError, ValueError) as error:
        raise ValueError(f"item {number} cannot be used as an image: {error}") from error


def _fit_pixels(images: Tensor, size: int, channels: int) -> Tensor:
    """(n, C, S, S) uint8 from (n, c, H, W); what fits already is kept, not copied."""
    if images.dtype == torch.uint8 and images.shape[1:] == (channels, size, size):
        return images.contiguous()
    pixels = torch.empty(len(images), channels, size, size, dtype=torch.uint8)
    for start in range(0, len(images), _CHUNK):
        chunk = _to_bytes(images[start : start + _CHUNK])
        pixels[start : start + _CHUNK] = _resized(_with_channels(chunk, channels), size)
    return pixels


def _to_bytes(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    low, high = images.min().item(), images.max().item()
    if not math.isfinite(low + high):
        raise ValueError("images must be finite numbers, got nan or infinite: mend or remove them")
    if low < 0 or high > 1:
        raise ValueError(
            f"floating point images must lie in [0, 1], got {low:.4g} to {high:.4g}: undo the "
            "normalisation (x * std + mean), or scale them; the domain normalises by itself"
        )
    return (images.float() * 255).round_().to(torch.uint8)


def _with_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    red, green, blue = images.to(torch.int32).unbind(1)
    # The whole numbers by which Pillow makes luma, so that arrays and files agree to the bit.
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma.to(torch.uint8)[:, None]


def _resized(images: Tensor, size: int) -> Tensor:
    """The centred square of each image, resized, as :func:`image_collection.fit` does it."""
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, :, top : top + side, left : left + side]
    if side == size:
        return square
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True)
