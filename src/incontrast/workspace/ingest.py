"""New data on their way into a workspace: a few megabytes at a time, known when they come again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from incontrast.data.sources import Source, resolve
from incontrast.domains.base import Collection, Domain
from incontrast.text import counted
from incontrast.workspace.files import WorkspaceError

ROWS = 1024  # items of a collection that are packed together
LOOKED_AT = 8  # images that an encoder is tried on


class NewData:
    """What was handed to ``fit`` or ``update``: a ``Source``, or whatever the domain collects.

    ``strict`` refuses files that cannot be read instead of leaving them out; ``read`` makes a
    ``Source`` of a path.
    """

    def __init__(
        self,
        items: Any,
        domain: Domain,
        *,
        strict: bool = False,
        read: Callable[[Path], Source] | None = None,
    ) -> None:
        self.domain = domain
        self.strict = strict
        self.skipped: list[str] = []
        self.name = "data in memory"
        self.classes: tuple[str, ...] = ()
        self.columns: tuple[str, ...] = ()
        items = resolve(items, domain, read)
        if isinstance(items, Source):
            self.name, self.classes, self.columns = items.title, items.classes, items.columns
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

    def telling(self) -> Any:
        """Of a path, the items that tell what encoder they need: a few images, all of others."""
        items = self._items
        if not isinstance(items, Source):
            return None
        if items.kind != "images":
            return items.items
        places = torch.linspace(0, len(items) - 1, min(len(items), LOOKED_AT)).long()
        return items.take(self.domain, places, strict=False).items

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


def left_out(forgotten: int) -> str:
    """Forgotten items that the data still have, in words."""
    were = "was" if forgotten == 1 else "were"
    return f"{counted(forgotten, 'forgotten item')} {were} left out"
