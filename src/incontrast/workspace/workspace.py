"""A learner that lives in a folder."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from incontrast import saving
from incontrast._version import __version__
from incontrast.domains.base import Domain
from incontrast.learner import Learner, Own
from incontrast.memory import Memory, Policy, Store, remembered
from incontrast.strategies import Strategy
from incontrast.training.fabric import FabricEngine, choose_engine
from incontrast.training.progress import Budget, ProgressCallback
from incontrast.workspace.errors import Damaged, WorkspaceError
from incontrast.workspace.files import read_json, sweep, write_json
from incontrast.workspace.following import follow
from incontrast.workspace.journal import Journal
from incontrast.workspace.lock import locked
from incontrast.workspace.process_group import Crew
from incontrast.workspace.recovery import Notify
from incontrast.workspace.rollback import discard_pending, forget_items, go_back
from incontrast.workspace.steps import Advance, Step
from incontrast.workspace.versions import Versions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Workspace"]

SETTINGS = "workspace.json"
MAKING = ".making"  # in a folder that is being made into a workspace, and is not one yet
BEGUN = (
    *(f"memory.sqlite{suffix}" for suffix in ("", "-journal", "-wal", "-shm")),
    *("current.json", "journal.jsonl"),
)


class Workspace:
    """A folder with versions of an encoder, the old items, and a journal.

    Make one with ``create``, come back to it with ``open``. One process at a time writes (``fit``,
    ``update``, ``rollback``, ``forget``); reading is always possible. Whatever interrupts a
    writer, a power cut included, the current version keeps serving; ``update`` run again goes on
    where it was and ends with the same bits.

    >>> import tempfile, incontrast as ic
    >>> rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    >>> learner = ic.Learner(ic.Vectors(5), fit_strategy=ic.Retrain(max_epochs=2), seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     workspace = ic.Workspace.create(f"{folder}/space", learner)
    ...     first = workspace.fit(rows[:40])
    ...     second = workspace.update(rows[40:], strategy=ic.ICL(max_epochs=2))
    ...     first.version, second.version, workspace.current
    (1, 2, 2)
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        *,
        domain: Domain | None = None,
        strategy: Strategy | None = None,
        fit_strategy: Strategy | None = None,
        memory: Policy | None = None,
        device: torch.device | str | None = None,
        fabric: Fabric | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.versions = Versions(folder / "versions", folder / "current.json")
        self.journal = Journal(folder / "journal.jsonl")
        self.store_file = folder / "memory.sqlite"
        self.lock_file = folder / "lock"
        self.reports = folder / "reports"
        self._own: Own = {
            "domain": domain,
            "strategy": strategy,
            "fit_strategy": fit_strategy,
            "memory": memory,
            "device": device,
            "fabric": fabric,
        }
        self._crew: Crew | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        learner: Learner,
        *,
        tolerance: float = 0.05,
        keep: int = 10,
        threads: int | None = None,
    ) -> Workspace:
        """A new workspace in a new or empty folder.

        Args:
            folder: Where it lives.
            learner: Not fitted; its domain, strategies, memory policy and seed are the workspace's.
            tolerance: How much larger the loss of old items may be after an update, as a share,
                for the update to be promoted.
            keep: Versions to keep, at least 2; older ones are deleted.
            threads: Threads that the command line computes with, since the bits of a sum depend on
                it; torch's choice if None.
        """
        folder = Path(folder).absolute()
        if learner.fitted:
            raise ValueError("a workspace begins with a learner that is not fitted: make a new one")
        if not tolerance >= 0:
            raise ValueError(f"tolerance must not be negative, got {tolerance}")
        if keep < 2:
            raise ValueError(f"keep must be at least 2, got {keep}: an update needs a way back")
        engine = learner.engine
        settings: dict[str, Any] = {}
        with engine.error_barrier("make the workspace"):
            if engine.rank == 0:
                settings = cls._make(folder, learner, tolerance, keep, threads)
        settings = engine.broadcast(settings)
        workspace = cls(folder, settings)
        fabric = engine.fabric if isinstance(engine, FabricEngine) else None
        workspace._own = {
            "domain": learner.initial_domain,
            "strategy": learner.strategy,
            "fit_strategy": learner.fit_strategy,
            "memory": learner.memory.policy,
            "device": engine.device if fabric is None else None,
            "fabric": fabric,
        }
        return workspace

    @classmethod
    def _make(
        cls, folder: Path, learner: Learner, tolerance: float, keep: int, threads: int | None
    ) -> dict[str, Any]:
        """Make the folder; returns the workspace's settings."""
        begun = (folder / MAKING).exists() and not (folder / SETTINGS).exists()
        if folder.exists() and not begun and (not folder.is_dir() or any(folder.iterdir())):
            what = "is a workspace already" if (folder / SETTINGS).exists() else "is not empty"
            raise WorkspaceError(f"{folder} {what}: choose a new or an empty folder")
        if begun:  # by an attempt that was cut short
            for name in BEGUN:
                (folder / name).unlink(missing_ok=True)
            sweep(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MAKING).touch()
        (folder / "versions").mkdir(exist_ok=True)
        Store.create(folder / "memory.sqlite").close()
        settings = {
            "id": uuid.uuid4().hex,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "incontrast": __version__,
            "tolerance": tolerance,
            "keep": keep,
            "threads": threads,
            "learner": saving.describe(learner),
        }
        made = cls(folder, settings)
        made.versions.promote(None)
        made.journal.add("init", workspace=settings["id"])
        write_json(folder / SETTINGS, settings)  # with it, the folder is a workspace
        (folder / MAKING).unlink()
        return settings

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        domain: Domain | None = None,
        strategy: Strategy | None = None,
        fit_strategy: Strategy | None = None,
        memory: Policy | None = None,
        device: torch.device | str | None = None,
        fabric: Fabric | None = None,
    ) -> Workspace:
        """A workspace that is there.

        Args:
            folder: Where it lives.
            domain: The domain, where it is one of your own; the others likewise.
            strategy: As in ``Learner.load``.
            fit_strategy: As in ``Learner.load``.
            memory: As in ``Learner.load``.
            device: As in ``Learner.load``.
            fabric: As in ``Learner.load``. Every process opens the workspace and makes the same
                calls; the first one writes.
        """
        folder = Path(folder).absolute()
        if not (folder / SETTINGS).is_file():
            if (folder / "versions").is_dir() and not (folder / MAKING).exists():
                raise Damaged(f"{folder / SETTINGS} is missing: restore it from a copy")
            raise WorkspaceError(f"{folder} is no workspace: incontrast init makes one")
        return cls(
            folder,
            read_json(folder / SETTINGS),
            domain=domain,
            strategy=strategy,
            fit_strategy=fit_strategy,
            memory=memory,
            device=device,
            fabric=fabric,
        )

    def crew(self) -> Crew:
        """The processes that work on it."""
        if self._crew is None:
            precision = self.settings["learner"]["precision"]
            device, fabric = self._own["device"], self._own["fabric"]
            self._crew = Crew(
                choose_engine(device, "float32" if fabric is not None else precision, fabric)
            )
        return self._crew

    @property
    def id(self) -> str:
        """Told to nothing else in the world."""
        return str(self.settings["id"])

    def report_file(self, version: int) -> Path:
        """Where the page of a version is, once it is written."""
        return self.reports / f"version-{version}.html"

    @property
    def current(self) -> int | None:
        """The number of the version that serves; None before the first fit."""
        return self.versions.current()

    # Reading -------------------------------------------------------------------------------------

    def template(self) -> Learner:
        """A learner with the workspace's settings, not fitted."""
        return saving.rebuild(
            self.settings["learner"], self.folder / SETTINGS, Learner, **self._own
        )

    def learner(self, version: int | None = None, *, memory: bool = True) -> Learner:
        """A version as a learner; what is done with it changes nothing in the workspace.

        Args:
            version: Its number; the current one by default.
            memory: Whether it can reach the old items.
        """
        if version is None:
            version = self.current
        if version is None:
            raise WorkspaceError(f"{self.folder} has no encoder yet: run fit first")
        if not memory:
            return self._load(version, None)
        return self._load(version, Store.open(self.store_file, readonly=True))

    def _load(self, version: int, store: Store | None) -> Learner:
        self.versions.verify(version)

        def items(learner: Learner, arrivals: int, threshold: float) -> Memory:
            policy = learner.memory.policy
            if store is None:
                return Memory(policy)
            return remembered(store, learner.domain, policy, self.versions.extent(version))

        return saving.read(self.versions.folder(version), Learner, items, **self._own)

    def check(self) -> list[str]:
        """Read every file; returns what is wrong."""
        wrong = []
        try:
            self.versions.current()
        except WorkspaceError as error:
            wrong.append(str(error))
        for number in self.versions.numbers():
            try:
                self.versions.verify(number)
                self.versions.evaluation(number)
            except WorkspaceError as error:
                if number in self.versions.numbers():  # and was not deleted meanwhile
                    wrong.append(str(error))
        try:
            store = Store.open(self.store_file, readonly=True)
            wrong += store.check()
            store.close()
        except RuntimeError as error:
            wrong.append(str(error))
        return wrong + [record.problem for record in self.journal.records() if record.problem]

    # Writing -------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, what: str) -> Iterator[Store]:
        """The store to write to, while nobody else may."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.lock_file, what))
            except OSError as error:
                message = f"{self.folder} cannot be written ({error.strerror})"
                raise WorkspaceError(message) from error
            store = stack.enter_context(closing(Store.open(self.store_file)))
            yield store
            store.fold()

    def fit(
        self,
        items: Any = None,
        *,
        budget: Budget | None = None,
        strict: bool = False,
        force: bool = False,
        discard: bool = False,
        progress: ProgressCallback | None = None,
        notify: Notify | None = None,
    ) -> Step:
        """Train a first encoder; arguments as in ``update``."""
        flags = {"strict": strict, "force": force, "discard": discard, "again": False}
        return self._advance("fit", items, None, budget, progress, notify, flags)

    def update(
        self,
        items: Any = None,
        *,
        strategy: Strategy | None = None,
        budget: Budget | None = None,
        strict: bool = False,
        force: bool = False,
        discard: bool = False,
        again: bool = False,
        progress: ProgressCallback | None = None,
        notify: Notify | None = None,
    ) -> Step:
        """Take new items in, train, evaluate, and promote what came of it.

        Args:
            items: A ``Source`` or whatever the domain collects; None finishes what was begun.
            strategy: How, for this once.
            budget: What training may cost. With seconds, the bits depend on the machine's speed.
            strict: Refuse files that cannot be read instead of leaving them out.
            force: Promote the candidate whatever is wrong with it.
            discard: Drop what was begun or refused before.
            again: Take items in that this version or one that led to it has learned from.
            progress: Called after every step of training.
            notify: Called with a sentence at every step of the update.
        """
        flags = {"strict": strict, "force": force, "discard": discard, "again": again}
        return self._advance("update", items, strategy, budget, progress, notify, flags)

    def _advance(
        self,
        kind: str,
        items: Any,
        strategy: Strategy | None,
        budget: Budget | None,
        progress: ProgressCallback | None,
        notify: Notify | None,
        flags: dict[str, bool],
    ) -> Step:
        crew = self.crew()
        if not crew.leads:
            return follow(self, crew, kind, strategy, progress)
        with crew.leading(), self.writing(kind) as store:
            advance = Advance(self, store, kind, strategy, budget, progress, notify)
            step = advance.run(items, **flags)
        crew.tell("done", step)
        return step

    def discard(self, kind: str | None = None) -> bool:
        """Drop what is unfinished or was refused; returns whether there was something.

        Args:
            kind: Only if it is a ``"fit"`` or an ``"update"``; whichever it is if None.
        """
        return discard_pending(self, kind)

    def rollback(self, to: int | None = None) -> int:
        """Make an earlier version the current one, with the memory it had; returns its number.

        An update that is unfinished or was refused is dropped.

        Later versions stay beside it, so that ``rollback`` can also go forward.

        Args:
            to: The version; the one before the current by default.
        """
        return go_back(self, to)

    def forget(self, ids: Iterable[int] = (), *, hashes: Iterable[bytes] = ()) -> int:
        """Delete items for good, from memory and from the file; returns how many there were.

        Reports, which may show them, are deleted as well. Items that were forgotten before do not
        count.

        Args:
            ids: Their places in the order of arrival, from 0; the journal has those of each
                ``ingest``.
            hashes: Content hashes (``content_hash`` of packed items).

        Raises:
            StoreBusy: They are forgotten, but somebody was reading the file all the while, and
                their bytes may still be in its log: call it again.
        """
        return forget_items(self, ids, hashes)
