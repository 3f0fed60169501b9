"""One update from a strategy's point of view: items in, embeddings of their views out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from incontrast.domains.base import Collection, Domain
from incontrast.randomness import generator
from incontrast.training.contrast import Objective
from incontrast.training.engine import Engine
from incontrast.training.increment import Increment
from incontrast.training.reading import read_ahead
from incontrast.training.sampling import Picks
from incontrast.training.share import take, two_views

__all__ = ["Loaded", "Task"]


class Loaded(NamedTuple):
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
    ) -> None:
        self.encoder = encoder
        self.domain = domain
        self.increment = increment
        self.objective = objective
        self.engine = engine
        self.seed = seed
        self.passes = 0  # views that went through an encoder so far
        self.draws = self.generator("draws")
        self._views = self.generator("views")

    @property
    def growth_ratio(self) -> float:
        """α."""
        return self.increment.growth_ratio

    def generator(self, purpose: str) -> torch.Generator:
        """A random generator of the strategy's own, for a purpose of its own."""
        return generator(self.seed, purpose)

    def teacher(self) -> nn.Module:
        """A frozen copy of the encoder as it is now."""
        return copy.deepcopy(self.encoder).eval().requires_grad_(False)

    def load(
        self, picks: Iterable[Picks], views: torch.Generator | None = None
    ) -> Iterator[Loaded]:
        """Two fresh views of these items, batch by batch; files are read ahead in a thread.

        Args:
            picks: The items of each batch.
            views: Draws the views; the task's own generator for it by default.
        """
        seeds = self._views if views is None else views

        def orders() -> Iterator[tuple[Picks, int]]:
            # A batch's views have a seed of their own, drawn here and not in the thread: what the
            # thread has under way when nobody reads on must not shift later draws.
            for pick in picks:
                yield pick, int(torch.randint(2**62, (), generator=seeds))

        def fetch(order: tuple[Picks, int]) -> Loaded:
            pick, seed = order
            parts = self._sources(pick)
            batch = take(self.domain, parts, self.engine)
            draws = torch.Generator().manual_seed(seed)
            views = two_views(self.domain, batch, parts, draws, self.engine)
            return Loaded(self.domain.join(views), len(pick.old))

        sources = (self.increment.old, self.increment.new)
        slow = any(source is not None and source.background for source in sources)
        # A thread only pays where there are files to decode: views of what is in memory are many
        # small operations, which contend with the encoder's for the interpreter.
        return read_ahead(fetch, orders()) if slow else map(fetch, orders())

    def _sources(self, picks: Picks) -> list[tuple[Collection, Tensor]]:
        """Old items first: losses count on it."""
        sources: list[tuple[Collection, Tensor]] = []
        if self.increment.old is not None and len(picks.old):
            sources.append((self.increment.old, picks.old))
        if len(picks.new):
            sources.append((self.increment.new, picks.new))
        return sources

    def embed(
        self,
        views: Any,
        *,
        encoder: nn.Module | None = None,
        parameters: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One forward pass over both views.

        Args:
            views: A batch of 2n that ``load`` gave.
            encoder: Another encoder than the one in training.
            parameters: Weights and buffers to use instead of the encoder's own.

        Returns:
            (n, d) embeddings of the first views, (n, d) of the second, of the whole batch.
        """
        encoder = self.encoder if encoder is None else encoder
        with self.engine.encoding():
            if parameters is None:
                embeddings = encoder(views)
            else:
                embeddings = functional_call(encoder, parameters, (views,))
        if embeddings.dtype == torch.bfloat16:
            embeddings = embeddings.float()
        pair = embeddings.unflatten(0, (2, len(embeddings) // 2))
        first, second = self.engine.gather(pair)
        self.passes += 2 * len(first)
        return first, second
