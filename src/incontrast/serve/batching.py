"""Forward passes of the items of several requests: a queue, and the thread of the encoder."""

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

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h
KEPT_BYTES, LARGEST_BLOCK = 2**28, 2**25


class QueueFull(RuntimeError):
    """Too many items wait for the encoder."""


class Part(NamedTuple):
    """Items of one request that are embedded together."""

    version: Version  # of when the request arrived: an answer is never from two versions
    adapter: Chain
    batch: Any
    embeddings: asyncio.Future[Tensor]


class Batcher:
    """Runs the encoder in a thread, on whatever waits at the moment.

    Args:
        batch_size: Items at most in one forward pass.
        max_waiting: Items that may wait.
        metrics: Of the service.
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
        """(n, d) embeddings of the items of these batches; always from the same event loop.

        Raises:
            QueueFull: Nothing was queued.
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
        rows = await asyncio.gather(*(part.embeddings for part in parts))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while parts := self._next():
            self._answer(parts)
            parts.clear()  # frees a version that was replaced

    def _next(self) -> list[Part]:
        """Parts of the same version for one forward pass; none once it is closed."""
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

    def _answer(self, parts: list[Part]) -> None:
        """Embed the parts; if that fails, each alone, so that one bad item harms no others."""
        parts = [part for part in parts if not part.embeddings.cancelled()]
        if not parts:
            return
        wake = parts[0].embeddings.get_loop().call_soon_threadsafe  # once for all parts
        try:
            rows = self._embed(parts)
        except Exception as error:
            if len(parts) == 1:
                wake(_deliver, parts, error)
            else:
                for part in parts:
                    self._answer([part])
        else:
            wake(_deliver, parts, rows)

    def _embed(self, parts: list[Part]) -> list[Tensor]:
        start = time.perf_counter()
        found = parts[0].version.embed([part.batch for part in parts])
        rows = torch.split(found, [len(part.batch) for part in parts])
        mapped = [part.adapter(part_rows) for part, part_rows in zip(parts, rows, strict=True)]
        self._metrics.batch_items.observe(len(found))
        self._metrics.encoder_seconds.observe(time.perf_counter() - start)
        return mapped

    def _count(self, change: int) -> None:
        self._waiting += change
        self._metrics.waiting.set(self._waiting)


def _deliver(parts: list[Part], result: list[Tensor] | Exception) -> None:
    for number, part in enumerate(parts):
        if part.embeddings.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            part.embeddings.set_exception(result)
        else:
            part.embeddings.set_result(result[number])


def keep_freed_memory() -> bool:
    """Have glibc keep the memory that a forward pass frees; whether it will.

    To get it back from the system for each pass takes as long as the pass of a small encoder.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and libc.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
    )
