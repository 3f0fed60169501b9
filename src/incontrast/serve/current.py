"""The current version in memory, and a thread that replaces it once another one is promoted."""

import logging
import re
import threading
from pathlib import Path
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

LONGEST_PAUSE = 30.0  # seconds between two attempts to load what cannot be loaded


class Version:
    """A version in memory, with the maps into other spaces; it needs no files any more."""

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
        """What every answer in a space tells."""
        return {
            "version": self.number,
            "encoder": self.encoder,
            "space": space,
            "space_encoder": self.encoders.get(space),
        }

    def adapter(self, space: int) -> Chain:
        """The map of its embeddings into the space of another version.

        Raises:
            NoAdapter: There is none.
        """
        return chain(self.links, self.number, space)

    @torch.no_grad()
    def embed(self, batches: list[Any]) -> Tensor:
        """(n, d) embeddings of the items of all batches, from one forward pass, on the CPU."""
        engine = self.learner.engine
        batch = batches[0] if len(batches) == 1 else self.domain.join(batches)
        prepared = self.domain.prepare(batch.to(engine.device))
        return engine.forward(self.learner.backbone, prepared).float().cpu()


class Current:
    """The current version of a workspace and the index, or the last ones that could be loaded."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._interval = settings.interval
        self.problem: str | None = None  # why they cannot be loaded
        self._logged = ""
        workspace = self.open()
        self._id, self._seen = workspace.id, self._stamp()
        self.version = Version(workspace, workspace.serving())
        self.index = self._open_index()
        self._note()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def open(self) -> Workspace:
        """The workspace as it is now."""
        return Workspace.open(self._settings.workspace, trust=self._settings.trust)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def refresh(self) -> None:
        """Load the current version and the index if they have changed, and then replace them."""
        try:
            stamp = self._stamp()
            if stamp == self._seen and self.problem is None:
                return
            workspace = self.open()
            if workspace.id != self._id:
                folder = self._settings.workspace
                raise WorkspaceError(f"{folder} is another workspace now: start serve again")
            number = workspace.serving()
            encoder = workspace.encoder_hash(number)
            if (number, encoder) != (self.version.number, self.version.encoder):
                before, self.version = self.version, Version(workspace, number)
                log.info("version %d serves now, after version %d", number, before.number)
            if stamp[1:] != self._seen[1:]:
                self.index = self._open_index()
            self._seen, self.problem = stamp, None
        except Exception as error:  # whatever happens to the files, what is loaded keeps serving
            text = str(error)  # the error itself would keep what was loaded so far in memory
            if self.problem is None or text != self._logged:
                log.warning("version %d keeps serving: %s", self.version.number, text)
            self.problem, self._logged = self.public(error), text
        self._note()

    def public(self, error: Exception) -> str:
        """A message without paths, and without the details that errors have in parentheses."""
        if not isinstance(error, WorkspaceError):
            return "its files cannot be read, the log of the service says why"
        folders = filter(None, (self._settings.workspace, self._settings.index))
        names = {str(folder.absolute()): folder.name for folder in folders}
        pattern = "|".join([*map(re.escape, names), r" \(.*\)"])
        return re.sub(pattern, lambda match: names.get(match[0], ""), str(error))

    def _watch(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            self.refresh()
            # An attempt to load reads and hashes everything.
            pause = self._interval if self.problem is None else min(2 * pause, LONGEST_PAUSE)

    def _open_index(self) -> Index | None:
        folder = self._settings.index
        if folder is None:
            return None
        index = open_serving(folder)
        known = self._id, self.version.encoders.get(index.stamp.version)
        if known != (index.stamp.workspace, index.stamp.encoder):
            workspace = self._settings.workspace
            raise WorkspaceError(f"{folder} holds vectors of an encoder unknown to {workspace}")
        return index

    def _stamp(self) -> tuple[Any, ...]:
        """Changes whenever another version is promoted (first part), or the index changes."""

        def of(file: Path) -> tuple[str, int, int]:
            stat = file.stat()
            return file.name, stat.st_ino, stat.st_mtime_ns

        state, folder = of(self._settings.workspace / "state.json"), self._settings.index
        if folder is None:
            return (state,)
        serving = serving_place(folder).name
        return (state, serving, *map(of, sorted(folder.glob(f"{serving}*"))))

    def _note(self) -> None:
        self._metrics.version.set(self.version.number)
        self._metrics.readable.set(self.problem is None)
