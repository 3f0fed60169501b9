"""The one seam between training and the machine it runs on: batches, forward passes, processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch import distributed as dist
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from incontrast.domains.base import Collection, Domain, Part, Sources
from incontrast.loss import Objective
from incontrast.training.caching import in_parts

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Precision = Literal["float32", "bfloat16"]
T = TypeVar("T")
R = TypeVar("R")

DEPTH = 2  # batches in flight: one being read, one waiting
BATCH_SIZE = 256  # items per forward pass without gradients; larger ones gain nothing on a CPU
COUNTED = 8  # items whose views tell how much work a step is


class ViewsInParts:
    """Two views of some items that are made when they are embedded, part by part.

    ``make`` gives the views of a range of the items: first views, then second ones. No part has
    more than ``size`` views.
    """

    def __init__(self, make: Callable[[range], Any], items: int, size: int) -> None:
        self.items = items
        self.parts = [partial(make, own) for own in _ranges(items, max(size // 2, 1))]

    def __len__(self) -> int:
        return 2 * self.items


def _ranges(count: int, size: int) -> list[range]:
    """So many items in ranges of nearly equal length, none longer than ``size``."""
    parts = -(-count // size)
    ends = [count * number // parts for number in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]


class Engine:
    """One process, one device.

    Strategies, losses and domains never ask how many processes there are or where tensors live.
    ``training/fabric.py`` has the engine of many processes, which answers the same questions.
    Device and precision are as in ``Learner``; weights stay in float32.
    """

    rank: int = 0  # the number of this process
    processes: int = 1  # how many work together
    own: tuple[int, ...] = ()  # tells this process's draws apart, for dropout
    micro_batch_size: int | None = None  # views that go through an encoder at a time: see Learner
    compile: bool = False  # whether the encoder that is trained runs compiled: see Learner

    def __init__(
        self, device: torch.device | str | None = None, precision: Precision = "float32"
    ) -> None:
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', got {precision!r}")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.precision: Precision = precision
        try:
            self.device = torch.device(device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device {str(device)!r} cannot be used here ({error}): try device='cpu'"
            ) from error
        try:
            self.drawing = Generator(self.device).device  # where random numbers are drawn
        except RuntimeError:  # the device has no generator
            self.drawing = torch.device("cpu")

    @classmethod
    def of(cls, encoder: nn.Module) -> Engine:
        """One process, on the device where an encoder is."""
        tensor = next((t for t in (*encoder.parameters(), *encoder.buffers())), None)
        return Engine("cpu" if tensor is None else tensor.device)

    def place(self, batch: Any, device: torch.device | None = None) -> Any:
        """A batch on this engine's device, or on another; the host does not wait for the copy."""
        with _pinned(device or self.device):
            return batch.to(device or self.device)

    def encoding(self) -> AbstractContextManager[Any]:
        """What encoders run in: autocast, and BatchNorm over the items of all processes."""
        return self.autocast()

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision alone, for what a process does without the others."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def forward(
        self, encoder: nn.Module, batch: Any, parameters: dict[str, Tensor] | None = None
    ) -> Tensor:
        """(n, d) embeddings of a batch, at least in single precision.

        ``parameters`` are weights and buffers to use instead of the encoder's own.
        """
        size = self.micro_batch_size
        if size is None or len(batch) <= size:
            return self._encode(encoder, batch, parameters)
        parts = [
            lambda own=own: self._encode(encoder, batch[own.start : own.stop], parameters)
            for own in _ranges(len(batch), size)
        ]
        return in_parts(parts, 1, len(batch), self.device)[0]

    def _encode(
        self, encoder: nn.Module, batch: Any, parameters: dict[str, Tensor] | None
    ) -> Tensor:
        # Batches of texts and graphs may have more to move inside of an encoder.
        plain = isinstance(batch, Tensor)
        with self.encoding(), nullcontext() if plain else _pinned(self.device):
            if parameters is None:
                embeddings: Tensor = encoder(batch)
            else:
                embeddings = functional_call(encoder, parameters, (batch,))
        narrow = embeddings.dtype in (torch.bfloat16, torch.float16)
        return embeddings.float() if narrow else embeddings

    def embed_pair(
        self, encoder: nn.Module, views: Any, parameters: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(n, d) embeddings of the first and (n, d) of the second views of all processes' items.

        ``views`` is one batch: first views of this process's share of the items, then second ones.
        """
        if isinstance(views, ViewsInParts):
            parts = [
                lambda make=make: self._encode(encoder, make(), parameters) for make in views.parts
            ]
            first, second = in_parts(parts, 2, views.items, self.device)
            return first, second
        embeddings = self.forward(encoder, views, parameters)
        first, second = self.gather(embeddings.view(2, -1, *embeddings.shape[1:]))
        return first, second

    def share(self, count: int) -> range:
        """Which of so many items are this process's own. All processes together have each once."""
        return range(count)

    def gather(self, embeddings: Tensor) -> Tensor:
        """(…, n, d) embeddings of this process's share to (…, N, d) of all, with gradients."""
        return embeddings

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, without gradients."""
        return tensor

    def average_gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of a loss of gathered embeddings, from those that each process has of it.

        They can be differentiated again.
        """
        return gradients

    def backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Fill the gradients of these parameters from a loss of gathered embeddings."""
        loss.backward()  # type: ignore[no-untyped-call]

    def objective(self, objective: Objective) -> Objective:
        """The same for losses of gathered embeddings, of which processes may share the work."""
        return objective

    def for_steps(self, encoder: nn.Module, views: Any, items: int) -> Engine:
        """The engine for steps on so many items: small ones are not worth sharing.

        ``views`` are some of those that the encoder will get.
        """
        return self

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """The first process's numbers, for all, in place."""
        return tensor

    def broadcast_float(self, number: float) -> float:
        """The first process's number, for all: what they decide by must not differ by a bit."""
        if self.processes == 1:
            return number
        return self.broadcast_(torch.tensor(number, dtype=torch.float64, device=self.device)).item()

    def broadcast(self, value: T) -> T:
        """The first process's value, for all."""
        return value

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes, in order."""
        return [value]

    def broadcast_weights(self, encoder: nn.Module) -> None:
        """Give all processes the first one's weights."""

    def error_barrier(self, task: str) -> AbstractContextManager[None]:
        """What fails in one process inside the block fails in all at its end, with one message.

        ``task`` says what is done inside, for that message.
        """
        return nullcontext()

    def check_equal(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Raise an error in all processes if they do not agree on these facts."""


def _pinned(device: torch.device) -> AbstractContextManager[Any]:
    return _Pinned() if device.type == "cuda" else nullcontext()


class _Pinned(TorchFunctionMode):
    """A block in which what goes from the host to CUDA goes by way of pinned memory.

    The host then need not wait for what the device does; torch keeps the memory until it is copied.
    Batches may be of any class that moves its tensors by ``to(device)``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.to and len(args) == 2 and not kwargs and args[0].is_cpu:
            target = args[1]
            if isinstance(target, str | torch.device) and torch.device(target).type == "cuda":
                return args[0].contiguous().pin_memory().to(target, non_blocking=True)
        return func(*args, **kwargs)


def views_in_a_row(
    domain: Domain, batches: Sequence[Sources], seeds: Sequence[int], engine: Engine
) -> list[Any]:
    """``two_views`` of several batches, at once where the domain can."""
    if domain.views_on_cpu and engine.share(COUNTED) == range(COUNTED):
        draws = [Generator().manual_seed(seed) for seed in seeds]
        found = domain.views_in_a_row(batches, draws)
        if found is not None:
            return [engine.place(views) for views in found]
    return [
        two_views(domain, batch, seed, engine) for batch, seed in zip(batches, seeds, strict=True)
    ]


def two_views(domain: Domain, sources: Sources, seed: int, engine: Engine) -> Any:
    """Two views of this process's share of a batch, as one process would draw them.

    A batch is a row of items, all old ones first: ``sources`` are collections, and the places in
    them that it takes. Processes take ranges of that row, so that what they gather in order is the
    row again. The result is one batch on the device: all first views, then all second views.
    """
    device, drawing = engine.device, engine.drawing
    if domain.views_on_cpu:
        device = drawing = torch.device("cpu")
    sources = [(collection, indices) for collection, indices in sources if len(indices)]
    count = sum(len(indices) for _, indices in sources)
    share = engine.share(count)
    parts, before = [], 0
    for collection, indices in sources:
        own = indices[max(share.start - before, 0) : max(share.stop - before, 0)]
        before += len(indices)
        if len(own):
            parts.append(collection.take(own))
    if not parts:  # more processes than items
        collection, indices = sources[0]
        parts.append(collection.take(indices[:0]))
    batch = engine.place(parts[0] if len(parts) == 1 else domain.join(parts), device)

    def make(own: range) -> Any:
        """Both views of some of this process's items."""
        draws = Generator(drawing).manual_seed(seed)
        if len(own) == count:
            joined = domain.joined_views(batch, draws)
        else:
            some = batch if len(own) == len(batch) else batch[own.start : own.stop]
            part = Part(some, share.start + own.start, sources, device)
            joined = domain.join(domain.views_of_part(part, draws))
        if len(joined) != 2 * len(own):
            raise ValueError(
                f"views() must keep the number of items: {len(own)} went in, {len(joined)} came "
                "out of both views together"
            )
        return engine.place(joined) if domain.views_on_cpu else joined

    size = engine.micro_batch_size
    if size is not None and 2 * len(batch) > size and domain.views_by_part:
        return ViewsInParts(make, len(batch), size)
    return make(range(len(batch)))


@torch.no_grad()
def embed(
    encoder: nn.Module,
    domain: Domain,
    items: Collection,
    *,
    engine: Engine,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """(n, d) embeddings of the items themselves, on the CPU; in every process, those of all.

    The encoder is in evaluation mode. ``progress`` is called with the number of items done, after
    each batch; with several processes, as if all were as far as this one.
    """
    orders = torch.split(torch.arange(len(items)), BATCH_SIZE)
    share = engine.share(len(orders))
    own = orders[share.start : share.stop]
    total = sum(map(len, own))

    def fetch(order: Tensor) -> Any:
        return engine.place(items.take(order))

    parts: list[Tensor] = []
    batches = read_ahead if items.background else map
    for batch in batches(fetch, own):
        parts.append(engine.forward(encoder, domain.prepare(batch)))
        if progress is not None:
            progress(sum(map(len, parts)) * len(items) // total)
    if not parts:  # more processes than batches: only the width is needed
        parts.append(engine.forward(encoder, domain.prepare(fetch(orders[0])))[:0])
    return engine.gather(torch.cat(parts)).float().cpu()


@torch.no_grad()
def embed_views(
    encoder: nn.Module,
    domain: Domain,
    items: Collection,
    order: Tensor,
    draws: Generator,
    *,
    engine: Engine,
) -> tuple[Tensor, Tensor]:
    """(n, d) embeddings of a first and (n, d) of a second random view of the items at ``order``."""

    def views(batch: tuple[Tensor, int]) -> Any:
        places, seed = batch
        return two_views(domain, [(items, places)], seed, engine)

    parts = torch.split(order, BATCH_SIZE // 2)
    seeds = torch.randint(2**62, (len(parts),), generator=draws).tolist()
    batches = read_ahead if items.background else map
    made = batches(views, zip(parts, seeds, strict=True))
    pairs = [engine.embed_pair(encoder, pair) for pair in made]
    first, second = (torch.cat(side).float().cpu() for side in zip(*pairs, strict=True))
    return first, second


def read_ahead(fetch: Callable[[T], R], orders: Iterable[T]) -> Iterator[R]:
    """``map(fetch, orders)``, with the next results in flight in a thread.

    A thread only pays where there are files to decode: views of what is in memory are many small
    operations, which contend with the encoder's for the interpreter.

    >>> list(read_ahead(lambda n: n * n, [1, 2, 3]))
    [1, 4, 9]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="incontrast-read") as thread:
        in_flight: deque[Future[R]] = deque()
        try:
            for order in orders:
                in_flight.append(thread.submit(fetch, order))
                if len(in_flight) > DEPTH:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            for future in in_flight:
                future.cancel()


def choose_engine(
    device: torch.device | str | None, precision: Precision, fabric: Fabric | None
) -> Engine:
    """The engine for this process: Fabric's, torchrun's processes, or this one alone."""
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if fabric is None and not (many and dist.is_available() and dist.is_torchelastic_launched()):
        return Engine(device, precision)
    from incontrast.training.fabric import joint_engine

    return joint_engine(device, precision, fabric)
