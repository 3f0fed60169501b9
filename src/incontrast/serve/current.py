"""The current version in memory, and a thread that exchanges it once another one is promoted."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import torch
from torch import Tensor

from incontrast.compat import Chain, chain
from incontrast.compat.index import Index
from incontrast.compat.migration import open_serving, serving_place
from incontrast.serve.metrics import Metrics
from incontrast.serve.settings import ServeSettings
from incontrast.workspace import Workspace, WorkspaceError

log = logging.getLogger(__name__)


class Version:
    """A version in memory, with the maps that lead to other spaces: it needs no file any more."""

    def __init__(self, workspace: Workspace, number: int) -> None:
        self.number = number
        self.learner = workspace.learner(number, memory=False)
        self.domain = self.learner.domain
        self.links = workspace.links()
        self.encoders = {link.old: link.encoder for link in self.links if link.encoder}
        for kept in workspace.versions.numbers():
            self.encoders[kept] = str(workspace.versions.record(kept)["encoder"])

    @property
    def encoder(self) -> str:
        """Its hash."""
        return self.encoders[self.number]

    def about(self, space: int) -> dict[str, Any]:
        """What an answer in a space names."""
        return {
            "version": self.number,
            "encoder": self.encoder,
            "space": space,
            "space_encoder": self.encoders.get(space),
        }

    def adapter(self, space: int) -> Chain:
        """What maps its embeddings into the space of another version, or leaves them as they are.

        Raises:
            NoAdapter: No map leads there.
        """
        return chain(self.links, self.number, space)

    @torch.no_grad()
    def embed(self, batches: list[Any]) -> Tensor:
        """(n, d) embeddings of the items of all batches, in one forward pass, on the CPU."""
        engine = self.learner.engine
        batch = batches[0] if len(batches) == 1 else self.domain.join(batches)
        prepared = self.domain.prepare(batch.to(engine.device))
        return engine.forward(self.learner.backbone, prepared).float().cpu()


LONGEST = 30.0  # seconds between two tries to load what cannot be loaded


class Current:
    """The current version of a workspace; the last one that could be loaded if a later one cannot.

    Args:
        settings: Which workspace, and how often to look at it.
        metrics: Where to note what happens.
    """

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.folder, self._index_folder = settings.workspace, settings.index
        self._trust = settings.trust
        self._interval = settings.interval
        self._metrics = metrics
        self.problem: str | None = None
        """Why the workspace cannot be read, or its current version not be loaded, as it is told."""
        self._logged = ""
        found = self.open()
        self._id, self._seen = found.id, self._stamp()
        self.version = Version(found, found.serving())
        self.index = self._open_index()
        """What to search in: complete as it is, it is exchanged like the version."""
        self._note()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def open(self) -> Workspace:
        """The workspace as it is now."""
        return Workspace.open(self.folder, trust=self._trust)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def refresh(self) -> None:
        """Load the current version if it is another one; until it is complete, nobody sees it."""
        try:
            stamp = self._stamp()
            if stamp == self._seen and self.problem is None:
                return
            workspace = self.open()
            if workspace.id != self._id:
                raise WorkspaceError(f"{self.folder} is another workspace now: start serve again")
            number = workspace.serving()
            encoder = workspace.encoder_hash(number)
            if (number, encoder) != (self.version.number, self.version.encoder):
                before, self.version = self.version, Version(workspace, number)
                log.info("version %d serves now, after version %d", number, before.number)
            if stamp[1:] != self._seen[1:]:
                self.index = self._open_index()
            self._seen, self.problem = stamp, None
        except Exception as error:  # whatever happens to the files, what is loaded keeps serving
            text = str(error)  # not the error, whose traceback keeps what was loaded so far
            if self.problem is None or text != self._logged:
                log.warning("version %d keeps serving: %s", self.version.number, text)
            self.problem, self._logged = self.told(error), text
        self._note()

    def told(self, error: Exception) -> str:
        """What is wrong, for whoever asks; where files are, and what Python said, is in the log."""
        if not isinstance(error, WorkspaceError):
            return "its files cannot be read, the log of the service says why"
        text, folders = str(error), [*filter(None, (self.folder, self._index_folder))]
        for number, folder in enumerate(folders):  # whose names may have brackets
            text = text.replace(str(folder.absolute()), f"\0{number}")
        text = re.sub(r" \(.*\)", "", text)  # in brackets is what a damaged file has led to
        for number, folder in enumerate(folders):
            text = text.replace(f"\0{number}", folder.name)
        return text

    def _watch(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            self.refresh()
            # What cannot be loaded is read and hashed each time it is tried.
            pause = self._interval if self.problem is None else min(2 * pause, LONGEST)

    def _open_index(self) -> Index | None:
        if self._index_folder is None:
            return None
        index = open_serving(self._index_folder)
        known = self._id, self.version.encoders.get(index.stamp.version)
        if known != (index.stamp.workspace, index.stamp.encoder):
            raise WorkspaceError(
                f"{self._index_folder} holds vectors of an encoder that is unknown to "
                f"{self.folder}: they cannot be compared"
            )
        return index

    def _stamp(self) -> tuple[tuple[str, int, int], ...]:
        """What changes with the pointer to the current version, and with the index."""
        files, serving = [self.folder / "state.json"], ""
        if self._index_folder is not None:
            serving = serving_place(self._index_folder).name
            files += sorted(self._index_folder.glob(f"{serving}*"))
        found = [(file.name, file.stat()) for file in files]
        stamps = [(name, about.st_ino, about.st_mtime_ns) for name, about in found]
        return (*stamps, (serving, 0, 0))

    def _note(self) -> None:
        self._metrics.version.set(self.version.number)
        self._metrics.readable.set(self.problem is None)
