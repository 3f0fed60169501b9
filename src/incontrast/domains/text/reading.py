"""Whatever users have that is texts, brought into a TextCollection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from incontrast.domains.base import dataset_items
from incontrast.domains.text.collection import BETWEEN, TextCollection

USUAL = "text"  # the name of the field that holds the text, where nobody says


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
    contents = [packed(row, f"text {number}") for number, row in enumerate(rows)]
    if not contents:
        raise ValueError("there are no texts: give at least one")
    return TextCollection(contents)


def packed(row: Any, where: str, columns: Sequence[str] | None = None) -> bytes:
    """A text or a pair of them as bytes: of a string, UTF-8 bytes, a pair of them, or a record.

    ``columns`` are the field or the two fields of a record: ``text``, or its only string, if None.
    """
    if isinstance(row, Mapping):
        row = _fields(row, where, columns)
    parts = list(row) if isinstance(row, list | tuple) else [row]
    if len(parts) not in (1, 2) or not all(isinstance(part, str | bytes) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts[:3])
        raise ValueError(f"{where} must be a string or a pair of strings, got {kinds or 'nothing'}")
    return BETWEEN.join(_checked(part, where) for part in parts)


def checked_contents(contents: Sequence[bytes], called: Callable[[int], str]) -> TextCollection:
    """The collection of texts that are bytes already, each checked to be one."""
    for number, content in enumerate(contents):
        for part in content.split(BETWEEN, 1):
            _checked(part, called(number))
    return TextCollection(contents)


def _fields(record: Mapping[str, Any], where: str, columns: Sequence[str] | None) -> Any:
    if columns is None:
        strings = [name for name, value in record.items() if isinstance(value, str)]
        columns = [USUAL] if USUAL in record else strings
        if len(columns) != 1:
            raise ValueError(
                f"{where} has no field {USUAL!r} and {len(strings)} others with strings: "
                f"choose among {sorted(record)}"
            )
    missing = [name for name in columns if name not in record]
    if missing:
        raise ValueError(f"{where} has no field {missing[0]!r}: it has {sorted(record)}")
    return [record[name] for name in columns]


def _checked(text: str | bytes, where: str) -> bytes:
    try:
        content = text.encode() if isinstance(text, str) else text
        empty = not (text if isinstance(text, str) else text.decode()).strip()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{where} is not Unicode text that UTF-8 can hold ({error.reason}): decode it with the "
            "encoding that it has, or leave it out"
        ) from error
    if empty:
        raise ValueError(f"{where} is empty or has spaces only: leave it out")
    return content
