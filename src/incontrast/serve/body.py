"""The bodies of requests and answers: JSON, NumPy's format, and images as they are."""

from __future__ import annotations

import io
import json
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from incontrast.domains.base import Domain

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
    items: Any
    if content_type == NPY:
        items = read_npy(body)
    elif content_type == JSON:
        items = _read_json(body)
    elif content_type.startswith(IMAGE):
        items = [body]
    else:
        raise UnknownFormat(
            f"the content type must be {JSON}, {NPY} or that of an image, got {content_type!r:.60}"
        )
    if len(items) > max_items:
        raise TooLarge(
            f"a request may have {max_items} items, got {len(items)}: divide them into several "
            "requests"
        )
    collection = (domain.collect if content_type == NPY else domain.collect_json)(items)
    parts = torch.split(torch.arange(len(collection)), batch_size)
    return [collection.take(part) for part in parts]


def _read_json(body: bytes) -> list[Any]:
    try:
        record = json.loads(body)
        items = record["items"]
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON from character {error.pos} on") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the body is no UTF-8 from byte {error.start} on") from error
    except (KeyError, TypeError) as error:
        raise ValueError('the body must be {"items": […]} in JSON') from error
    except (ValueError, RecursionError) as error:
        raise ValueError("the body has too many digits in a number, or lists in lists") from error
    for name in record:
        if name != "items":  # such as a space, without which the vectors would be of another one
            raise ValueError(
                f'the body must be {{"items": […]}} alone, got also {name!r:.40}: parameters '
                "belong in the address, as in /embed?space=1"
            )
    if not isinstance(items, list) or not items:
        raise ValueError("items must be a list with at least one item")
    return items


def read_npy(body: bytes) -> NDArray[Any]:
    """The array in NumPy's format; a header that lies about the size reserves no memory."""
    size = 4 if body[6:7] > b"\x01" else 2  # bytes that say how long the header is
    start = 8 + size + int.from_bytes(body[8 : 8 + size], "little")
    shape, by_column, dtype = _parsed(body[:start])
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"an array must have numbers of up to 64 bits, got {dtype!s:.40}")
    told = f"an array of shape {shape!s:.40} does not fit its {len(body) - start} bytes"
    if not shape or math.prod(shape) * dtype.itemsize != len(body) - start:
        raise ValueError(told)
    array = np.frombuffer(bytearray(body), dtype, offset=start)  # a copy, writable for torch
    try:
        return array.reshape(shape, order="F" if by_column else "C")
    except (ValueError, TypeError) as error:  # sides that are negative, no numbers, or too many
        raise ValueError(told) from error


@lru_cache  # clients send the same header again and again, and NumPy parses it as Python
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(header)
    try:
        major, _ = npy.read_magic(file)
        return (npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0)(file)
    except Exception as error:  # TokenError, MemoryError, …
        raise ValueError("the body is no array in NumPy's format") from error


def write_npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
