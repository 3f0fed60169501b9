"""Reading ahead: the next batch is fetched while the encoder works on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")
R = TypeVar("R")

DEPTH = 2  # batches in flight: one being read, one waiting


def read_ahead(fetch: Callable[[T], R], orders: Iterable[T], *, background: bool) -> Iterator[R]:
    """``map(fetch, orders)``, with the next results in flight in a thread if it is to.

    A thread only pays where there are files to decode: views of what is in memory are many small
    operations, which contend with the encoder's for the interpreter.

    >>> list(read_ahead(lambda n: n * n, [1, 2, 3], background=True))
    [1, 4, 9]
    """
    return _in_thread(fetch, orders) if background else map(fetch, orders)


def _in_thread(fetch: Callable[[T], R], orders: Iterable[T]) -> Iterator[R]:
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
