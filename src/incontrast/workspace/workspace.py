"""A learner that lives in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np

from incontrast.files import alone_in, flush, make_folder
from incontrast.import_path import named_code, permit, permitted
from incontrast.memory.store import PRESENT, Store
from incontrast.workspace import config
from incontrast.workspace.config import CONFIG, config_of
from incontrast.workspace.files import (
    CREATING,
    NO_ENCODER,
    SETTINGS,
    UNFINISHED,
    Damaged,
    Journal,
    Versions,
    WorkspaceError,
    check_no_link,
    locked,
    read_json,
    write_json,
)
from incontrast.workspace.state import NAMES, Notify, State, StateMachine
from incontrast.workspace.status import damage_in

if TYPE_CHECKING:  # torch is imported only by what loads or trains an encoder
    from torch import Tensor

    from incontrast import Budget, Domain, Learner, Probe, ProgressCallback, Strategy
    from incontrast.compat import Chain, Link, Stamp
    from incontrast.data import ProbeSet, Source
    from incontrast.learner import Own
    from incontrast.training.engine import Engine
    from incontrast.weights import Weights
    from incontrast.workspace.update import Step

BEGUN = (  # what an interrupted creation may leave
    *(f"memory.sqlite{suffix}" for suffix in ("", "-journal", "-wal", "-shm")),
    *("state.json", "journal.jsonl", CONFIG),
)


class AdoptOptions(TypedDict, total=False):
    """Arguments of ``fit``, ``adopt`` and ``update``, which describes them."""

    strict: bool
    force: bool
    discard: bool
    probe: Probe | ProbeSet | str | Path | None
    notify: Notify | None


class Options(AdoptOptions, total=False):
    """Further arguments of ``fit`` and ``update``, which train."""

    budget: Budget | None
    callbacks: Sequence[ProgressCallback]


class Workspace:
    """A folder with versions of an encoder, the old items, and a journal.

    ``create`` makes one, ``open`` opens it again. One process at a time writes (``fit``,
    ``update``, ``rollback``, ``forget``); reading is always possible. Whatever interrupts a writer,
    the current version keeps serving, and ``update`` run again resumes and ends with the same
    weights, bit by bit.

    >>> import tempfile, torch, incontrast as ic
    >>> rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    >>> learner = ic.Learner(ic.Vectors(5), fit_strategy=ic.Retrain(max_epochs=2), seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     workspace = ic.Workspace.create(f"{folder}/space", learner)
    ...     first = workspace.fit(rows[:40])
    ...     second = workspace.update(rows[40:], strategy=ic.ICL(max_epochs=2))
    ...     first.version, second.version, workspace.current
    (1, 2, 2)
    """

    def __init__(self, folder: Path, settings: dict[str, Any], **own: Unpack[Own]) -> None:
        self.folder, self.settings = folder, settings
        self.versions = Versions(folder / "versions")
        self.journal = Journal(folder / "journal.jsonl")
        self.outputs = Journal(folder / "outputs.jsonl")
        self.state_file = folder / "state.json"
        self.store_file = folder / "memory.sqlite"
        self.lock_file = folder / "lock"
        self.reports = folder / "reports"
        self.training_file = folder / "training.checkpoint"
        self._trust = own.get("trust", False)
        self._own: Own = {**own, "trust": self.trust}
        if own.get("fabric") is None and own.get("device") is None:
            self._own["device"] = settings["device"]
        self._domain: Domain | None = None  # of the version that was loaded last

    @classmethod
    def create(
        cls,
        folder: str | Path,
        learner: Learner,
        *,
        tolerance: float = 0.05,
        keep: int = 10,
        threads: int | None = None,
        budget: Budget | None = None,
        device: str | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> Workspace:
        """A new workspace in a new or empty folder.

        Args:
            folder: Where it lives.
            learner: Not fitted; its domain, strategies, memory policy and seed are the workspace's.
            tolerance: How much larger the loss of old items may be after an update, as a share.
            keep: Versions to keep, at least 2; older ones are deleted.
            threads: Threads of the command line, on which rounding depends; torch's choice if None.
            budget: The budget of updates that are given none.
            device: Where later commands compute; None takes a CUDA device if there is one.
            table: ``columns``, ``id`` and ``label`` of tables by default, as in ``read_source``.
        """
        limits: dict[str, Any] = {"tolerance": tolerance, "keep": keep, "threads": threads}
        settings = config.initial_settings(
            learner, budget=budget, device=device, table=table, **limits
        )
        return create_workspace(Path(folder), learner, settings)

    @classmethod
    def open(cls, folder: str | Path, **own: Unpack[Own]) -> Workspace:
        """An existing workspace.

        Args:
            folder: Where it lives.
            own: As in ``Learner.load``: domain, strategies, memory policy or head of your own;
                device and fabric; ``trust=True``, once, if somebody else has created a workspace
                that names code. With a fabric, every process makes the same calls; the first one
                writes.
        """
        folder = Path(folder).absolute()
        if not (folder / SETTINGS).is_file():
            if (folder / "versions").is_dir() and not (folder / CREATING).exists():
                raise Damaged(f"{folder / SETTINGS} is missing: restore it from a copy")
            raise WorkspaceError(f"{folder} is not a workspace: incontrast init creates one")
        return cls(folder, config.read_settings(folder), **own)

    def trust(self, code: Collection[str]) -> bool:
        """Whether this user may run this code, which the workspace names; remembers it."""
        if self._trust is not True:
            return permitted(self.folder, code)
        permit(self.folder, code)
        return True

    @cached_property
    def engine(self) -> Engine:
        """The engine of this process."""
        from incontrast.training.engine import choose_engine

        device, fabric = self._own.get("device"), self._own.get("fabric")
        precision: Any = self.settings["learner"]["precision"] if fabric is None else "float32"
        return choose_engine(device, precision, fabric)

    # Reading -------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """A unique name."""
        return str(self.settings["id"])

    def report_file(self, version: int) -> Path:
        """Where the report of a version is, once it is written."""
        return self.reports / f"version-{version}.html"

    @contextmanager
    def writing_reports(self) -> Iterator[None]:
        """A block in which nobody else writes reports, or forgets what they show."""
        check_no_link(self.reports, "a folder of reports")
        self.reports.mkdir(exist_ok=True)
        with alone_in(self.reports):
            yield

    def state(self) -> State:
        """What is in progress, and which version serves."""
        try:
            state = State(**read_json(self.state_file))
        except TypeError as error:
            raise Damaged(f"{self.state_file} is damaged ({error})") from error
        except Damaged as error:
            raise Damaged(f"{error}, or choose a version with incontrast rollback --to N") from None
        if state.current is not None and not self.versions.exists(state.current):
            raise Damaged(
                f"{self.state_file} names version {state.current}, which is not in "
                f"{self.versions.root}: incontrast rollback --to N chooses one that is there"
            )
        return state

    @property
    def current(self) -> int | None:
        """The number of the version that serves; None before the first fit."""
        return self.state().current

    def serving(self, version: int | None = None) -> int:
        """This version, or by default the one that serves."""
        number = self.current if version is None else version
        if number is None:
            raise WorkspaceError(f"{self.folder} {NO_ENCODER}")
        return number

    def template(self) -> Learner:
        """A learner with the workspace's settings, not fitted."""
        from incontrast import saving
        from incontrast.learner import Learner

        return saving.rebuild(self.settings["learner"], self.folder / CONFIG, Learner, **self._own)

    @property
    def domain(self) -> Domain:
        """The kind of data."""
        return self.template().domain if self._domain is None else self._domain

    def read(self, path: str | Path, **options: Any) -> Source:
        """Items from a path; of a table, the workspace's columns where no others are given.

        Args:
            path: Where they are.
            options: As in ``read_source``; images are not checked by default.
        """
        from incontrast.data.sources import read_source, with_columns

        table = with_columns(Path(path), self.settings["table"], options)
        return read_source(path, **{"check": False, **options, **table})

    def learner(self, version: int | None = None, *, memory: bool = True) -> Learner:
        """A version as a learner; what is done with it changes nothing in the workspace.

        Args:
            version: Its number; the current one by default.
            memory: Whether it can reach the old items.
        """
        number = self.serving(version)
        return self.load(number, Store.open(self.store_file, readonly=True) if memory else None)

    def load(self, version: int, store: Store | None) -> Learner:
        """A version as a learner, with its memory over an open store, or without a memory."""
        from incontrast import saving
        from incontrast.learner import Learner
        from incontrast.memory.memory import Memory
        from incontrast.settings import encode

        self.versions.verify(version)
        folder, file = self.versions.folder(version), self.folder / CONFIG
        changes = config.of_versions(self.settings)
        learner = saving.read(folder, Learner, changes, file, **self._own)
        policy = learner.memory.policy
        learner.memory = Memory(policy)
        if store is not None:
            extent = self.versions.extent(version)
            learner.memory = Memory.over(store, learner.domain, policy, extent)
        if self._own.get("head") is None:
            heads = {"head": encode(learner.head)}, {"head": self.settings["learner"]["head"]}
            config.check_changes(*heads, file, head=False)
        self._domain = learner.domain
        return learner

    def adapter(self, source: int | None = None, target: int | None = None) -> Chain:
        """The map of embeddings between the spaces of two versions, by way of others if necessary.

        Args:
            source: The version that embedded; the current one by default.
            target: The version whose vectors are stored; the current one by default.

        Raises:
            NoAdapter: No map leads there.
        """
        from incontrast.compat import chain

        return chain(self.links(), self.serving(source), self.serving(target))

    def links(self) -> list[Link]:
        """The maps of all versions that are kept, verified."""
        from incontrast import saving

        links: dict[tuple[int, int], Link] = {}
        for number in self.versions.numbers():
            self.versions.verify(number, saving.LINK_FILES)
            read = saving.read_links(self.versions.folder(number))
            links |= {(link.old, link.new): link for link in read}
        return list(links.values())

    def stamp(self, version: int | None = None) -> Stamp:
        """What an index has to record of vectors of a version, the current one by default."""
        from incontrast.compat import Stamp

        number = self.serving(version)
        return Stamp(self.id, number, self.encoder_hash(number))

    def encoder_hash(self, version: int) -> str:
        """The hash of a version that is kept, or that a map leads to."""
        if self.versions.exists(version):
            return str(self.versions.record(version)["encoder"])
        for link in self.links():
            if link.old == version and link.encoder is not None:
                return link.encoder
        raise WorkspaceError(f"nothing is known of version {version}: it is no longer kept")

    def embed(self, items: Any, *, space: int | None = None, version: int | None = None) -> Tensor:
        """(n, d) embeddings of items by a version, on the CPU.

        Args:
            items: Of the workspace's kind.
            space: The version whose stored vectors these are to be compared with, by cosine:
                they are mapped into its space, and are unit vectors then.
            version: The one that embeds; the current one by default.
        """
        from incontrast.data.sources import resolve

        learner = self.learner(version, memory=False)
        items = resolve(items, learner.domain, self.read)
        mapped = self.adapter(learner.space, learner.space if space is None else space)
        return mapped(learner.embed(items))

    def check(self) -> list[str]:
        """Read every file; returns what is wrong."""
        return damage_in(self)

    # Writing -------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, doing: str, notify: Notify | None = None) -> Iterator[StateMachine]:
        """A block that changes the state, while nobody else can."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.lock_file, doing))
            except OSError as error:
                message = f"{self.folder} cannot be written ({error.strerror})"
                raise WorkspaceError(message) from error
            store = stack.enter_context(closing(Store.open(self.store_file)))
            yield StateMachine(self, store, notify)
            store.fold()

    def sweep(self) -> None:
        """Delete what an interrupted writing or deleting has left."""
        for entry in self.versions.root.glob(f"{UNFINISHED}*"):
            shutil.rmtree(entry)
        for pattern in (".*.json.*", ".*.toml.*", ".*.checkpoint.*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def fit(self, items: Any = None, **options: Unpack[Options]) -> Step:
        """Train a first encoder; arguments as in ``update``."""
        return self._run("fit", items, **options)

    def adopt(
        self,
        items: Any = None,
        *,
        weights: Weights | None = None,
        head_weights: Weights | None = None,
        seen_count: int | None = None,
        **options: Unpack[AdoptOptions],
    ) -> Step:
        """Take an encoder that was trained elsewhere as the first version; nothing is trained.

        ``Learner(keep_neighbours=0.6)``, which ``from_encoder`` and the command line take, bounds
        what updates may do to old items.

        Args:
            items: What it was trained on, or a uniform sample of it.
            weights: Of the domain's encoder, see ``load_weights``; None for those that it is made
                with.
            head_weights: Of the learner's head, likewise.
            seen_count: The number of items that a sample stands for.
            options: ``strict``, ``force``, ``discard``, ``probe`` and ``notify``, as in ``update``.
        """
        return self._run("adopt", items, adopted=(weights, head_weights, seen_count), **options)

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
        tolerance: float | None = None,
        only_if_drift: bool = False,
        probe: Probe | ProbeSet | str | Path | None = None,
        callbacks: Sequence[ProgressCallback] = (),
        notify: Notify | None = None,
    ) -> Step:
        """Ingest new items, train, evaluate, and promote the new version.

        Args:
            items: A ``Source`` or whatever the domain collects; None resumes what was begun.
            strategy: How to train, for this once.
            budget: What training may cost. With seconds, the result depends on the machine's speed.
            strict: Refuse files that cannot be read instead of leaving them out.
            force: Promote the candidate whichever checks it fails.
            discard: Drop what was begun or refused before.
            again: Ingest items that this version or one that led to it has learned from.
            tolerance: How much larger the loss of old items may be, for this once; a refused
                candidate is evaluated by it again. That of ``create`` if None.
            only_if_drift: As in ``Learner.update``.
            probe: Labelled items to evaluate on, before and after. A path (or a ``ProbeSet``,
                which also names the column of labels) is remembered for the next versions.
            callbacks: Called after every step and every epoch of training; see ``Callback``.
                Whatever one raises ends the update, which can be resumed.
            notify: Called with a sentence at every step of the update.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "items")}
        return self._run("update", items, **options)

    def _run(self, kind: str, items: Any, notify: Notify | None = None, **options: Any) -> Step:
        from incontrast.data import ProbeSet
        from incontrast.workspace.update import Update

        if isinstance(options.get("probe"), str | Path):
            options["probe"] = ProbeSet(options["probe"])
        return Update(workspace=self, kind=kind, **options).run(items, notify)

    def configure(self, *changes: str) -> dict[str, Any]:
        """Change settings, each by ``name=value``; returns the names and values that were set.

        Raises:
            ValueError: There is no such setting, or no such value.
            WorkspaceError: It cannot be changed any more, or not while an update is unfinished.
        """
        from incontrast.settings import changed

        with self.writing("config") as machine:
            machine.recover()
            settings = config.read_settings(self.folder)  # others may have changed it meanwhile
            before = config_of(settings)
            values = config.parse_changes(changes, before)
            after, file = changed(before, values), self.folder / CONFIG
            config.check_changes(before, after, file, head=self.current is None)
            trains = [name for name in values if name.split(".")[0] not in config.OF_WORKSPACE]
            if trains and machine.state.resumable and not machine.state.refused:
                raise machine.state.unfinished()
            settings = config.with_config(settings, after)
            code = named_code(values)  # the caller's own; other code may be somebody else's
            config.check_settings(settings, file, lambda named: self.trust({*named} - code))
            permit(self.folder, code)
            config.write_settings(self.folder, settings)
            machine.move(machine.state.phase, {"step": "config", "changes": values})
        # Parts that `create` was given give way to new ones.
        then, now = config_of(self.settings), config_of(settings)
        new = {name for name in now if then[name] != now[name]} - {*config.OF_WORKSPACE}
        self._own = cast("Own", {name: part for name, part in self._own.items() if name not in new})
        self.settings = settings
        return values

    def remember(self, columns: Sequence[str], machine: StateMachine) -> None:
        """Read later tables by the names of the first one's features, unless others are set."""
        settings = config.read_settings(self.folder)
        if settings["table"].get("columns") is None:
            settings["table"] = {**settings["table"], "columns": list(columns)}
            config.write_settings(self.folder, settings)
            changes = {"table.columns": list(columns)}
            machine.move(machine.state.phase, {"step": "config", "changes": changes})
        self.settings = {**self.settings, "table": settings["table"]}

    def discard(self, kind: str | None = None) -> bool:
        """Drop what is unfinished or was refused; returns whether there was something.

        Args:
            kind: Only if it is a ``"fit"``, an ``"update"`` or an ``"adopt"``; any if None.
        """
        with self.writing("discard") as machine:
            before = self.state()
            machine.recover()
            if machine.state.resumable:
                if kind not in (None, machine.state.operation["kind"]):
                    raise machine.state.unfinished()
                machine.discard()
        return before.operation.get("kind") in NAMES and before.phase != "switched"

    def rollback(self, to: int | None = None) -> int:
        """Make an earlier version the current one, with the memory it had; returns its number.

        An update that is unfinished or was refused is dropped. Later versions stay, so that
        ``rollback`` can also go forward.

        Args:
            to: The version. By default the one before the current; called again, this changes
                nothing until other data have come in.
        """
        with self.writing("rollback") as machine:
            return machine.rollback(to)

    def forget(self, ids: Iterable[int] = (), *, hashes: Iterable[bytes] = ()) -> int:
        """Delete items for good, from memory and from the file; returns how many there were.

        Reports, which may show them, are deleted as well.

        Args:
            ids: Their places in the order of arrival, from 0, as in the journal.
            hashes: Content hashes (``content_hash`` of packed items).

        Raises:
            StoreBusy: They are forgotten, but as another process was reading, their bytes may still
                be in the store's log: call it again.
        """
        unwanted = np.unique(np.fromiter(ids, np.int64))
        with self.writing("forget") as machine:
            machine.recover()
            if machine.state.resumable and not machine.state.refused:
                raise machine.state.unfinished()
            store = machine.store
            arrivals = store.arrivals()
            unknown = unwanted[(unwanted < 0) | (unwanted >= arrivals)].tolist()
            if unknown:
                there = f"ids go from 0 to {arrivals - 1}" if arrivals else "there are no items"
                raise WorkspaceError(f"no items have the ids {unknown[:5]}: {there}")
            unwanted = np.union1d(unwanted, store.find(hashes))
            count = int((store.columns(arrivals)["state"][unwanted] == PRESENT).sum())
            if len(unwanted):
                machine.forget(unwanted.tolist(), count)
            store.erase()  # also of what was forgotten while somebody was reading
        return count


def create_workspace(folder: Path, learner: Learner, settings: dict[str, Any]) -> Workspace:
    """A new workspace with these settings, which ``initial_settings`` made for this learner."""
    from incontrast.training.fabric import FabricEngine

    folder = folder.absolute()
    if learner.fitted:
        raise ValueError("a workspace begins with a learner that is not fitted: make a new one")
    engine = learner.engine
    with engine.error_barrier("create the workspace"):
        if engine.rank == 0:
            _write_workspace(Workspace(folder, settings))
            permit(folder, named_code(settings["learner"]))
    fabric = engine.fabric if isinstance(engine, FabricEngine) else None
    return Workspace(
        folder,
        engine.broadcast(settings),
        domain=learner.initial_domain,
        strategy=learner.strategy,
        fit_strategy=learner.fit_strategy,
        memory=learner.memory.policy,
        head=learner.head,
        trust=True,
        device=engine.device if fabric is None else None,
        fabric=fabric,
    )


def _write_workspace(workspace: Workspace) -> None:
    """Write the files of a new workspace."""
    folder, settings_file = workspace.folder, workspace.folder / SETTINGS
    taken = WorkspaceError(f"{folder} is a workspace already: choose a new or an empty folder")
    if settings_file.exists():
        raise taken
    begun = not folder.exists() or (folder / CREATING).exists()
    if not begun and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(f"{folder} is not empty: choose a new or an empty folder")
    make_folder(folder)
    (folder / CREATING).touch()
    flush(folder)  # or a power cut could leave files that nobody owns
    with locked(workspace.lock_file, "init"):
        if settings_file.exists():  # another process was faster
            raise taken
        for name in BEGUN:  # by an attempt that was interrupted
            (folder / name).unlink(missing_ok=True)
        workspace.sweep()
        workspace.versions.root.mkdir(exist_ok=True)
        with closing(Store.create(workspace.store_file)) as store:
            event = {"step": "init", "workspace": workspace.id}
            StateMachine(workspace, store).move("idle", event)
        config.write_settings(folder, workspace.settings)
        write_json(settings_file, workspace.settings)  # with it, the folder is a workspace
        (folder / CREATING).unlink()
