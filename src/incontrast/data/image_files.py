"""Image files, some of which may be damaged: what can be read, what cannot, what they are like."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from incontrast.domains.images.collection import FORMATS, decode

__all__ = ["Skipped", "Typical", "readable_images", "typical_image"]

LOOKED_AT = 64  # images that tell what a folder is like
LARGEST = 224  # pixels that a side has at most unless it is asked for
SMALLEST = 8


class Skipped(NamedTuple):
    """A file that was left out."""

    file: str
    reason: str


class Typical(NamedTuple):
    """What most images of a source are like."""

    size: int
    channels: int


def readable_images(
    files: Sequence[str], *, size: int, channels: int, strict: bool = False, keep: bool = True
) -> tuple[Tensor, tuple[Skipped, ...]]:
    """The pixels of those files that can be read, and the others with the reason.

    Args:
        files: Paths.
        size: Side in pixels that images are brought to.
        channels: 1 or 3.
        strict: Refuse a file that cannot be read.
        keep: Without it the pixels are thrown away again: files are only tried.

    Returns:
        (n, channels, size, size) uint8 of the readable ones in order, and what was left out.
    """
    pixels = torch.empty(len(files) if keep else 0, channels, size, size, dtype=torch.uint8)

    def read(number: int) -> str | None:
        try:
            image = decode(files[number], size, channels)
        except ValueError as error:
            return str(error)
        if keep:
            pixels.numpy()[number] = image
        return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        reasons = list(pool.map(read, range(len(files)), chunksize=16))
    skipped = tuple(
        Skipped(file, reason) for file, reason in zip(files, reasons, strict=True) if reason
    )
    if skipped and strict:
        raise ValueError(skipped[0].reason)
    if skipped and keep:
        pixels = pixels[torch.tensor([reason is None for reason in reasons])]
    return pixels, skipped


def typical_image(files: Sequence[str]) -> Typical:
    """Size and channels that fit most images: the median shorter side, and grey if all are.

    Raises:
        ValueError: None of the images looked at can be read.
    """
    stride = -(-len(files) // LOOKED_AT)
    sides, grey = [], True
    for file in files[::stride]:
        try:
            with Image.open(file, formats=FORMATS) as image:
                sides.append(min(image.size))
                grey = grey and image.mode in ("1", "L", "I;16")
        except Exception:  # damaged files make Pillow raise nearly anything; they are named later
            continue
    if not sides:
        raise ValueError(f"{files[0]} and others cannot be read as images: give other files")
    median = sorted(sides)[len(sides) // 2]
    return Typical(min(max(median, SMALLEST), LARGEST), 1 if grey else 3)
