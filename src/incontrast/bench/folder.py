"""The folder of real data sets: where each is looked for, unpacked or packed."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from incontrast.data import Labelled, digits, image_folder, mnist, tu

__all__ = ["Parts", "digits_parts", "graph_parts", "image_parts", "mnist_parts"]

VARIABLE = "INCONTRAST_DATA"


class Parts(NamedTuple):
    """A data set: what an encoder may see, and a part of its own for tests where it has one."""

    seen: Labelled
    held_out: Labelled | None


def graph_parts(name: str) -> Callable[[Path | None], Parts]:
    """A TU set: ``NAME_A.txt`` in the folder, in NAME or NAME/raw below it, or ``TU/NAME.zip``."""

    def read(folder: Path | None) -> Parts:
        folder = _checked(folder, name)
        archive = folder / "TU" / f"{name}.zip"
        if not archive.exists():
            try:
                return Parts(tu(folder, name), None)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{error}, nor is there {archive}") from error
        with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(archive) as packed:
            packed.extractall(place)
            return Parts(tu(place, name), None)

    return read


def mnist_parts(classes: tuple[int, ...] | None = None) -> Callable[[Path | None], Parts]:
    """MNIST's own two parts, from the idx files in ``MNIST`` or ``MNIST/raw``."""

    def read(folder: Path | None) -> Parts:
        root = _checked(folder, "MNIST") / "MNIST"
        return Parts(mnist(root, classes=classes), mnist(root, classes=classes, train=False))

    return read


def image_parts(name: str, pixels: int) -> Callable[[Path | None], Parts]:
    """Folders ``NAME/train`` and ``NAME/val`` with one folder for each class, or ``NAME.tar``.

    Images are decoded here, once, so that no decoding is on the clock.
    """

    def read(folder: Path | None) -> Parts:
        folder = _checked(folder, name)
        if (folder / name).is_dir():
            return _decoded(folder / name, pixels)
        archive = folder / f"{name}.tar"
        if not archive.exists():
            raise FileNotFoundError(f"there is neither {folder / name} nor {archive}")
        with tempfile.TemporaryDirectory() as place, tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
            return _decoded(Path(place) / name, pixels)

    return read


def digits_parts(flat: bool) -> Callable[[Path | None], Parts]:
    """The digits that come with scikit-learn, as images or as vectors: no folder is needed."""

    def read(_: Path | None) -> Parts:
        data = digits()
        rows = data.items.reshape(len(data), -1).astype(np.float32) if flat else data.items
        return Parts(Labelled(rows, data.labels, data.classes), None)

    return read


def _checked(folder: Path | None, name: str) -> Path:
    if folder is None:
        raise FileNotFoundError(
            f"{name} needs a folder of data sets: give --data FOLDER, or set {VARIABLE}"
        )
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: {name} is looked for in the folder that --data or "
            f"{VARIABLE} names"
        )
    return folder


def _decoded(folder: Path, pixels: int) -> Parts:
    def part(name: str) -> Labelled:
        files = image_folder(folder / name)
        arrays = []
        for path in files.items:
            with Image.open(path) as image:
                arrays.append(np.asarray(image.convert("RGB").resize((pixels, pixels))))
        return Labelled(np.stack(arrays), files.labels, files.classes)

    return Parts(part("train"), part("val"))
