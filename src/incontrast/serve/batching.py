"""Items of many requests in one forward pass: a queue, and the thread that runs the encoder."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from incontrast.compat import Chain
from incontrast.serve.current import Version
from incontrast.serve.metrics import Metrics

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as malloc.h of glibc numbers them
KEPT, LARGEST = 2**28, 2**25  # bytes that are kept, and of a block up to which it is


class QueueFull(RuntimeError):
    """Too many items wait for the encoder."""


class Part(NamedTuple):
    """Items of one request that go through the encoder together."""

    version: Version  # decided when the request came: an answer is never of two
    adapter: Chain
    batch: Any
    embeddings: asyncio.Future[Tensor]


class Batcher:
    """Runs the encoder in a thread, on whatever waits: nobody waits for company.

    Args:
        batch_size: Items at most that go through the encoder together.
        max_waiting: Items that may wait.
        metrics: Where to note what happens.
    """

    def __init__(self, batch_size: int, max_waiting: int, metrics: Metrics) -> None:
        self._batch_size, self._max_waiting = batch_size, max_waiting
        self._metrics = metrics
        self._parts: deque[Part] = deque()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def embed(self, version: Version, adapter: Chain, batches: Sequence[Any]) -> Tensor:
        """(n, d) embeddings of the items of these batches, once it is their turn.

        All who ask do so from one event loop.

        Raises:
            QueueFull: Nothing of it was taken.
        """
        loop = asyncio.get_running_loop()
        parts = [Part(version, adapter, batch, loop.create_future()) for batch in batches]
        count = sum(map(len, batches))
        with self._changed:
            if self._waiting + count > self._max_waiting:
                raise QueueFull(
                    f"{self._waiting} items wait for the encoder, and {self._max_waiting} may: "
                    "try again later"
                )
            self._parts.extend(parts)
            self._count(count)
            self._changed.notify()
        found = await asyncio.gather(*(part.embeddings for part in parts))
        return found[0] if len(found) == 1 else torch.cat(found)

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while parts := self._next():
            self._answer(parts)
            parts.clear()  # or a version that is replaced would stay until the next request

    def _answer(self, parts: list[Part]) -> None:
        # Who has gone away needs no answer.
        parts = [part for part in parts if not part.embeddings.cancelled()]
        if parts and not self._embed(parts) and len(parts) > 1:
            for part in parts:  # one of them is to blame: the others are answered
                self._embed([part])

    def _next(self) -> list[Part]:
        """What waits of one version, a batch of it at most; nothing once all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._closed)
            parts: list[Part] = []
            count = 0
            while self._parts:
                part = self._parts[0]
                count += len(part.batch)
                if parts and (part.version is not parts[0].version or count > self._batch_size):
                    break
                parts.append(self._parts.popleft())
            self._count(-sum(len(part.batch) for part in parts))
            return parts

    def _embed(self, parts: list[Part]) -> bool:
        """Whether all went well; only a part on its own is told that it did not."""
        start = time.perf_counter()
        # One call wakes the event loop for all of them.
        wake = parts[0].embeddings.get_loop().call_soon_threadsafe
        try:
            found = parts[0].version.embed([part.batch for part in parts])
            rows = torch.split(found, [len(part.batch) for part in parts])
            mapped = [part.adapter(own) for part, own in zip(parts, rows, strict=True)]
        except Exception as error:
            if len(parts) == 1:
                wake(_deliver, parts, error)
            return False
        self._metrics.batch_items.observe(len(found))
        self._metrics.encoder_seconds.observe(time.perf_counter() - start)
        wake(_deliver, parts, mapped)
        return True

    def _count(self, change: int) -> None:
        self._waiting += change
        self._metrics.waiting.set(self._waiting)


def keep_freed_memory() -> bool:
    """Have glibc keep what a forward pass frees, for the next one; whether it does.

    Otherwise it may give the memory back to the system after each pass: to get the pages again
    takes as long as the pass of a small encoder itself.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    own = ctypes.CDLL(None)
    return bool(own.mallopt(M_TRIM_THRESHOLD, KEPT) and own.mallopt(M_MMAP_THRESHOLD, LARGEST))


def _deliver(parts: list[Part], found: list[Tensor] | Exception) -> None:
    for number, part in enumerate(parts):
        if part.embeddings.done():  # cancelled meanwhile
            continue
        if isinstance(found, Exception):
            part.embeddings.set_exception(found)
        else:
            part.embeddings.set_result(found[number])
