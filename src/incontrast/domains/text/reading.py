"""Texts of users, of records or of a memory on disk, checked and brought into a collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from incontrast.domains.base import dataset_items
from incontrast.domains.text.collection import BETWEEN, TextCollection

TEXT_FIELD = "text"  # the field of a record that has its text, if no other is chosen


def read_texts(items: Any) -> TextCollection:
    """The collection of these texts; see ``Text.collect`` for what they can be."""
    if isinstance(items, TextCollection):
        return items
    rows = dataset_items(items) if isinstance(items, Dataset) else items
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(
            "texts must be a list of strings or of pairs of them, a data set, or a path given to "
            f"the learner, got {type(items).__name__}: put a single text into a list"
        )
    contents = [pack_text(row, f"text {number}") for number, row in enumerate(rows)]
    if not contents:
        raise ValueError("there are no texts: give at least one")
    return TextCollection(contents)


def unpack_texts(blobs: Sequence[bytes]) -> TextCollection:
    """The collection of texts that are packed already."""
    for number, blob in enumerate(blobs):
        for text in blob.split(BETWEEN, 1):
            _encode(text, f"packed text {number}, which is damaged,")
    return TextCollection(blobs)


def pack_text(row: Any, name: str, columns: Sequence[str] | None = None) -> bytes:
    """A text or a pair of them as bytes: of strings, of UTF-8 bytes, or of a record.

    ``columns`` are the field or the two fields of a record with texts; by default ``text``, or its
    only string.
    """
    if isinstance(row, Mapping):
        if columns is None:
            columns = [TEXT_FIELD]
            if TEXT_FIELD not in row:
                columns = [field for field, value in row.items() if isinstance(value, str)]
            if len(columns) != 1:
                raise ValueError(
                    f"{name} has no field {TEXT_FIELD!r} and {len(columns)} others with strings: "
                    f"choose among {sorted(row)}"
                )
        for field in columns:
            if field not in row:
                raise ValueError(f"{name} has no field {field!r}: it has {sorted(row)}")
        row = [row[field] for field in columns]
    texts = list(row) if isinstance(row, list | tuple) else [row]
    if len(texts) not in (1, 2) or not all(isinstance(text, str | bytes) for text in texts):
        kinds = ", ".join(type(text).__name__ for text in texts[:3]) or "nothing"
        raise ValueError(f"{name} must be a string or a pair of strings, got {kinds}")
    return BETWEEN.join(_encode(text, name) for text in texts)


def _encode(text: str | bytes, name: str) -> bytes:
    """A text in UTF-8, checked."""
    try:
        content = text.encode() if isinstance(text, str) else text
        empty = not (text if isinstance(text, str) else text.decode()).strip()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{name} is not Unicode text that UTF-8 can hold ({error.reason}): decode it with the "
            "encoding that it has, or leave it out"
        ) from error
    if empty:
        raise ValueError(f"{name} is empty or has spaces only: leave it out")
    return content
