"""A fit or an update of a workspace: ingest, train, evaluate, promote (see ``state``)."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from incontrast import saving, settings
from incontrast._version import __version__
from incontrast.bounds import check_number
from incontrast.call import BudgetTooSmall
from incontrast.compat.link import renumbered
from incontrast.data import ProbeSet
from incontrast.evaluate.probes import Probe
from incontrast.heads import EncoderWithHead
from incontrast.import_path import check_trust
from incontrast.learner import Learner
from incontrast.memory.memory import Memory, StoredCollection
from incontrast.memory.store import FORGOTTEN, PRESENT, Items, Store, StoreBusy
from incontrast.outcome import Outcome
from incontrast.strategies import Strategy
from incontrast.text import counted
from incontrast.training.collectives import LostProcess, ProcessFailed
from incontrast.training.loop import UNLIMITED, TrainingDiverged
from incontrast.training.progress import Budget, Callback, Progress, ProgressCallback, Run
from incontrast.weights import Weights
from incontrast.workspace.config import CONFIG, SINCE, of_training
from incontrast.workspace.evaluation import evaluate
from incontrast.workspace.files import NO_ENCODER, Damaged, Unfinished, WorkspaceError, timestamp
from incontrast.workspace.ingest import NewData, ingest
from incontrast.workspace.state import NAMES, Notify, StateMachine

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

log = logging.getLogger(__name__)

PATIENCE = 300.0  # seconds to wait for readers

Operation = dict[str, Any]
Order = Literal["wait", "train", "evaluate", "done", "failed"]


@dataclass(frozen=True)
class Step:
    """What a fit or an update came to; figures are as JSON has them."""

    version: int
    promoted: bool
    failed_checks: tuple[str, ...]  # why it was not promoted, or what was wrong when it was forced
    items: int
    known: int  # items of the data that had been ingested before, and were not ingested again
    skipped: tuple[str, ...]  # files that could not be read, with the reason
    outcome: dict[str, Any] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False)
    repeated: bool = False  # whether it had learned from these data already: nothing was done


@dataclass(kw_only=True, eq=False)
class Update:
    """One run of ``fit``, ``update`` or ``adopt``, its ``kind``.

    The first process leads: it decides and writes. The others follow its orders. What was
    ``adopted`` are weights, those of its head, and the number of items that the data stand for.
    Other arguments are as in ``Workspace.update``.
    """

    workspace: Workspace
    kind: str
    strategy: Strategy | None = None
    budget: Budget | None = None
    strict: bool = False
    force: bool = False
    discard: bool = False
    again: bool = False
    tolerance: float | None = None
    only_if_drift: bool = False
    probe: Probe | ProbeSet | str | Path | None = None
    callbacks: Sequence[ProgressCallback] = ()
    adopted: tuple[Weights | None, Weights | None, int | None] | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_number("[0, inf)", tolerance=self.tolerance)
        if isinstance(self.probe, str | Path):
            self.probe = ProbeSet(self.probe)
        self.limit = self.budget or UNLIMITED
        if self.limit == UNLIMITED and self.kind == "update":
            self.limit = Budget(**self.workspace.settings["budget"])
        self.versions, self.engine = self.workspace.versions, self.workspace.engine
        self.start = time.perf_counter()
        self._strategy = None if self.strategy is None else settings.encode(self.strategy)
        self._settings = of_training(self.workspace.settings)
        self._joint = False  # whether all processes run the same block
        self._parent: dict[str, Any] = {}  # what was written down about the version to begin with
        self._before: Learner | None = None
        self._after: Learner | None = None  # each is read once, by whoever needs it first

    def run(self, items: Any, notify: Notify | None) -> Step:
        """Begin, or resume, and take it as far as it goes."""
        if self.engine.rank > 0:
            return self._follow()
        try:
            with self.workspace.writing(self.kind, notify) as machine:
                step = self._lead(machine, items)
        except BaseException as error:
            # What fails inside a joint block is known to the others, or ends them by its silence.
            if not self._joint and not isinstance(error, LostProcess):
                with suppress(LostProcess):
                    self._send("failed", str(error))
            raise
        self._send("done", step)
        return step

    # The first process ---------------------------------------------------------------------------

    def _lead(self, machine: StateMachine, items: Any) -> Step:
        finished = machine.recover()
        current, operation = machine.state.current, machine.state.operation
        resumable = machine.state.resumable
        if resumable and operation["kind"] != self.kind:
            raise Unfinished(
                f"{NAMES[operation['kind']]} with {operation['data']['name']} is unfinished: "
                f"run incontrast {operation['kind']} to finish it"
            )
        if self.kind == "update" and current is None:
            raise WorkspaceError(f"{self.workspace.folder} {NO_ENCODER}")
        learner = self._begin(current, machine.store)
        _ = self._given_probe  # refused before anything is done
        data = None
        if items is not None:
            read = self.workspace.read
            data = NewData(items, learner.domain, strict=self.strict, read=read)
        sample = operation.get("sample") if resumable and not self.discard else None
        if self.adopted is not None and data is not None and sample is None:
            sample = [len(data), self.adopted[2] or len(data)]
        if sample is not None:
            learner.memory = Memory.for_sample(learner.memory.policy, *sample)
        if finished is not None and finished["kind"] == self.kind and _same(data, finished):
            # This very command was interrupted when all but some cleaning up was done.
            return self._step(finished["number"], promoted=True)
        joining = resumable and not self._resume(machine, data)
        if joining or machine.state.phase == "idle":
            repeated = None if self.again or data is None else self._repeated(machine, data)
            if repeated is None:
                repeated = self._ingest(machine, data, learner, sample)
            if repeated is not None and machine.state.phase == "idle":
                step = self._step(repeated, promoted=True, repeated=True)
                return step if data is None else replace(step, skipped=tuple(data.skipped))
        if current is None and data is not None and data.columns:
            self.workspace.remember(data.columns, machine)
        if self.tolerance not in (None, machine.state.operation["tolerance"]):
            machine.tolerate(self.tolerance)
        operation = machine.state.operation
        number = operation["number"]
        if machine.state.phase == "ingested":
            self._train_and_write(machine, learner)
        if machine.state.phase == "trained":
            begin = time.perf_counter()
            self._read_both(operation, learner, machine.store)
            evaluation, outcome = self._evaluate(operation, machine.store)
            seconds = time.perf_counter() - begin
            machine.evaluated(evaluation, outcome, seconds)
            machine.notify(f"evaluated version {number} in {seconds:.1f} s")
        promoted = self.force or not machine.state.refused
        if promoted:
            machine.promote()
        return self._step(number, promoted=promoted)

    def _resume(self, machine: StateMachine, data: NewData | None) -> bool:
        """Whether to resume what is under way; if not, it is discarded, or new data join it."""
        operation = machine.state.operation
        name = operation["data"]["name"]
        if self.discard:
            machine.discard()
            machine.notify(f"{name} was unfinished or refused, and is discarded")
            return False
        refused = machine.state.phase == "evaluated" and machine.state.refused
        # Whether this run asks for something else than the one that was refused.
        others = (
            self._strategy not in (None, operation["strategy"])
            or self._other_budget(operation)
            or (self.only_if_drift and not operation.get("only_if_drift"))
            or (self._changed(operation) and self.adopted is None and not self.force)
        )
        if _same(data, operation) and refused and others:
            machine.retry(**self._how())
            machine.notify(f"training on {name} once more, with other settings")
            return True
        if _same(data, operation):
            if machine.state.phase == "ingested" and not machine.state.refused:
                for name, was, now in self._changed(operation):
                    raise Unfinished(
                        f"{CONFIG}: {name} was {was!r} when {NAMES[self.kind]} began that is "
                        f"unfinished, and is {now!r} now: change it back to resume, or run "
                        f"incontrast {self.kind} --discard to drop it"
                    )
            budget = ", another budget and otherwise" if self._other_budget(operation) else " and"
            machine.notify(
                f"resuming with {name}{budget} the settings it was begun with (--discard drops it)"
            )
            return True
        if not machine.state.refused or self.adopted is not None:
            raise Unfinished(
                f"{NAMES[self.kind]} with {name} is unfinished: run incontrast {self.kind} "
                "without data to finish it, or with --discard to drop it"
            )
        machine.notify(
            f"{counted(operation['data']['items'])} of {name} were refused before, and are taken "
            "along (--discard drops them)"
        )
        return False

    def _how(self) -> dict[str, Any]:
        """How to train, for the record of the operation."""
        how = {"strategy": self._strategy, "budget": vars(self.limit), "settings": self._settings}
        return how | {"only_if_drift": self.only_if_drift}

    def _changed(self, operation: Operation) -> list[tuple[str, Any, Any]]:
        """Settings that training depends on and that have changed since an operation began."""
        begun, now = {**SINCE, **operation["settings"]}, self._settings
        names = [name for name in begun | now if begun.get(name) != now.get(name)]
        return [(name, begun.get(name), now.get(name)) for name in names]

    def _repeated(self, machine: StateMachine, data: NewData) -> int | None:
        """The version that has learned from these very data, of those that led to this one."""
        number = machine.state.current
        while number is not None and self.versions.exists(number):
            try:
                record = self.versions.record(number)
            except Damaged:
                return None
            if _same(data, record):
                if self.adopted is not None and not self._is_adopted(record):
                    return None
                # Of these data, items may have arrived with any version before this one.
                states = machine.store.columns(record["first"] + record["data"]["items"])["state"]
                return None if bool((states == FORGOTTEN).any()) else number
            number = record["parent"]
        return None

    def _is_adopted(self, record: dict[str, Any]) -> bool:
        """Whether a version is the very encoder that is to be adopted."""
        weights, head_weights, count = self.adopted or (None, None, None)
        stands_for = (record.get("sample") or (0, count))[1]
        if record["kind"] != "adopt" or count not in (None, stands_for):
            return False
        learner = self.workspace.load(record["version"], None)
        width = learner.encoder.width if isinstance(learner.encoder, EncoderWithHead) else None
        if head_weights is not None and width is None:
            return False
        made = self.workspace.template().made_elsewhere
        given = made(learner.domain, weights, width, head_weights).state_dict()
        own = learner.encoder.state_dict()
        return all(torch.equal(given[name], own[name]) for name in own)

    def _ingest(
        self,
        machine: StateMachine,
        data: NewData | None,
        learner: Learner,
        sample: list[int] | None,
    ) -> int | None:
        """New items into the store; returns the current version, if all of them were known."""
        current = machine.state.current
        if self.kind != "update" and current is not None:
            other = "" if self.adopted is None else ", with other weights or other data"
            raise WorkspaceError(
                f"{self.workspace.folder} is fitted already (version {current}){other}: update it, "
                "or create another workspace"
            )
        if data is None:
            raise WorkspaceError(
                f"there is no unfinished {self.kind}: give some data, incontrast {self.kind} DATA"
            )
        if self.adopted is not None and self.engine.processes == 1:
            items = data.telling()
            if items is not None:  # which would be ingested for nothing otherwise
                learner.adoptable(items, *self.adopted[:2])
        usual = self.workspace.settings["tolerance"]
        operation: Operation = {
            "kind": self.kind,
            "base": current,
            "number": max([machine.state.last, *self.versions.numbers()]) + 1,
            "probe": self._parent.get("probe"),
            "tolerance": usual if self.tolerance is None else self.tolerance,
            "sample": sample,
            **self._how(),
        }
        if isinstance(self.probe, ProbeSet):
            path = str(Path(self.probe.path).absolute())
            operation["probe"] = {"path": path, "label": self.probe.label}
        alive = partial(self._send, "wait")  # before other processes take this one for lost
        new = ingest(machine, data, learner, operation, again=self.again, alive=alive)
        return None if new else current

    def _train_and_write(self, machine: StateMachine, learner: Learner) -> None:
        operation = machine.state.operation
        callback_errors: list[Exception] = []
        try:
            outcome = self._train(operation, learner, machine.store, callback_errors)
        except BudgetTooSmall as error:
            given = self._limit(operation).seconds or error.seconds
            data, command = operation["data"], f"incontrast {self.kind}"
            pending = (
                f"{counted(data['items'])} of {data['name']} ingested, to be trained: {command} "
                f"--seconds N resumes it, {command} --discard drops it"
            )
            raise BudgetTooSmall(given, given - error.seconds + error.spent, pending) from None
        except (ValueError, TrainingDiverged) as error:
            ours = error not in callback_errors
            if ours and (isinstance(error, TrainingDiverged) or operation["joined"]["operation"]):
                machine.failed(error)  # what was refused before stays, whatever it was joined by
            elif ours:
                machine.discard()  # it would end the same way every time
            raise
        number, base, first = operation["number"], operation["base"], operation["first"]
        memory, parent = learner.memory, self._parent
        skipped: list[Sequence[int]] = []
        from_scratch = parent.get("from_scratch")
        if base is not None:
            if parent["outcome"]["from_scratch"]:
                cost = {key: parent["outcome"][key] for key in ("forward_passes", "stopped")}
                from_scratch = {**cost, "items": parent["memory"]["seen"]}
            skipped, arrivals = [*parent["memory"]["skipped"]], parent["memory"]["arrivals"]
            if arrivals < first:  # others arrived after versions that were rolled back
                skipped.append((arrivals, first))
            learner.links = renumbered(learner.links, number, parent["encoder"])
        record = {
            "kind": self.kind,
            "parent": base,
            "workspace": self.workspace.id,
            "incontrast": __version__,
            "torch": torch.__version__,
            "created": timestamp(),
            "data": operation["data"],
            "first": first,
            "sample": operation["sample"],
            "classes": sorted({*parent.get("classes", ()), *_classes(operation)}),
            "probe": operation["probe"],
            "memory": {
                "arrivals": memory.arrivals,
                "threshold": None if math.isinf(memory.threshold) else memory.threshold,
                "skipped": skipped,
                "elsewhere": memory.elsewhere,
                "kept": len(memory),
                "seen": memory.seen,
            },
            "from_scratch": from_scratch,  # what the last such training before took
            "outcome": outcome.as_json() | {"settings": settings.encode(outcome.strategy)},
        }
        learner.space = number
        self.versions.write(number, partial(saving.write, learner), record)
        machine.trained(record["outcome"])
        done = f"trained version {number} in {outcome.seconds:.1f} s"
        machine.notify(done if self.adopted is None else f"adopted as version {number}")

    def _step(self, number: int, *, promoted: bool, repeated: bool = False) -> Step:
        record = self.versions.record(number)
        evaluation = self.versions.evaluation(number) or {}
        return Step(
            version=number,
            promoted=promoted,
            failed_checks=tuple(evaluation.get("failed_checks", ())),
            items=record["data"]["items"],
            known=sum(part["known"] for part in record["data"]["parts"]),
            skipped=tuple(record["data"]["skipped"]),
            outcome=record["outcome"],
            evaluation=evaluation,
            repeated=repeated,
        )

    # The other processes -------------------------------------------------------------------------

    def _follow(self) -> Step:
        """Do what the first process orders until it is done, and write nothing."""
        while True:
            orders: tuple[Order, Any] = self.engine.broadcast(("wait", None))
            order, payload = orders
            if order == "done":
                return cast(Step, payload)
            if order == "failed":
                raise ProcessFailed(f"process 0 of {self.engine.processes} has failed: {payload}")
            if order == "wait":
                continue
            with self.engine.error_barrier("read the workspace"):
                store = Store.open(self.workspace.store_file, readonly=True, still=True)
                learner = self._begin(payload["base"], store)
                if order == "evaluate":
                    self._read_both(payload, learner, store)
            with closing(store):
                if order == "train":
                    self._train(payload, learner, store, [])
                else:
                    self._evaluate(payload, store)

    def _send(self, order: Order, payload: Any = None) -> None:
        """Tell the others what comes next; without others, nothing happens."""
        if self.engine.processes > 1:
            self.engine.broadcast((order, payload))

    @contextmanager
    def _jointly(self, order: Order, operation: Operation, store: Store) -> Iterator[None]:
        """A block that all processes run at the same time."""
        if self.engine.processes > 1 and self.engine.rank == 0:
            self._fold(store)
            self._send(order, operation)
            with self.engine.error_barrier("read the workspace"):
                pass
        self._joint = True
        yield
        self._joint = False

    def _fold(self, store: Store) -> None:
        """The others read the file by itself, without its log: wait until that is empty."""
        end = time.monotonic() + PATIENCE
        while not store.fold(wait=1.0):
            if time.monotonic() > end:
                raise StoreBusy(
                    f"another process has been reading {store.path} for {PATIENCE:.0f} s, which "
                    "keeps several processes from working on it: end it, then run this again"
                )
            self._send("wait")  # before they take this process for lost

    # All processes together ----------------------------------------------------------------------

    def _begin(self, version: int | None, store: Store) -> Learner:
        """What this run begins with."""
        if version is None:
            return self.workspace.template()
        learner = self.workspace.load(version, store)  # after which its record is known to be whole
        self._parent = self.versions.record(version)
        return learner

    def _train(
        self, operation: Operation, learner: Learner, store: Store, callback_errors: list[Exception]
    ) -> Outcome:
        """Train on what was ingested; the learner is the candidate then."""
        ids, columns = _new_items(operation, store)
        if len(ids) == 0:
            raise ValueError("all new items have been forgotten: there is nothing to train on")
        keys, sizes = (torch.from_numpy(columns[name][ids]) for name in ("key", "size"))
        new = StoredCollection(store, learner.domain, torch.from_numpy(ids), sizes, keys)
        learner.evaluations_after = 2  # a candidate's checks take about as long as an outcome's
        before = None if operation["base"] is None else copy.copy(learner)
        with self._jointly("train", operation, store):
            options: dict[str, Any] = {
                "budget": self._budget(operation),
                "callbacks": [_Watched(each, callback_errors) for each in self.callbacks],
                "checkpoint": self.workspace.training_file,
                "probe": self._probe(operation),
            }
            if self.adopted is not None:
                weights, head, _ = self.adopted
                probe = options["probe"]
                outcome = learner.adopt(new, weights=weights, head_weights=head, probe=probe)
            elif before is None:
                outcome = learner.fit(new, **options)
            else:
                begun = operation.get("only_if_drift", False)
                outcome = learner.update(
                    new,
                    strategy=self._begun_strategy(operation),
                    tolerance=operation["tolerance"],
                    only_if_drift=self.only_if_drift if _diverged(operation) else begun,
                    **options,
                )
        self._before, self._after = before, learner
        return outcome

    @cached_property
    def _given_probe(self) -> Probe | None:
        probe = self.probe
        if not isinstance(probe, ProbeSet):
            return cast(Probe | None, probe)
        return Probe(probe.read(self.workspace.settings["table"]))

    def _probe(self, operation: Operation) -> Probe | None:
        """The probe of this run, or that of the version before, with the classes that are new."""
        probe = self._given_probe
        if probe is None and operation["probe"] is not None:
            try:
                known = ProbeSet(**operation["probe"])
                probe = Probe(known.read(self.workspace.settings["table"]))
            except ValueError as error:  # moved since: no reason to refuse new data
                log.warning("the probe set of the version before is left out: %s", error)
        old = set(self._parent.get("classes", ()))
        if probe is None or probe.new is not None or not old:
            return probe
        there, new = set(probe.labels.tolist()), _classes(operation) - old
        return replace(probe, new=new & there, old=old & there)

    def _limit(self, operation: Operation) -> Budget:
        """What this run was given, or else the one that began."""
        return self.limit if self.limit != UNLIMITED else Budget(**operation["budget"])

    def _budget(self, operation: Operation) -> Budget:
        """What is left of it."""
        given = self._limit(operation)
        if given.seconds is None:
            return given
        left = given.seconds - (time.perf_counter() - self.start)
        return replace(given, seconds=max(self.engine.broadcast_float(left), 1e-3))

    def _begun_strategy(self, operation: Operation) -> Strategy | None:
        written, file = operation["strategy"], self.workspace.state_file
        # What has diverged may be tried with another.
        if written in (None, self._strategy) or _diverged(operation):
            return self.strategy
        check_trust(written, self.workspace.trust, file)
        try:
            return cast(Strategy, settings.decode(written, file, "strategy"))
        except ValueError as error:
            raise Unfinished(
                f"the update under way was begun with {written.get('name', written['type'])}, "
                "which is or has a part of your own: "
                "pass it again to resume, or discard the update"
            ) from error

    def _other_budget(self, operation: Operation) -> bool:
        return vars(self.limit) not in (vars(UNLIMITED), operation["budget"])

    def _read_both(self, operation: Operation, learner: Learner, store: Store) -> None:
        """The candidate, and the version that it began with, unless this run has trained it."""
        if self._after is None:
            self._before = None if operation["base"] is None else learner
            self._after = self.workspace.load(operation["number"], store)

    def _evaluate(
        self, operation: Operation, store: Store
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """How the candidate is judged, and what came of its training."""
        assert self._after is not None
        outcome = self.versions.record(operation["number"])["outcome"]
        how = {"outcome": outcome, "tolerance": operation["tolerance"]}
        with self._jointly("evaluate", operation, store):
            new = torch.from_numpy(_new_items(operation, store)[0])
            return evaluate(self._before, self._after, store, new=new, **how), outcome


class _Watched(Callback):
    """A callback, with what it raises put on a list."""

    def __init__(self, callback: ProgressCallback, errors: list[Exception]) -> None:
        self.callback, self.errors = callback, errors

    def __call__(self, progress: Progress) -> bool | None:
        return self._noted(self.callback, progress)

    def on_end(self, run: Run) -> None:
        if isinstance(self.callback, Callback):
            self._noted(self.callback.on_end, run)

    def on_outcome(self, outcome: Outcome, learner: Learner) -> None:
        if isinstance(self.callback, Callback):
            self._noted(self.callback.on_outcome, outcome, learner)

    def _noted(self, call: Callable[..., bool | None], *about: Any) -> bool | None:
        try:
            return call(*about)
        except Exception as error:
            self.errors.append(error)
            raise


def _classes(operation: Operation) -> set[str]:
    return {name for part in operation["data"]["parts"] for name in part["classes"]}


def _new_items(operation: Operation, store: Store) -> tuple[NDArray[np.int64], Items]:
    """(n,) ids of what was ingested and not forgotten since; what is known of all items."""
    first = operation["first"]
    columns = store.columns(first + operation["data"]["items"])
    return first + (columns["state"][first:] == PRESENT).nonzero()[0], columns


def _diverged(operation: Operation) -> bool:
    """Whether what is to be trained was, by an earlier run, and diverged."""
    return bool(operation.get("failed_checks"))


def _same(data: NewData | None, operation: Operation) -> bool:
    """Whether an operation, or a version, is about these data: without data, it is."""
    parts = operation["data"]["parts"]
    return data is None or data.fingerprint in [part["fingerprint"] for part in parts]
