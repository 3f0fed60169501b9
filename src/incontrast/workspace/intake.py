"""Data on their way into a workspace: a few megabytes at a time, known when they come again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from incontrast.data.sources import Source, resolve
from incontrast.domains.base import Collection, Domain
from incontrast.memory import content_hash
from incontrast.workspace.errors import WorkspaceError

__all__ = ["Intake"]

ROWS = 1024  # items of a collection that are packed together


class Intake:
    """What was handed to ``fit`` or ``update``.

    Args:
        items: A ``Source``, or whatever the domain collects.
        domain: The kind of data.
        strict: Refuse files that cannot be read instead of leaving them out.
    """

    def __init__(self, items: Any, domain: Domain, *, strict: bool = False) -> None:
        self.domain = domain
        self.strict = strict
        self.skipped: list[str] = []
        self.source: Source | None = None
        self._collection: Collection | None = None
        items = resolve(items, domain)
        if isinstance(items, Source):
            self.source = items
            self.fingerprint = items.fingerprint()
            self.skipped = [skip.reason for skip in items.skipped]
        else:
            self._collection = domain.collect(items)
            digest = hashlib.blake2b(digest_size=16)
            for part in self._held(self._collection):
                for content in domain.pack(part, torch.arange(len(part))):
                    digest.update(content)
            self.fingerprint = digest.hexdigest()

    @property
    def name(self) -> str:
        """Where the data come from, in words."""
        return "data in memory" if self.source is None else str(self.source.path)

    def packed(self) -> Iterator[list[bytes]]:
        """The items as bytes, some at a time.

        Raises:
            WorkspaceError: Files were changed while they were read.
        """
        for part in self._parts():
            if len(part):
                yield self.domain.pack(part, torch.arange(len(part)))
        if self.source is not None and self.source.fingerprint() != self.fingerprint:
            raise WorkspaceError(
                f"files in {self.source.path} were changed while they were read: "
                "nothing was taken in; run it again when they are complete"
            )

    def hashes(self) -> Iterator[list[bytes]]:
        """The content hashes of the items, some at a time."""
        for contents in self.packed():
            yield [content_hash(content) for content in contents]

    def _parts(self) -> Iterator[Collection]:
        if self._collection is not None:
            yield from self._held(self._collection)
            return
        assert self.source is not None
        for chunk in self.source.chunks(self.domain, strict=self.strict):
            self.skipped += [skip.reason for skip in chunk.skipped]
            yield chunk.items

    def _held(self, collection: Collection) -> Iterator[Collection]:
        for indices in torch.split(torch.arange(len(collection)), ROWS):
            yield self.domain.materialise(collection, indices)
