"""The data sets of the comparison, and how each is split into old and new items.

Two scales: ``SMALL`` fits two cores and a night, ``PAPER`` is the paper's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from incontrast import Domain, Graphs, Images, ImageViews, Vectors
from incontrast.data import Labelled
from incontrast.randomness import generator
from incontrast.streams import by_class, by_growth, pick
from paper.folder import Digits, GraphFiles, ImageFiles, MnistFiles, Parts
from paper.names import set_title

Split = Literal["random", "class", "shift"]


class Splits(NamedTuple):
    """The items of one increment, with labels, and items that no encoder ever sees."""

    old: Labelled
    new: Labelled
    held_out_old: Labelled  # like the old items; like all of them, where the split is random
    held_out_new: Labelled | None  # like the new items; None where the split is random


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set as the comparison uses it.

    Args:
        name: As in the paper.
        read: Reads it from the folder of data sets.
        domain: The kind of data, with its encoder.
        split: At random by growth ratio, as in the paper; by class; or at random, with all that
            comes later turned by 90 degrees.
        ratios: Growth ratios α. Where the split is by class, the classes decide.
        items: Items that encoders may see, drawn at random; all of them if None.
        held_out: Items for tests: a number from the set's own part for it, or else a share.
        new_classes: The classes that come later, where the split is by class.
        max_epochs: Of the initial training, of retraining and of the paper's stop rule, at most.
        patience: Epochs without a new lowest loss after which that rule ends training.
        limit: Forward passes that an update has, as a multiple of retraining's.
        sample: Old and new items, each, on which the evaluation loss is measured.
        spacing: It is measured whenever this many times more steps have been taken.
        learning_rates: Learning rates to search for the strategies that need one.
        search_epochs: Epochs of a trial of that search.
        folds: Folds of every cross-validation.
    """

    name: str
    read: Callable[[Path | None], Parts]
    domain: Domain
    split: Split = "random"
    ratios: tuple[float, ...] = (0.3, 0.5, 0.7)
    items: int | None = None
    held_out: float = 0.1
    new_classes: tuple[int, ...] = ()
    max_epochs: int = 200
    patience: int = 50
    limit: float = 1.0
    sample: int = 512
    spacing: float = 1.08
    learning_rates: tuple[float, ...] = (1e-3, 1e-4, 1e-5)
    search_epochs: int = 20
    folds: int = 5

    def splits(self, folder: Path | None, growth_ratio: float, seed: int) -> Splits:
        """The increment of this growth ratio and seed."""
        return self.split_parts(self.read(folder), growth_ratio, seed)

    def split_parts(self, parts: Parts, growth_ratio: float, seed: int) -> Splits:
        """The same, of a set that has been read."""
        seen, held_out = self._hold_out(parts, seed)
        if self.split == "class":
            assert seen.labels is not None
            old, new = by_class(seen, self.new_classes)
            return Splits(old, new, *by_class(held_out, self.new_classes))
        old, new = by_growth(seen, growth_ratio, seed)
        if self.split == "random":
            return Splits(old, new, held_out, None)
        return Splits(old, _turned(new), held_out, _turned(held_out))

    def _hold_out(self, parts: Parts, seed: int) -> tuple[Labelled, Labelled]:
        if parts.held_out is not None:
            held_out = _some(parts.held_out, int(self.held_out), seed, "held out")
            return _some(parts.seen, self.items, seed, "seen"), held_out
        seen, held_out = by_growth(parts.seen, self.held_out, seed + 1_000_000)
        return _some(seen, self.items, seed, "seen"), held_out

    def settings(self) -> dict[str, Any]:
        """What a row's figures depend on, besides growth ratio, seed and strategy."""
        return {
            # Only mentioned if unusual, as switches that are off are not (see ``describe``).
            **({} if self.folds == 5 else {"folds": self.folds}),
            "data": self.name,
            "split": self.split,
            "new_classes": list(self.new_classes),
            "items": self.items,
            "held_out": self.held_out,
            "sample": self.sample,
            "spacing": self.spacing,
            "limit": self.limit,
            "patience": self.patience,
            "max_epochs": self.max_epochs,
        }


def _some(data: Labelled, count: int | None, seed: int, purpose: str) -> Labelled:
    if count is None or count >= len(data):
        return data
    import torch

    order = torch.randperm(len(data), generator=generator(seed, "sets", purpose))
    chosen: Labelled = pick(data, order[:count].sort().values)
    return chosen


def _turned(data: Labelled) -> Labelled:
    """Images turned by 90 degrees: the same classes, seen as no encoder has seen them."""
    turned = np.ascontiguousarray(np.rot90(data.items, axes=(1, 2)))
    return Labelled(turned, data.labels, data.classes)


_GREY = ImageViews(flip=0.0)
_RESNET: dict[str, Any] = {
    "items": 192,
    "max_epochs": 30,
    "patience": 10,
    "sample": 128,
    "spacing": 1.25,
    "learning_rates": (1e-3, 1e-4),
    "search_epochs": 3,
}
_SMALL_ENCODER: dict[str, Any] = {
    "domain": Images(28, 1, encoder="small", views=_GREY),
    "read": MnistFiles(),
    "ratios": (0.3,),
    "items": 2000,
    "held_out": 1000,
    "max_epochs": 100,
    "search_epochs": 10,
}
_NEW_DIGITS: dict[str, Any] = {
    "split": "class",
    "new_classes": (7, 8, 9),
    "ratios": (0.3,),
    "learning_rates": (1e-3,),
}

SMALL: dict[str, DataSet] = {
    "proteins": DataSet(name=set_title("proteins"), read=GraphFiles("PROTEINS"), domain=Graphs()),
    "mnist-2": DataSet(
        name=set_title("mnist-2"),
        read=MnistFiles((0, 1)),
        domain=Images(28, 1, encoder="resnet18-standard", views=_GREY),
        held_out=500,
        **_RESNET,
    ),
    "imagenet-2": DataSet(
        name=set_title("imagenet-2"),
        read=ImageFiles("ImageNet-2-tiny", 32),
        domain=Images(32, encoder="resnet18-standard"),
        held_out=100,
        **_RESNET,
    ),
    "mnist-class": DataSet(
        name=set_title("mnist-class"), split="class", new_classes=(7, 8, 9), **_SMALL_ENCODER
    ),
    "mnist-shift": DataSet(name=set_title("mnist-shift"), split="shift", **_SMALL_ENCODER),
    "reddit": DataSet(
        name=set_title("reddit"),
        read=GraphFiles("REDDIT-BINARY"),
        domain=Graphs(),
        items=500,
        max_epochs=60,
        sample=256,
        spacing=1.15,
        learning_rates=(1e-3, 1e-4),
        search_epochs=6,
    ),
    # Not of the paper: small enough to try things on.
    "digits": DataSet(
        name=set_title("digits"),
        read=Digits(flat=False),
        domain=Images(8, 1, encoder="small", views=ImageViews(flip=0.0, scale=(0.4, 1.0))),
        **_NEW_DIGITS,
    ),
    "digits-vectors": DataSet(
        name=set_title("digits-vectors"),
        read=Digits(flat=True),
        domain=Vectors(64),
        **_NEW_DIGITS,
    ),
    "mnist-2-small": DataSet(
        name=set_title("mnist-2-small"),
        read=MnistFiles((0, 1)),
        domain=Images(28, 1, encoder="small", views=_GREY),
        ratios=(0.3,),
        items=2000,
        held_out=500,
        learning_rates=(1e-3,),
    ),
}
"""Small enough for a night on two cores."""

_WHOLE: dict[str, Any] = {
    "items": None,
    "max_epochs": 100_000,
    "patience": 50,
    "learning_rates": (1e-3, 1e-4, 1e-5),
    "search_epochs": 50,
}
PAPER: dict[str, DataSet] = {
    "proteins": replace(SMALL["proteins"], **_WHOLE),
    "mnist-2": replace(SMALL["mnist-2"], domain=Images(224, 1, views=_GREY), **_WHOLE),
    "imagenet-2": replace(
        SMALL["imagenet-2"],
        read=ImageFiles("ImageNet-2", 224),
        domain=Images(224),
        **_WHOLE,
    ),
    "mnist-class": replace(SMALL["mnist-class"], domain=Images(28, 1, views=_GREY), **_WHOLE),
    "mnist-shift": replace(SMALL["mnist-shift"], domain=Images(28, 1, views=_GREY), **_WHOLE),
    "reddit": replace(SMALL["reddit"], **_WHOLE),
}
"""The paper's sizes and settings, for a machine that can."""

SCALES = {"small": SMALL, "paper": PAPER}
