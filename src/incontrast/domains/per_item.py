"""Views by a function of one item: torchvision, albumentations, or one's own."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from incontrast.bounds import check_whole
from incontrast.randomness import seeded


@dataclass(frozen=True)
class PerItem:
    """``views=`` of a domain, from a function that makes a random view of one item.

    A function of an item and a ``torch.Generator`` runs in worker threads. One of an item alone
    draws from the global generators of torch, NumPy and Python, as most libraries do: they are
    seeded for each item, one after the other. A ``Compose`` of albumentations has generators of
    its own, which are seeded likewise. So the same seed always gives the same views.

    Args:
        function: Takes an item, a tensor as the domain's views take it (images: (C, S, S) in
            [0, 1]), and returns a tensor or an array of the shape that the encoder takes. A
            ``Compose`` of albumentations takes and returns images as (S, S, C).
        workers: Threads.

    >>> halve = PerItem(lambda item, generator: item * torch.rand((), generator=generator))
    >>> halve(torch.ones(3, 2), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """

    function: Callable[..., Any]
    workers: int = 4

    def __post_init__(self) -> None:
        check_whole(1, workers=self.workers)
        if not callable(self.function):
            raise TypeError(f"function must take an item, got {self.function!r}")

    def __call__(self, batch: Tensor, generator: Generator) -> Tensor:
        size, where = (len(batch),), generator.device
        seeds = torch.randint(2**62, size, generator=generator, device=where).tolist()
        items = batch.cpu().unbind()
        if _arguments(self.function) == 2:
            with ThreadPoolExecutor(self.workers) as pool:
                generators = [Generator().manual_seed(seed) for seed in seeds]
                results = list(pool.map(self.function, items, generators))
        else:
            results = [self._view(item, seed) for item, seed in zip(items, seeds, strict=True)]
        views = [torch.as_tensor(result) for result in results]
        shapes = sorted({tuple(view.shape) for view in views})
        if len(shapes) > 1:
            raise ValueError(f"views of items must have one shape, got {shapes[0]} and {shapes[1]}")
        return torch.stack(views).to(batch.device, batch.dtype)

    def _view(self, item: Tensor, seed: int) -> Any:
        with _seeded_everywhere(seed):
            if not hasattr(self.function, "set_random_seed"):  # as albumentations has it
                return self.function(item)
            self.function.set_random_seed(seed % 2**32)
            image = self.function(image=item.permute(1, 2, 0).numpy())["image"]
            return torch.as_tensor(image).permute(2, 0, 1)


def _arguments(function: Callable[..., Any]) -> int:
    """The number of arguments that a function must get by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions written in C have no signature
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


@contextmanager
def _seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python; restore their states afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with seeded(seed):
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
