"""Vectors: the numbers of a table, checked."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from incontrast.data.numpy_tables import StoredRows
from incontrast.data.source import Source
from incontrast.data.tables import Table, check_size
from incontrast.domains.images.files import Skipped
from incontrast.streams import pick

log = logging.getLogger(__name__)

NO_FEATURES = ("label", "labels", "class", "target", "y", "id", "index")
ROWS = 65536  # checked at a time


def read_vectors(table: Table, *, strict: bool) -> Source:
    """The rows of a table as float32, or as ``StoredRows``.

    A row with a number that is missing or not finite is refused, or left out unless ``strict``; the
    others keep their names, which are their places if the table has no ids.
    """
    path, rows = table.path, table.numbers()
    features = tuple(table.feature_names)
    if rows.ndim != 2:
        raise ValueError(f"{path} must hold a table (n, d), got shape {rows.shape}")
    if 0 in rows.shape:
        raise ValueError(f"{path} holds no rows (shape {rows.shape})")
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold real numbers, got {rows.dtype}")
    for name in features:
        if name.lower() in NO_FEATURES:
            log.warning(
                "%s: the column %r is taken as a feature: is it one? Choose by columns, id, label",
                path,
                name,
            )
    places = tuple(map(str, range(len(features))))
    if features == places or len({*features}) < len(features):
        features = ()  # places, or names that occur twice, do not identify columns
    if not isinstance(rows, StoredRows):
        rows = _as_floats(rows)
    whole, skipped = np.ones(len(rows), dtype=bool), []
    for start in range(0, len(rows), ROWS):
        finite = np.isfinite(_as_floats(rows[start : start + ROWS]))
        for row in np.flatnonzero(~finite.all(axis=1)).tolist():
            whole[start + row] = False
            place = table.place(start + row, int(finite[row].argmin()))
            reason = f"{path} must hold finite numbers, and has none in {place}"
            if strict:
                raise ValueError(f"{reason}: fix or remove it")
            skipped.append(Skipped(str(path), reason))
    source = table.source("vectors", rows, skipped, features)
    if not skipped:
        return source
    kept = np.flatnonzero(whole)
    if not len(kept):
        raise ValueError(f"no row of {path} is whole; the first: {skipped[0].reason}")
    check_size(len(kept) * rows.shape[1] * rows.dtype.itemsize, path)
    return replace(
        source,
        items=pick(rows, torch.from_numpy(kept)),
        ids=source.names(kept.tolist()),
        labels=None if source.labels is None else source.labels[kept],
    )


def _as_floats(rows: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a double may be too large for a float
        return rows.astype(np.float32)
