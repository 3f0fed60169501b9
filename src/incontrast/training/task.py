"""One run of training from a strategy's point of view: old and new items, batches, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain, item_bytes
from incontrast.loss import Objective
from incontrast.memory.memory import StoredCollection
from incontrast.randomness import generator, seeded
from incontrast.schedules import LearningRate, Schedule, ScheduleState, as_schedule
from incontrast.training.compiling import compiled
from incontrast.training.engine import COUNTED, Engine, read_ahead, two_views, views_in_a_row
from incontrast.training.resume import Recorded, restore_once

T = TypeVar("T")

NONE = torch.empty(0, dtype=torch.int64)
BURST, BURST_BYTES = 8, 2**20  # batches, and bytes of their items, whose views are made in a row


@dataclass(frozen=True)
class Increment:
    """Old and new data of one update."""

    old: Collection | None  # stored: a uniform sample of X, or all of it; None before the first fit
    new: Collection  # ΔX
    seen: int  # N, the items that X stands for, at least as many as ``old`` holds

    def __post_init__(self) -> None:
        if self.stored > self.seen:
            raise ValueError(
                f"seen must count every old item, got {self.seen} seen but {self.stored} stored"
            )

    @cached_property
    def resident(self) -> Increment:
        """The same, with few items of a store read once, instead of for each batch."""
        stored: dict[str, Any] = {
            name: items.resident()
            for name, items in vars(self).items()
            if isinstance(items, StoredCollection)
        }
        return replace(self, **stored)

    @cached_property
    def stored(self) -> int:
        """Old items stored."""
        return 0 if self.old is None else len(self.old)

    @cached_property
    def new_count(self) -> int:
        """ΔN."""
        return len(self.new)

    @property
    def background(self) -> bool:
        """Whether taking some of the items is slow as yet, and wants to be read ahead."""
        return any(items.background for items in (self.old, self.new) if items is not None)

    @cached_property
    def item_bytes(self) -> float:
        """Of a new item once it is in memory, on average."""
        return item_bytes(self.new)

    @cached_property
    def growth_ratio(self) -> float:
        """α = ΔN / (N + ΔN), from items *seen*."""
        return self.new_count / (self.seen + self.new_count)


class BatchIndices(NamedTuple):
    """The items of one batch, by their places in the stored old items and in the new ones."""

    old: Tensor  # (o,)
    new: Tensor  # (n,)


class ViewBatch(NamedTuple):
    """Two views of n items on the device: first views of old, of new items, then second views.

    Where several processes share a batch, ``views`` are those of this process's items.
    """

    views: Any  # a batch of 2n
    old: int  # old items of the whole batch
    places: Tensor = NONE  # (old,) where they are among the stored ones


Order = tuple[BatchIndices, int]  # a batch to make, and the seed of its views


class InfiniteSampler:
    """Draws without end, and without repeats inside a round over all items.

    What is left at the end of a round and too little for the next draw is dropped.
    """

    def __init__(self, count: int, generator: Generator) -> None:
        self.count = count
        self._generator = generator
        self._rest = NONE

    def draw(self, size: int) -> Tensor:
        """``size`` distinct items; all of them, if there are no more."""
        size = min(size, self.count)
        if len(self._rest) < size:
            self._rest = torch.randperm(self.count, generator=self._generator)
        drawn, self._rest = self._rest[:size], self._rest[size:]
        return drawn


def shuffled(count: int, size: int, generator: Generator) -> Iterator[Tensor]:
    """Every item once, in batches of nearly equal size, none larger than ``size``.

    >>> [len(batch) for batch in shuffled(33, 32, Generator().manual_seed(0))]
    [17, 16]
    """
    order = torch.randperm(count, generator=generator)
    return iter(torch.tensor_split(order, -(-count // size)))


def new_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[BatchIndices]:
    """Every new item once, and no old one."""
    return (BatchIndices(NONE, new) for new in shuffled(increment.new_count, size, generator))


def joint_epoch(increment: Increment, size: int, generator: Generator) -> Iterator[BatchIndices]:
    """As many draws from X′ as there are stored items, as retraining makes them.

    With all of X stored, every item comes once. When memory holds a sample of X, a share α of
    each batch is new on average, so that X keeps its weight.
    """
    stored, new_count = increment.stored, increment.new_count
    if stored == increment.seen:
        for mixed in shuffled(stored + new_count, size, generator):
            yield BatchIndices(mixed[mixed >= new_count] - new_count, mixed[mixed < new_count])
        return
    old, new = (InfiniteSampler(count, generator) for count in (stored, new_count))
    if stored < 2:  # too few to weigh: they come along with the new ones
        yield from (
            BatchIndices(old.draw(1), batch) for batch in shuffled(new_count, size, generator)
        )
        return
    size = min(size, stored)  # an item must not come twice in a batch
    for _ in range(joint_items(increment, size) // size):
        # Rounded up or down at random, so that the mean is exact.
        count = int(size * increment.growth_ratio + torch.rand((), generator=generator).item())
        yield BatchIndices(old.draw(size - count), new.draw(count))


def joint_items(increment: Increment, size: int) -> int:
    """How many items ``joint_epoch`` draws."""
    stored, new = increment.stored, increment.new_count
    if stored == increment.seen:
        return stored + new
    if stored < 2:
        return new + stored * -(-new // size)
    size = min(size, stored)
    return size * -(-(stored + new) // size)


class Task:
    """What a strategy works with: an encoder to train, on the engine's device, and data.

    ``before`` is the encoder of before this run; None when the first one is trained. ``seed``
    determines every draw.
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
        self.encoder, self.before = encoder, before
        self.domain, self.increment, self.objective = domain, increment, objective
        self.engine, self.seed = engine, seed
        self.growth_ratio = increment.growth_ratio  # α
        self.forward_passes = 0  # views that went through an encoder so far
        self.done = 0.0  # the part of the run that is done, by its epochs or its budget
        self.begun = 0.0  # the part that was done when the epoch under way began
        self.epoch_part = 0.0  # the part that this epoch is expected to be
        self.draws = self.generator("draws")  # the items of batches
        self.made_once: dict[str, Any] = {}
        self._saved_once: dict[str, Any] = {}
        self.recorded: dict[str, Recorded] = {}  # learning rates, by purpose
        self._calls: dict[str, Tensor] | None = None  # what they were asked before

    @cached_property
    def old_items(self) -> InfiniteSampler:
        """Draws old items, for a strategy that adds some to each batch."""
        return InfiniteSampler(self.increment.stored, self.generator("old items"))

    @cached_property
    def stepped(self) -> nn.Module:
        """The encoder as training steps run it: compiled, if it is to be."""
        return compiled(self.encoder, self.engine.device) if self.engine.compile else self.encoder

    @cached_property
    def _views(self) -> Generator:
        return self.generator("views")

    def share_steps(self, items: int) -> None:
        """Choose how processes work on steps of so many items: together, or each for itself."""
        places = torch.arange(min(COUNTED, self.increment.new_count))
        sources = [(self.increment.new, places)]
        with seeded(self.seed, "operations", device=self.engine.device):
            views = two_views(self.domain, sources, self.seed, Engine(self.engine.device))
        self.engine = self.engine.for_steps(self.encoder, views, items)
        self.objective = self.engine.objective(self.objective)

    def generator(self, purpose: str) -> Generator:
        """A random generator for one purpose, the same at every call with it."""
        return generator(self.seed, purpose)

    def record(self, calls: dict[str, Tensor], once: dict[str, Any]) -> None:
        """From now on, remember what learning rates are asked.

        ``calls`` is what they were asked before the run was interrupted, ``once`` what ``once``
        held then.
        """
        self._calls, self._saved_once = calls, once

    def learning_rate(
        self, lr: Schedule | float, purpose: str, state: ScheduleState | None = None
    ) -> LearningRate:
        begun = as_schedule(lr).begin(self.generator(purpose), state)
        if self._calls is None:
            return begun
        self.recorded[purpose] = Recorded(begun, self._calls.get(purpose))
        return self.recorded[purpose]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` gave the first time: for what a strategy, being frozen, cannot keep.

        A run that is interrupted and resumed gets it back as it was, if it is a tensor, has a
        ``state_dict``, or consists of plain values in lists and dicts. All else is made again.
        """
        if name not in self.made_once:
            self.made_once[name] = restore_once(make(), self._saved_once.get(name))
        return cast(T, self.made_once[name])

    def view_batches(
        self, batches: Iterable[BatchIndices], views: Generator | None = None, *, skip: int = 0
    ) -> Iterator[ViewBatch]:
        """Two fresh views of the items of each batch; files are read ahead in a thread.

        Up to ``BURST`` batches are drawn before the first of them is used.

        ``views`` draws them, by default the task's own generator for it; so many batches as
        ``skip`` says at the beginning are drawn, but not made.
        """
        old_items, new_items = self.increment.old, self.increment.new
        seeds = self._views if views is None else views
        # A batch's views have a seed of their own, drawn here and not in the thread: what the
        # thread has in flight when nobody reads on must not shift later draws.
        orders = ((indices, int(torch.randint(2**62, (), generator=seeds))) for indices in batches)

        def make(orders: list[Order]) -> list[ViewBatch]:
            pairs = [((old_items, old), (new_items, new)) for (old, new), _ in orders]
            sources = [[(items, at) for items, at in both if items is not None] for both in pairs]
            made = views_in_a_row(self.domain, sources, [seed for _, seed in orders], self.engine)
            olds = [old for (old, _), _ in orders]  # old items first: losses count on it
            return [ViewBatch(v, len(old), old) for v, old in zip(made, olds, strict=True)]

        apart = self.domain.views_on_cpu and self.engine.device.type != "cpu"
        slow = (self.increment.background or apart) and not self.domain.views_draw_globally
        left = islice(orders, skip, None)
        made = (
            read_ahead(make, ([order] for order in left)) if slow else map(make, self._bursts(left))
        )
        yield from chain.from_iterable(made)

    def _bursts(self, orders: Iterator[Order]) -> Iterator[list[Order]]:
        """Small batches in groups: views of many in a row are made from warm caches."""
        burst: list[Order] = []
        for order in orders:
            burst.append(order)
            size = len(burst) * 2 * sum(map(len, order[0])) * self.increment.item_bytes
            if size > BURST_BYTES or len(burst) == BURST:
                yield burst
                burst = []
        if burst:
            yield burst

    def embed(
        self,
        views: Any,
        *,
        encoder: nn.Module | None = None,
        parameters: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(n, d) embeddings of the first and (n, d) of the second views of the whole batch.

        One forward pass over ``ViewBatch.views``, by the encoder in training or by another, with
        its own weights and buffers or with others.
        """
        if encoder is None:
            plain = parameters is not None or not torch.is_grad_enabled()
            encoder = self.encoder if plain else self.stepped
        first, second = self.engine.embed_pair(encoder, views, parameters)
        self.forward_passes += 2 * len(first)
        return first, second

    @torch.no_grad()
    def embed_before(self, items: Collection, places: Tensor) -> Tensor:
        """(n, d) embeddings of some items themselves, by the encoder of before."""
        assert self.before is not None
        batch = items.take(places).to(self.engine.device)
        found = self.engine.forward(self.before.eval(), self.domain.prepare(batch))
        self.forward_passes += len(places)
        return found.float()
