"""Data as the options of a command say how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from incontrast.data import Source, read_source

__all__ = ["read"]


def read(
    data: Path, table: Mapping[str, str | None], *, check: bool = False, strict: bool = False
) -> Source:
    """The source at a path.

    Args:
        data: The path.
        table: The options ``columns`` (with commas between them), ``id`` and ``label``.
        check: As in ``read_source``.
        strict: As in ``read_source``.
    """
    names = table["columns"]
    columns = None if names is None else [name.strip() for name in names.split(",")]
    return read_source(
        data, check=check, strict=strict, columns=columns, id=table["id"], label=table["label"]
    )
