"""Items with labels: digits, MNIST, folders of images."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from incontrast.domains.images.files import find_images, is_image
from incontrast.streams import pick


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items with labels, for evaluation; training uses no labels.

    Args:
        items: What ``Domain.collect`` accepts: an array, a tensor, a collection, a list of paths.
        labels: (n,) int64, or None.
        classes: The names of the classes, by label.

    >>> data = Labelled(np.arange(6).reshape(3, 2), np.array([0, 1, 1]), ("cat", "dog"))
    >>> len(data), data.select([2, 0]).labels
    (3, array([1, 0]))
    """

    items: Any
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.items):
            raise ValueError(f"got {len(self.items)} items and {len(self.labels)} labels")

    @classmethod
    def by_name(cls, items: Any, names: ArrayLike) -> Labelled:
        """Items whose labels are names of classes; these are numbered in order of name."""
        classes, labels = np.unique(names, return_inverse=True)
        return cls(items, labels.astype(np.int64), tuple(map(str, classes)))

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: ArrayLike) -> Labelled:
        """The items and labels at these places, or where a mask is true."""
        chosen = np.asarray(indices)
        if chosen.dtype == np.bool_:
            chosen = chosen.nonzero()[0]
        chosen = chosen.astype(np.int64)
        items = pick(self.items, torch.from_numpy(chosen))
        labels = None if self.labels is None else self.labels[chosen]
        return Labelled(items, labels, self.classes)


def digits() -> Labelled:
    """1,797 digits of 8×8 pixels: items (1797, 8, 8) uint8 from 0 to 255.

    >>> len(digits()), digits().items.shape
    (1797, (1797, 8, 8))
    """
    from sklearn.datasets import load_digits  # takes a second

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Labelled(pixels, bunch.target.astype(np.int64), tuple(map(str, bunch.target_names)))


def image_folder(root: str | Path) -> Labelled:
    """The paths of all images below a folder.

    The subfolders are the classes, in order of name. A flat folder has no labels.

    Raises:
        ValueError: The folder or one of its classes has no images, or images are beside the
            classes.
    """
    root = Path(root).absolute()
    entries = sorted(root.iterdir()) if root.is_dir() else []
    classes = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    if not classes:
        return Labelled(find_images(root))
    loose = [entry.name for entry in entries if is_image(entry.name) and not entry.is_dir()]
    if loose:
        raise ValueError(
            f"{root} has subfolders for classes and {len(loose)} images beside them: move "
            f"{loose[0]} into a class"
        )
    by_class = [find_images(root / name) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(files) for files in by_class])
    return Labelled([path for files in by_class for path in files], labels, tuple(classes))


def mnist(
    root: str | Path, *, classes: Sequence[int] | None = None, train: bool = True
) -> Labelled:
    """MNIST, or another data set in its format: items (n, 28, 28) uint8.

    Args:
        root: Folder with ``train-images-idx3-ubyte`` and the others, plain or ``.gz``; they may
            also be in ``raw`` or ``MNIST/raw`` below it.
        classes: The digits to keep, all by default; their labels stay as they are.
        train: The training part (60,000), or the test part (10,000).

    Raises:
        ValueError: A file is missing or damaged.
    """
    part = "train" if train else "t10k"
    images_file = _find(Path(root), f"{part}-images", "idx3-ubyte")
    labels_file = _find(Path(root), f"{part}-labels", "idx1-ubyte")
    images = _read_idx(images_file, dimensions=3)
    labels = _read_idx(labels_file, dimensions=1).astype(np.int64)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_file} has {len(images)} images but {labels_file} has {len(labels)} labels"
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
    folders = (root, root / "raw", root / "MNIST" / "raw")
    for folder, mark, end in product(folders, "-.", ("", ".gz")):
        path = folder / f"{stem}{mark}{kind}{end}"
        if path.is_file():
            return path
    raise ValueError(
        f"there is no {stem}-{kind} or {stem}-{kind}.gz in {root}, nor in raw or MNIST/raw below it"
    )


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, the number of dimensions, each of them, the data."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}. Fetch it again") from error
    magic, header = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path} is truncated, or no idx file of bytes in {dimensions} dimensions: "
            f"it begins with {content[:4].hex(' ') or 'nothing'}, expected {magic.hex(' ')}"
        )
    shape: tuple[Any, ...] = struct.unpack(f">{dimensions}I", content[4:header])
    data = np.frombuffer(content, np.uint8, offset=header)
    if len(data) != math.prod(shape):
        raise ValueError(
            f"{path} has {len(data)} bytes of data where its header says {math.prod(shape)} {shape}"
        )
    return data.reshape(shape).copy()  # which can be written to
