"""Image files: finding, checking and decoding them, where some may be damaged."""

import io
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

T = TypeVar("T")

log = logging.getLogger(__name__)

# Recognised by content, not by name. Some of Pillow's other formats run programs to decode files.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SAMPLE = 64  # files that determine the typical image of a folder
SMALLEST, LARGEST = 8, 224  # pixels of a typical image's side
GREY = ("1", "L", "LA", "La", "P", "PA")  # modes; a palette may be all grey


class Skipped(NamedTuple):
    file: str
    reason: str


def find_images(root: str | Path) -> list[str]:
    """All image files under a folder, sorted by name. Hidden files and folders are left out.

    Links to folders are followed, but no folder is entered twice.
    """
    root = Path(root).absolute()
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")

    def stop(error: OSError) -> None:  # os.walk leaves out a folder that it may not read
        raise error

    files: list[str] = []
    entered: set[str] = set()
    for folder, below, names in os.walk(root, onerror=stop, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            below.clear()
            continue
        entered.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        files += [
            os.path.join(folder, name)  # noqa: PTH118 (a Path for each of a million files is slow)
            for name in names
            if is_image(name)
        ]
    if not files:
        raise ValueError(f"there are no images in {root}: looked for {' '.join(SUFFIXES)}")
    return sorted(files)


def is_image(name: str) -> bool:
    """Whether a file of this name is an image; hidden ones are not."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def typical_image(files: Sequence[str]) -> tuple[int, int]:
    """Size and channels that fit most images: the median shorter side, and grey if all are."""
    sides, grey, errors = [], [], []
    stride = -(-len(files) // SAMPLE)
    for file in files[::stride]:
        try:
            with _opened(file) as image:
                side, mode = min(image.size), image.mode
                image.draft("L", (2 * SMALLEST, 2 * SMALLEST))
                image.load()  # to its end: a header may be whole where the rest is not
        except ValueError as error:
            errors.append(error)
        else:
            sides.append(side)
            grey.append(mode in ("1", "L", "I;16"))
    if not sides:
        raise ValueError(f"none of {len(errors)} images can be read; the first: {errors[0]}")
    median = sorted(sides)[len(sides) // 2]
    return min(max(median, SMALLEST), LARGEST), 1 if all(grey) else 3


def decode(
    sources: Sequence[str | bytes],
    *,
    size: int,
    channels: int,
    strict: bool = False,
    keep: bool = True,
) -> tuple[Tensor, tuple[Skipped, ...]]:
    """(n, C, S, S) uint8 pixels of files, or of contents of files, and those left out.

    Images are turned upright by their EXIF orientation, then squared by ``fit``. What is missing,
    damaged, no image, or too large is left out; an error if ``strict``. Without ``keep``, images
    are decoded only to find those that cannot be.
    """
    pixels = torch.empty(len(sources) if keep else 0, channels, size, size, dtype=torch.uint8)
    coloured = [False] * len(sources)

    def read(number: int) -> str | None:
        try:
            with _opened(sources[number], f"image {number}") as image:
                coloured[number] = is_coloured(image)
                # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size: here at twice the final
                # size or more, so that the better filter of fit() does the rest.
                image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
                ImageOps.exif_transpose(image, in_place=True)
                result = fit(image, size, channels)
        except ValueError as error:
            return str(error)
        if keep:
            pixels.numpy()[number] = result
        return None

    reasons = _in_threads(read, len(sources))
    if keep and channels == 1 and any(coloured):
        note_lost_colours()
    skipped = tuple(
        Skipped(source if isinstance(source, str) else f"image {number}", reason)
        for number, (source, reason) in enumerate(zip(sources, reasons, strict=True))
        if reason
    )
    if skipped and strict:
        raise ValueError(skipped[0].reason)
    if skipped and keep:
        pixels = pixels[torch.tensor([reason is None for reason in reasons])]
    return pixels, skipped


def check_headers(files: Sequence[str]) -> None:
    """Raise an error if the header of a file cannot be read."""

    def check(number: int) -> None:
        with _opened(files[number]):
            pass

    _in_threads(check, len(files))


def _in_threads(function: Callable[[int], T], count: int) -> list[T]:
    """The results for 0 to ``count``, in order. Pillow decodes without Python's lock."""
    # In chunks: one future per file would need more memory than the paths.
    size = 256 if count >= 256 else 1
    chunks = [range(count)[start : start + size] for start in range(0, count, size)]
    results = _pool().map(lambda chunk: [function(number) for number in chunk], chunks)
    return [result for part in results for result in part]


@cache
def _pool() -> ThreadPoolExecutor:
    """One pool for all batches: starting threads takes longer than decoding a small file."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="incontrast-decode")


if hasattr(os, "register_at_fork"):  # a child process has none of these threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def printable(path: str) -> str:
    r"""A path that can be written as UTF-8, whatever bytes the names of files have.

    >>> printable(os.fsdecode(b"caf\xe9.png"))
    'caf\\xe9.png'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextmanager
def _opened(source: str | bytes, name: str = "") -> Iterator[Image.Image]:
    """Open an image file, or the content of one; what fails, in the block too, is a ValueError."""
    try:
        file: str | io.BytesIO
        if isinstance(source, bytes):
            file, length = io.BytesIO(source), len(source)
        else:
            file, name = source, printable(source)
            status = os.stat(source)  # noqa: PTH116 (a Path for each of a million files is slow)
            if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device might never end
                raise ValueError("it is not a file")
            length = status.st_size
        if length == 0:
            raise ValueError("it is empty")
        with Image.open(file, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise Image.DecompressionBombError(f"{image.width}×{image.height} pixels")
            yield image
    except FileNotFoundError as error:
        raise ValueError(f"{name} does not exist: was it moved or deleted?") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(
            f"{name} is larger than the {Image.MAX_IMAGE_PIXELS} pixels that Pillow takes for safe "
            f"({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except Exception as error:  # damaged files make Pillow raise nearly anything
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError) and isinstance(source, bytes):
            reason = "it has none of the formats that are read"  # Pillow names an address in memory
        message = f"{name} cannot be read as an image: {reason}. Replace or remove it"
        raise ValueError(message) from error


def fit(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
    """(C, S, S) pixels: the centred square of the image, resized (bilinear, antialiased).

    Transparent parts become white; with one channel, colours become luma; 16 bits become 8.
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no fixed range: save it with 8 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    if side != size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def is_coloured(image: Image.Image) -> bool:
    return image.mode not in GREY and not image.mode.startswith(("I", "F"))


@cache
def note_lost_colours() -> None:
    """Warn that colours are lost, once for all images."""
    log.warning(
        "images with 3 channels are made grey (luma): the domain has channels=1. If colours "
        "matter, begin with channels=3"
    )
