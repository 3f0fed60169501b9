"""MNIST, from its idx files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incontrast.data.labelled import Labelled


def mnist(
    root: str | Path, *, classes: Sequence[int] | None = None, train: bool = True
) -> Labelled:
    """Handwritten digits: items (n, 28, 28) uint8. Any data set in MNIST's files will do.

    Args:
        root: Folder with ``train-images-idx3-ubyte`` and the others, plain or ``.gz``; they may
            also be in ``raw`` or ``MNIST/raw`` below it.
        classes: The digits to keep; all, unless given. Labels stay what they are.
        train: The training part (60,000), or the test part (10,000).

    Raises:
        ValueError: A file is missing, damaged, or something else.
    """
    part = "train" if train else "t10k"
    images_file = _find(Path(root), f"{part}-images", "idx3-ubyte")
    labels_file = _find(Path(root), f"{part}-labels", "idx1-ubyte")
    images = _read_idx(images_file, dimensions=3)
    labels = _read_idx(labels_file, dimensions=1).astype(np.int64)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_file} has {len(images)} images but {labels_file} has {len(labels)} labels: "
            "they are not of one data set"
        )
    names = tuple(str(label) for label in range(max(10, int(labels.max(initial=0)) + 1)))
    data = Labelled(images, labels, names)
    if classes is None:
        return data
    unknown = sorted(set(classes) - set(labels.tolist()))
    if unknown:
        raise ValueError(f"no image in {images_file} has the label {unknown[0]}")
    return data.select(np.isin(labels, list(classes)))


def _find(root: Path, stem: str, kind: str) -> Path:
    for folder in (root, root / "raw", root / "MNIST" / "raw"):
        for name in (f"{stem}-{kind}", f"{stem}.{kind}"):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
    raise ValueError(
        f"there is no {stem}-{kind} or {stem}-{kind}.gz in {root}, nor in raw or MNIST/raw below it"
    )


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, the number of dimensions, each of them, the data."""
    content = _content(path)
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise ValueError(
            f"{path} is not an idx file of bytes in {dimensions} dimensions: "
            f"it begins with {content[:4].hex(' ') or 'nothing'}, not {magic.hex(' ')}"
        )
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError(f"{path} is truncated: it ends within its header")
    shape: tuple[Any, ...] = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise ValueError(
            f"{path} has {len(content) - header} bytes of data where its header tells "
            f"{math.prod(shape)} {shape}: it is truncated or damaged"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytearray:
    """All of a file as a bytearray, over which NumPy makes arrays that can be written to."""
    if path.suffix != ".gz":
        return bytearray(path.read_bytes())
    try:
        with gzip.open(path) as file:
            return bytearray(file.read())
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}. Fetch it again") from error
