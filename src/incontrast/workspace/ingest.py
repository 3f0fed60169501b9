"""New data on their way into a workspace: a few megabytes at a time, known when they come again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from incontrast.data.sources import Source, resolve
from incontrast.domains.base import Collection, Domain
from incontrast.memory import Extent, Store
from incontrast.memory.store import content_hash, short_hashes
from incontrast.workspace.errors import WorkspaceError

ROWS = 1024  # items of a collection that are packed together


class NewData:
    """What was handed to ``fit`` or ``update``: a ``Source``, or whatever the domain collects.

    ``strict`` refuses files that cannot be read instead of leaving them out.
    """

    def __init__(self, items: Any, domain: Domain, *, strict: bool = False) -> None:
        self.domain = domain
        self.strict = strict
        self.skipped: list[str] = []
        self.name = "data in memory"
        self.classes: tuple[str, ...] = ()
        items = resolve(items, domain)
        if isinstance(items, Source):
            self.name, self.classes = items.title, items.classes
            self.fingerprint = items.fingerprint()
            self.skipped = [skip.reason for skip in items.skipped]
            self._items: Source | Collection = items
        else:
            self._items = domain.collect(items)
            digest = hashlib.blake2b(digest_size=16)
            for contents in self.packed():
                for content in contents:
                    digest.update(content)
            self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._items)

    def packed(self) -> Iterator[list[bytes]]:
        """The items as bytes, some at a time."""
        items = self._items
        if not isinstance(items, Source):
            for indices in torch.split(torch.arange(len(items)), ROWS):
                part = self.domain.materialise(items, indices)
                yield self.domain.pack(part, torch.arange(len(part)))
            return
        for chunk in items.chunks(self.domain, strict=self.strict):
            self.skipped += [skip.reason for skip in chunk.skipped]
            if len(chunk.items):
                yield self.domain.pack(chunk.items, torch.arange(len(chunk.items)))
        if items.fingerprint() != self.fingerprint:
            raise WorkspaceError(
                f"files in {items.path} were changed while they were read: "
                "nothing was ingested; run it again when they are complete"
            )

    def hashes(self) -> Iterator[list[bytes]]:
        """The content hashes of the items, some at a time."""
        for contents in self.packed():
            yield list(map(content_hash, contents))


class KnownHashes:
    """What the memory of a version has seen, and items with further ids, by content hashes."""

    def __init__(self, store: Store, extent: Extent | None, ids: range = range(0)) -> None:
        self._sorted = np.sort(store.hashes(extent, ids))

    def contains(self, contents: Sequence[bytes]) -> NDArray[np.bool_]:
        """(n,) whether each of these packed items is known."""
        digests = short_hashes(map(content_hash, contents))
        if not len(self._sorted):
            return np.zeros(len(digests), bool)
        places = np.searchsorted(self._sorted, digests).clip(max=len(self._sorted) - 1)
        known: NDArray[np.bool_] = self._sorted[places] == digests
        return known

    def leave_out(self, contents: Sequence[bytes]) -> list[bytes]:
        """The packed items that are not known."""
        known = self.contains(contents)
        return [content for content, seen in zip(contents, known, strict=True) if not seen]
