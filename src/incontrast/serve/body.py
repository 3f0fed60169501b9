"""The bodies of requests and answers: JSON, NumPy's format, and images as they are."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from incontrast.domains.base import Collection, Domain

JSON, NPY, IMAGE = "application/json", "application/x-npy", "image/"


class TooLarge(ValueError):
    """More than a request may have."""


class UnknownFormat(ValueError):
    """A content type that is not read."""


def read_batches(
    domain: Domain, content_type: str, body: bytes, *, max_items: int, batch_size: int
) -> list[Any]:
    """The items of a request, in batches. Nothing in a request is taken for the name of a file.

    Raises:
        ValueError: Says in a sentence what is wrong.
    """
    collection = _collected(domain, content_type, body, max_items)
    return [
        collection.take(part) for part in torch.split(torch.arange(len(collection)), batch_size)
    ]


def _collected(domain: Domain, content_type: str, body: bytes, max_items: int) -> Collection:
    if content_type == NPY:
        rows = read_npy(body)
        _check_count(len(rows), max_items)
        return domain.collect(rows)
    if content_type.startswith(IMAGE):
        return domain.collect_json([body])
    if content_type != JSON:
        raise UnknownFormat(
            f"the content type must be {JSON}, {NPY} or that of an image, got {content_type!r:.60}"
        )
    try:
        items = json.loads(body)["items"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f'the body must be {{"items": […]}} in JSON: {error!r:.200}') from error
    if not isinstance(items, list) or not items:
        raise ValueError("items must be a list with at least one item")
    _check_count(len(items), max_items)
    return domain.collect_json(items)


def read_npy(body: bytes) -> NDArray[Any]:
    """The array in NumPy's format; a header that lies about the size reserves no memory."""
    file = io.BytesIO(body)
    try:
        major, _ = npy.read_magic(file)
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, by_column, dtype = read(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"numbers are read, got {dtype}")
        start = file.tell()
        if not shape or math.prod(shape) * dtype.itemsize != len(body) - start:
            raise ValueError(f"shape {shape} does not fit its {len(body) - start} bytes")
        array = np.frombuffer(bytearray(body), dtype, offset=start)  # a copy, writable for torch
        return array.reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # NumPy parses the header as Python: TokenError, MemoryError, …
        raise ValueError(f"the body cannot be read in NumPy's format: {error!r:.200}") from error


def write_npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    npy.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _check_count(count: int, max_items: int) -> None:
    if count > max_items:
        raise TooLarge(
            f"a request may have {max_items} items, got {count}: divide them into several requests"
        )
