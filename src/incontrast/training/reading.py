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


def read_ahead(fetch: Callable[[T], R], orders: Iterable[T]) -> Iterator[R]:
    """``map(fetch, orders)`` with the results of the next orders under way in a thread.

    >>> list(read_ahead(lambda n: n * n, [1, 2, 3]))
    [1, 4, 9]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="incontrast-read") as thread:
        under_way: deque[Future[R]] = deque()
        try:
            for order in orders:
                under_way.append(thread.submit(fetch, order))
                if len(under_way) > DEPTH:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
