"""Image files: found, checked, decoded; some of them may be damaged."""

import io
import logging
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

log = logging.getLogger(__name__)

# By content, whatever the name says: some of Pillow's other formats start programs to decode them.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LOOKED_AT = 64  # images that tell what a folder is like
LARGEST = 224  # pixels that a side has at most unless it is asked for
SMALLEST = 8
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
        raise ValueError(f"there are no images in {root}: looked for {' '.join(SUFFIXES)}")
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file of this name is an image; hidden ones are not."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _stop(error: OSError) -> None:
    raise error  # os.walk would leave out a folder that it may not read


def typical_image(files: Sequence[str]) -> tuple[int, int]:
    """Size and channels that fit most images: the median shorter side, and grey if all are."""
    sides, grey = [], []

    def look(image: Image.Image) -> None:
        side, mode = min(image.size), image.mode
        image.draft("L", (2 * SMALLEST, 2 * SMALLEST))
        image.load()  # to its end: a header may outlive what follows it
        sides.append(side)
        grey.append(mode in ("1", "L", "I;16"))

    stride = -(-len(files) // LOOKED_AT)
    reasons = [_opened(file, look) for file in files[::stride]]
    if not sides:
        raise ValueError(f"none of {len(reasons)} images can be read; the first: {reasons[0]}")
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
    """(n, C, S, S) uint8 pixels of files, or of contents of files, and what is left out, and why.

    They are turned upright as their EXIF tells, then as ``fit`` does it. Left out, or refused if
    ``strict``, is what is missing, damaged, no image, or too large. Without ``keep`` they are only
    tried.
    """
    pixels = torch.empty(len(sources) if keep else 0, channels, size, size, dtype=torch.uint8)
    coloured = [False] * len(sources)

    def read(number: int) -> str | None:
        def use(image: Image.Image) -> None:
            coloured[number] = is_coloured(image)
            found = _decoded(image, size, channels)
            if keep:
                pixels.numpy()[number] = found

        return _opened(sources[number], use, f"image {number}")

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
    """Refuse files of which one has no header that can be read."""
    reasons = _in_threads(lambda number: _opened(files[number], lambda image: None), len(files))
    for reason in filter(None, reasons):
        raise ValueError(reason)


def _in_threads(function: Callable[[int], str | None], count: int) -> list[str | None]:
    """The results in order. Pillow lets other threads run while it decodes."""
    # In portions: one future per file would cost more memory than the paths.
    step = 256 if count >= 256 else 1
    portions = [range(count)[start : start + step] for start in range(0, count, step)]
    found = _pool().map(lambda portion: [function(number) for number in portion], portions)
    return [result for results in found for result in results]


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all batches: to start threads for each takes longer than some files."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="incontrast-decode")


if hasattr(os, "register_at_fork"):  # a child process has none of these threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def printable(path: str) -> str:
    r"""A path that can be written as UTF-8, whatever bytes the names of files have.

    >>> printable(os.fsdecode(b"caf\xe9.png"))
    'caf\\xe9.png'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _opened(source: str | bytes, use: Callable[[Image.Image], None], name: str = "") -> str | None:
    """Open a file, or the content of what has a name, and use it; what is wrong, if anything."""
    try:
        if isinstance(source, bytes):
            file: str | io.BytesIO = io.BytesIO(source)
            empty = not source
        else:
            file, name = source, printable(source)
            status = os.stat(source)  # noqa: PTH116 (a Path for each of a million files is slow)
            if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, a device never ends
                raise ValueError("it is not a file")
            empty = status.st_size == 0
        if empty:
            raise ValueError("it is empty")
        with Image.open(file, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise Image.DecompressionBombError(f"{image.width}×{image.height} pixels")
            use(image)
    except FileNotFoundError:
        return f"{name} does not exist: was it moved or deleted?"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return (
            f"{name} is larger than the {Image.MAX_IMAGE_PIXELS} pixels that Pillow takes for safe "
            f"({error}): make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        )
    except Exception as error:  # damaged files make Pillow raise nearly anything
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError) and isinstance(source, bytes):
            reason = "it has none of the formats that are read"  # Pillow names an address in memory
        return f"{name} cannot be read as an image: {reason}. Replace or remove it"
    return None


def fit(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
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


def _decoded(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice the size asked for is left to
    # the better filter of fit().
    image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)
    return fit(image, size, channels)


def is_coloured(image: Image.Image) -> bool:
    return image.mode not in GREY and not image.mode.startswith(("I", "F"))


@cache
def note_lost_colours() -> None:
    """Say once, not for each image, that they lose their colours."""
    log.warning(
        "images with 3 channels are made grey (luma): the domain has channels=1. If colours "
        "matter, begin with channels=3"
    )


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no fixed range: save it with 8 bits")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
