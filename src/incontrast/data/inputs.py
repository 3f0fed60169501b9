"""Items of other libraries: DataLoaders, Hugging Face datasets, WebDataset shards."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from incontrast.domains.base import Kind
from incontrast.domains.images.files import FORMATS, is_image


class TarImages(IterableDataset[tuple[Image.Image, str]]):
    """The images of WebDataset shards, ``.tar`` files that are read without unpacking them.

    Each comes with its key, which is the file's name without its ending.
    """

    def __init__(self, *paths: str | Path) -> None:
        self.paths = [Path(path) for path in paths]

    def __iter__(self) -> Iterator[tuple[Image.Image, str]]:
        for path, name, content in self._members():
            try:
                image = Image.open(io.BytesIO(content), formats=FORMATS)
                image.load()
            except Exception as error:  # damaged images make Pillow raise nearly anything
                raise ValueError(f"{path}, {name} cannot be read as an image: {error}") from error
            yield image, _key(name)

    def keys(self) -> list[str]:
        """The key of every image, in order."""
        return [_key(name) for _, name, _ in self._members()]

    def _members(self) -> Iterator[tuple[Path, str, bytes]]:
        for path in self.paths:
            count = 0
            try:
                with tarfile.open(path, "r:") as shard:
                    for member in shard:
                        if member.isfile() and is_image(Path(member.name).name):
                            file = shard.extractfile(member)
                            count += 1
                            yield path, member.name, b"" if file is None else file.read()
            except (tarfile.TarError, OSError, EOFError) as error:
                raise ValueError(f"{path} cannot be read as a .tar file: {error}") from error
            if not count:
                raise ValueError(f"{path} holds no images such as 0001.jpg")


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}".removeprefix("/")


def loaded(loader: DataLoader[Any]) -> Any:
    """The items of all batches: of tuples such as (images, labels), the first part."""
    batches = []
    for batch in loader:
        is_tuple = isinstance(batch, list | tuple) and batch and not isinstance(batch[0], str)
        batches.append(batch[0] if is_tuple else batch)
    if not batches:
        raise ValueError("there are no items: the DataLoader gave no batch")
    if isinstance(batches[0], Tensor):
        return torch.cat(batches)
    if isinstance(batches[0], dict):
        raise ValueError(
            f"a DataLoader must give batches of items, got dictionaries of {list(batches[0])}: "
            "choose one of them in its collate_fn"
        )
    return [item for batch in batches for item in batch]


class Column(Dataset[Any]):
    """The column of a Hugging Face dataset with items of a kind, of which there must be one."""

    def __init__(self, dataset: Any, kind: Kind | None) -> None:
        if not hasattr(dataset, "__len__"):
            raise ValueError("a streaming dataset has no length: give one that is loaded")
        if len(dataset) == 0:
            raise ValueError("there are no items: the dataset is empty")
        names = [name for name, value in dataset[0].items() if _is_of_kind(value, kind)]
        if len(names) != 1:
            which = f"several columns ({', '.join(names)})" if names else "no column"
            raise ValueError(
                f"the dataset has {which} of {kind or 'this kind'} (it has "
                f"{', '.join(dataset[0])}): keep one with dataset.select_columns([name])"
            )
        self.dataset, self.column = dataset, names[0]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index][self.column]


def _is_of_kind(value: Any, kind: Kind | None) -> bool:
    if kind == "texts":
        return isinstance(value, str)
    if kind == "images":
        array = isinstance(value, np.ndarray | Tensor) and value.ndim in (2, 3)
        return array or isinstance(value, Image.Image)
    if kind == "vectors":
        return isinstance(value, list | np.ndarray | Tensor) and np.asarray(value).ndim == 1
    return not isinstance(value, int | float | str)
