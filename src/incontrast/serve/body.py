"""Bodies of requests and responses: JSON, NumPy's format, and image files."""

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
    """More items than a request may have."""


class UnknownFormat(ValueError):
    """A content type that is not supported."""


def read_batches(
    domain: Domain, content_type: str, body: bytes, *, max_items: int, batch_size: int
) -> list[Any]:
    """The items of a request, in batches. Nothing in a request is interpreted as a file name.

    Raises:
        ValueError: With one sentence about what is wrong.
    """
    items: Any
    if content_type == NPY:
        items = read_npy(body)
    elif content_type == JSON:
        items = _read_json(body)
    elif content_type.startswith(IMAGE):
        items = [body]
    else:
        known = f"{JSON}, {NPY} or that of an image"
        raise UnknownFormat(f"the content type must be {known}, got {content_type!r:.60}")
    if len(items) > max_items:
        raise TooLarge(f"a request may have {max_items} items, got {len(items)}: divide them")
    collection = (domain.collect if content_type == NPY else domain.collect_json)(items)
    parts = torch.split(torch.arange(len(collection)), batch_size)
    return [collection.take(part) for part in parts]


def _read_json(body: bytes) -> list[Any]:
    try:
        record = json.loads(body)
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON from character {error.pos} on") from error
    except (ValueError, RecursionError) as error:
        message = "the body is no JSON in UTF-8, or a number or list in it is too long or deep"
        raise ValueError(message) from error
    if not isinstance(record, dict) or "items" not in record:
        raise ValueError('the body must be {"items": […]} in JSON')
    items = record.pop("items")
    for name in record:
        hint = "parameters belong in the address, as in /embed?space=1"
        raise ValueError(f"the body has an unknown field {name!r:.40}: {hint}")
    if not isinstance(items, list) or not items:
        raise ValueError("items must be a list with at least one item")
    return items


def read_npy(body: bytes) -> NDArray[Any]:
    """An array in NumPy's format. A header that lies about the size reserves no memory."""
    size = 4 if body[6:7] > b"\x01" else 2  # bytes that hold the length of the header
    start = 8 + size + int.from_bytes(body[8 : 8 + size], "little")
    shape, fortran, dtype = _parsed(body[:start])
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"an array must have numbers of up to 64 bits, got {dtype!s:.40}")
    array = np.frombuffer(bytearray(body), np.uint8, offset=start)  # a copy, writable for torch
    try:
        if shape and math.prod(shape) * dtype.itemsize == len(array):
            return array.view(dtype).reshape(shape, order="F" if fortran else "C")
    except (ValueError, TypeError):  # negative sides, or too many
        pass
    raise ValueError(f"an array of shape {shape!s:.40} does not fit its {len(array)} bytes")


@lru_cache  # clients send the same header again and again, and NumPy parses it slowly
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
