"""Whatever users have that is images, brought into an ImageCollection."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from incontrast.domains.base import dataset_items
from incontrast.domains.images.arrays import CHUNK, as_tensor, fit_arrays
from incontrast.domains.images.collection import ImageCollection, check_files, fit

__all__ = ["find_images", "is_image", "read_images"]

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


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
        collection = ImageCollection(fit_arrays(as_tensor(items), size, channels))
    elif isinstance(items, Dataset):
        collection = _from_stream(dataset_items(items), size, channels)
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
    first: Tensor | None = None
    rows = 0

    def convert_waiting() -> None:
        if waiting:
            pixels.append(fit_arrays(torch.stack(waiting), size, channels))
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
            array = as_tensor(image)
            first = array if first is None else first
            _check_array(array, first, number)
            waiting.append(array.clone())  # a Dataset may use one buffer for all its items
            if len(waiting) == CHUNK:
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


def _check_array(array: Tensor, first: Tensor, number: int) -> None:
    if array.dim() not in (2, 3):
        raise ValueError(
            f"item {number} has shape {tuple(array.shape)}: an image is (H, W), (H, W, C) or "
            "(C, H, W)"
        )
    if array.shape != first.shape or array.dtype != first.dtype:
        raise ValueError(
            f"item {number} has shape {tuple(array.shape)} and type {array.dtype} where the first "
            f"array has {tuple(first.shape)} and {first.dtype}: arrays must share one size, number "
            "of channels and type; resize them, or pass PIL images or files, which may differ"
        )


def _fit_picture(image: Image.Image, size: int, channels: int, number: int) -> Tensor:
    try:
        return torch.tensor(fit(ImageOps.exif_transpose(image), size, channels))[None]
    except (OSError, ValueError) as error:
        raise ValueError(f"item {number} cannot be used as an image: {error}") from error
