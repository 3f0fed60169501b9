"""One run of training from a strategy's point of view: items, their views, their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain, Part
from incontrast.randomness import generator
from incontrast.training.engine import Engine
from incontrast.training.objective import Objective
from incontrast.training.prefetch import read_ahead
from incontrast.training.sampler import BatchIndices, Increment, InfiniteSampler

__all__ = ["Task", "ViewBatch", "two_views"]

T = TypeVar("T")

Sources = Sequence[tuple[Collection, Tensor]]
"""The items of a batch: collections, and the places in them that it takes."""


class ViewBatch(NamedTuple):
    """Two views of n items on the device: first views of old, of new items, then second views.

    Where several processes share a batch, ``views`` are those of this process's items.
    """

    views: Any  # a batch of 2n
    old: int  # old items of the whole batch


class Task:
    """What a strategy works with.

    Args:
        encoder: The encoder to train, on the engine's device.
        domain: The kind of data.
        increment: Old and new items.
        objective: Temperature and K.
        engine: Where to compute.
        seed: Determines every draw.
        before: The encoder of before this run; None when the first one is trained.
    """

    def __init__(
        self,
        encoder: nn.Module,
        domain: Domain,
        increment: Increment,
        *,
        objective: Objective,
        engine: Engine,
        seed: int,
        before: nn.Module | None = None,
    ) -> None:
        self.encoder = encoder
        self.domain = domain
        self.increment = increment
        self.objective = objective
        self.engine = engine
        self.seed = seed
        self.before = before
        self.forward_passes = 0  # views that went through an encoder so far
        self.done = 0.0  # the part of the run that is done, by its epochs or its budget
        self.draws = self.generator("draws")
        self.old_items = InfiniteSampler(increment.stored, self.generator("old items"))
        self._views = self.generator("views")
        self._once: dict[str, Any] = {}

    @property
    def growth_ratio(self) -> float:
        """α."""
        return self.increment.growth_ratio

    def generator(self, purpose: str) -> Generator:
        """A random generator for one purpose, the same at every call with it."""
        return generator(self.seed, purpose)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` gave the first time: for what a strategy, being frozen, cannot keep."""
        if name not in self._once:
            self._once[name] = make()
        return cast(T, self._once[name])

    def view_batches(
        self, batches: Iterable[BatchIndices], views: Generator | None = None
    ) -> Iterator[ViewBatch]:
        """Two fresh views of the items of each batch; files are read ahead in a thread.

        Args:
            batches: The items of each batch.
            views: Draws the views; the task's own generator for it by default.
        """
        seeds = self._views if views is None else views

        def orders() -> Iterator[tuple[BatchIndices, int]]:
            # A batch's views have a seed of their own, drawn here and not in the thread: what the
            # thread has in flight when nobody reads on must not shift later draws.
            for indices in batches:
                yield indices, int(torch.randint(2**62, (), generator=seeds))

        def fetch(order: tuple[BatchIndices, int]) -> ViewBatch:
            indices, seed = order
            draws = Generator().manual_seed(seed)
            pair = two_views(self.domain, self._sources(indices), draws, self.engine)
            return ViewBatch(self.domain.join(pair), len(indices.old))

        collections = (self.increment.old, self.increment.new)
        slow = any(items is not None and items.background for items in collections)
        return read_ahead(fetch, orders(), background=slow)

    def _sources(self, indices: BatchIndices) -> Sources:
        """Old items first: losses count on it."""
        pairs = ((self.increment.old, indices.old), (self.increment.new, indices.new))
        return [(items, places) for items, places in pairs if items is not None and len(places)]

    def embed(
        self,
        views: Any,
        *,
        encoder: nn.Module | None = None,
        parameters: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One forward pass over both views.

        Args:
            views: ``ViewBatch.views``.
            encoder: Another encoder than the one in training.
            parameters: Weights and buffers to use instead of the encoder's own.

        Returns:
            (n, d) embeddings of the first views, (n, d) of the second, of the whole batch.
        """
        encoder = self.encoder if encoder is None else encoder
        embeddings = self.engine.forward(encoder, views, parameters)
        pair = embeddings.view(2, -1, *embeddings.shape[1:])
        first, second = self.engine.gather(pair)
        self.forward_passes += 2 * len(first)
        return first, second


def two_views(
    domain: Domain, sources: Sources, generator: Generator, engine: Engine
) -> tuple[Any, Any]:
    """Two views of this process's share of a batch, as one process would draw them.

    A batch is a row of items, all old ones first. Processes take ranges of that row, so that what
    they gather in order is the row again.

    Args:
        domain: The kind of data.
        sources: The items of the whole batch.
        generator: The same in all processes.
        engine: Where to compute.
    """
    share = engine.share(sum(len(indices) for _, indices in sources))
    parts, before = [], 0
    for collection, indices in sources:
        own = indices[max(share.start - before, 0) : max(share.stop - before, 0)]
        before += len(indices)
        if len(own):
            parts.append(collection.take(own))
    if not parts:  # more processes than items
        collection, indices = sources[0]
        parts.append(collection.take(indices[:0]))
    batch = engine.place(parts[0] if len(parts) == 1 else domain.join(parts))
    if engine.processes == 1:
        return domain.views(batch, generator)
    return domain.views_of_part(Part(batch, share.start, sources, engine.place), generator)
