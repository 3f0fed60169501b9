"""New data on their way into a workspace, a few megabytes at a time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from incontrast.data.source import Source
from incontrast.data.sources import resolve
from incontrast.domains.base import Collection, Domain
from incontrast.memory.store import KnownHashes, StoreError
from incontrast.randomness import generator
from incontrast.text import counted
from incontrast.workspace.files import WorkspaceError
from incontrast.workspace.state import StateMachine

if TYPE_CHECKING:
    from incontrast.learner import Learner

ROWS = 1024  # items of a collection that are packed together
TRIED = 8  # images that an encoder is tried on


class NewData:
    """The data of a ``fit`` or an ``update``: a ``Source``, or whatever the domain collects.

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
        self.domain, self.strict = domain, strict
        self.skipped: list[str] = []
        self.name = "data in memory"
        self.classes: tuple[str, ...] = ()
        self.columns: tuple[str, ...] = ()
        self._items: Source | Collection
        items = resolve(items, domain, read)
        if isinstance(items, Source):
            self._items = items
            self.name, self.classes, self.columns = items.title, items.classes, items.columns
            self.fingerprint = items.fingerprint()
            self.skipped = [skip.reason for skip in items.skipped]
        else:
            self._items = domain.collect(items)
            digest = hashlib.blake2b(digest_size=16)
            for contents in self.packed():
                digest.update(b"".join(contents))
            self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._items)

    def examples(self) -> Any:
        """Items to try an encoder on: a few images, or all items of other kinds, from a path."""
        items = self._items
        if not isinstance(items, Source) or items.kind != "images":
            return items.items if isinstance(items, Source) else None
        places = torch.linspace(0, len(items) - 1, min(len(items), TRIED)).long()
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
                f"files in {items.path} were changed while they were read: nothing was ingested; "
                "run it again when they are complete"
            )


def ingest(
    machine: StateMachine,
    data: NewData,
    learner: Learner,
    operation: dict[str, Any],
    *,
    again: bool,
    alive: Callable[[], None],
) -> bool:
    """Put items into the store, where they do not count until the version is promoted.

    Unless ``again``, items are left out that the current version has learned from, that were
    forgotten, or that were refused and are joined now. Returns whether any was new. ``alive`` is
    called now and then.
    """
    begin = time.perf_counter()
    store, memory, base = machine.store, learner.memory, operation["base"]
    empty: dict[str, Any] = {"name": "", "items": 0, "skipped": [], "parts": []}
    before = machine.state.operation["data"] if machine.state.refused else empty
    arrivals = store.arrivals()  # an id is used once, whichever version is the current one
    first = arrivals - before["items"]
    extent = None if base is None else machine.versions.extent(base)
    hashes = None if again else KnownHashes(store, extent, range(first, arrivals))
    machine.ingesting({**operation, "first": first, "data": before, "incoming": data.name})
    draws = generator(learner.seed, "memory", learner.version + 1)
    memory.draw_keys(torch.arange(first, arrivals), draws)  # of items that have theirs
    count = known = forgotten = 0
    example: bytes | None = None
    alike = True
    try:
        for contents in data.packed():
            new = contents
            if hashes is not None:
                seen, deleted = hashes.contains(contents)
                new = [contents[place] for place in (~seen & ~deleted).nonzero()[0]]
                known += int(seen.sum())
                forgotten += int(deleted.sum())
            example = new[0] if example is None and new else example
            alike = alike and all(content == example for content in new)
            ids = torch.arange(arrivals + count, arrivals + count + len(new))
            store.append(arrivals + count, new, memory.draw_keys(ids, draws).numpy())
            count += len(new)
            alive()
        if count + known + forgotten == 0:
            reason = f"; the first: {data.skipped[0]}" if data.skipped else ""
            raise ValueError(f"nothing in {data.name} can be read{reason}")
    except Exception:
        with suppress(StoreError, OSError):  # on a full disk: the next run does it
            machine.cancel_ingest()
        raise
    omitted = f"{left_out(forgotten)} (--again ingests all items)" if forgotten else ""
    if count == 0:
        machine.cancel_ingest()
        if omitted:
            machine.notify(omitted)
        return False
    store.fold()
    seconds = time.perf_counter() - begin
    part = {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "items": count,
        "known": known,
        "forgotten": forgotten,
        "skipped": data.skipped,
        "classes": data.classes,
    }
    machine.ingested(part, seconds)
    remark = f"; {counted(known)} had been ingested before" if known else ""
    remark += f"; {omitted}" if omitted else ""
    machine.notify(f"ingested {counted(count)} in {seconds:.1f} s{remark}")
    if alike and count > 1:
        machine.notify(f"all {count:,} new items are the same: is that so?")
    return True


def left_out(forgotten: int) -> str:
    """Forgotten items that the data still contain, in words."""
    were = "was" if forgotten == 1 else "were"
    return f"{counted(forgotten, 'forgotten item')} {were} left out"
