"""Where the benchmarks find real data sets.

INCONTRAST_DATA names a folder with ``MNIST/*.gz``, ``TU/NAME.zip`` and ``text/banking77/*.csv``;
without it, ``shared/data`` beside the project is tried.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from incontrast.data import Labelled, mnist, read_source, tu

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def folder() -> Path:
    """The folder of real data sets."""
    found = Path(os.environ.get("INCONTRAST_DATA", BESIDE))
    if not found.is_dir():
        sys.exit(f"no data sets in {found}: set INCONTRAST_DATA to a folder that holds them")
    return found


def graphs(name: str) -> Labelled:
    """A TU set, from its zip file."""
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(folder() / "TU" / f"{name}.zip") as archive:
            archive.extractall(place)
        return tu(place, name)


def digits_of_mnist(classes: tuple[int, ...] | None = None) -> Labelled:
    """MNIST's training digits of these classes."""
    return mnist(folder() / "MNIST", classes=classes)


def banking77(part: str) -> Labelled:
    """Customers' questions and their intents: of ``train`` or of ``test``."""
    source = read_source(folder() / "text" / "banking77" / f"{part}.csv", label="category")
    classes, labels = np.unique(source.labels, return_inverse=True)
    texts = [content.decode() for content in source.items.contents]
    return Labelled(texts, labels.astype(np.int64), tuple(classes.tolist()))
