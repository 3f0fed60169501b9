"""The folder of real data sets: where each is looked for, unpacked or packed."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from incontrast.data import Labelled, digits, image_folder, mnist, tu

VARIABLE = "INCONTRAST_DATA"


class Parts(NamedTuple):
    """A data set: what an encoder may see, and a part of its own for tests where it has one."""

    seen: Labelled
    held_out: Labelled | None


@dataclass(frozen=True)
class GraphFiles:
    """A TU set: ``NAME_A.txt`` in the folder, in NAME or NAME/raw below it, or ``TU/NAME.zip``."""

    name: str

    def __call__(self, folder: Path | None) -> Parts:
        folder = _checked(folder, self.name)
        archive = folder / "TU" / f"{self.name}.zip"
        if not archive.exists():
            try:
                return Parts(tu(folder, self.name), None)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{error}, nor is there {archive}") from error
        with tempfile.TemporaryDirectory() as place:
            try:
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(place)
            except zipfile.BadZipFile as error:
                raise ValueError(f"{archive} cannot be unpacked, get it again: {error}") from error
            return Parts(tu(place, self.name), None)


@dataclass(frozen=True)
class MnistFiles:
    """MNIST's own two parts, from the idx files in ``MNIST`` or ``MNIST/raw``."""

    classes: tuple[int, ...] | None = None

    def __call__(self, folder: Path | None) -> Parts:
        root = _checked(folder, "MNIST") / "MNIST"
        seen, held_out = (mnist(root, classes=self.classes, train=train) for train in (True, False))
        return Parts(seen, held_out)


@dataclass(frozen=True)
class ImageFiles:
    """Folders ``NAME/train`` and ``NAME/val`` with one folder for each class, or ``NAME.tar``.

    Images are decoded here, once, so that no decoding is on the clock.
    """

    name: str
    pixels: int

    def __call__(self, folder: Path | None) -> Parts:
        folder = _checked(folder, self.name)
        if (folder / self.name).is_dir():
            return _decoded(folder / self.name, self.pixels)
        archive = folder / f"{self.name}.tar"
        if not archive.exists():
            raise FileNotFoundError(f"there is neither {folder / self.name} nor {archive}")
        with tempfile.TemporaryDirectory() as place:
            try:
                with tarfile.open(archive) as packed:
                    packed.extractall(place, filter="data")
            except tarfile.TarError as error:
                raise ValueError(f"{archive} cannot be unpacked, get it again: {error}") from error
            return _decoded(Path(place) / self.name, self.pixels)


@dataclass(frozen=True)
class Digits:
    """The digits that come with scikit-learn, as images or as vectors: no folder is needed."""

    flat: bool

    def __call__(self, folder: Path | None) -> Parts:
        data = digits()
        rows = data.items.reshape(len(data), -1).astype(np.float32) if self.flat else data.items
        return Parts(Labelled(rows, data.labels, data.classes), None)


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
