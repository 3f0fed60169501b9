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
    draws from the global generators of torch, NumPy and Python, as most libraries do: these are
    seeded for each item, one after the other, so that the same seed gives the same views. A
    ``Compose`` of albumentations has generators of its own, which are seeded likewise.

    Args:
        function: Takes an item, a tensor as the domain's views take it (images: (C, S, S) in
            [0, 1]), and gives a tensor or an array of the shape that the encoder takes. A
            ``Compose`` of albumentations is given and gives images as it has them, (S, S, C).
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
        if self._takes_generator():
            with ThreadPoolExecutor(self.workers) as pool:
                draws = [Generator().manual_seed(seed) for seed in seeds]
                views = list(pool.map(self.function, items, draws))
        else:
            views = []
            for item, seed in zip(items, seeds, strict=True):
                with _seeded_everywhere(seed):
                    views.append(self._view(item, seed))
        tensors = [torch.as_tensor(view) for view in views]
        if len({view.shape for view in tensors}) > 1:
            shapes = sorted({tuple(view.shape) for view in tensors})
            raise ValueError(f"views of items must have one shape, got {shapes[0]} and {shapes[1]}")
        return torch.stack(tensors).to(batch.device, batch.dtype)

    def _view(self, item: Tensor, seed: int) -> Any:
        if not hasattr(self.function, "set_random_seed"):  # which albumentations has
            return self.function(item)
        self.function.set_random_seed(seed % 2**32)
        image = self.function(image=item.permute(1, 2, 0).numpy())["image"]
        return torch.as_tensor(image).permute(2, 0, 1)

    def _takes_generator(self) -> bool:
        if isinstance(self.function, torch.nn.Module):
            return False
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # of functions written in C
            return False
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [p for p in parameters if p.kind in places and p.default is p.empty]
        return len(needed) == 2


@contextmanager
def _seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and leave them as they were."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002 (which libraries draw from)
    try:
        with seeded(seed):
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])
