"""A fit, an update or an adoption: ingest, train, evaluate, promote (see ``state``)."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch

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
from incontrast.memory.store import FORGOTTEN, PRESENT, Store, StoreBusy
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
from incontrast.workspace.state import NAMES, Notify, State, StateMachine

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

log = logging.getLogger(__name__)

PATIENCE = 300.0  # seconds to wait for readers

T = TypeVar("T")
Operation = dict[str, Any]
Message = Literal["wait", "done", "failed"]


@dataclass(frozen=True)
class Step:
    """What a fit, an update or an adoption did; figures are as JSON has them."""

    version: int
    promoted: bool
    failed_checks: tuple[str, ...]  # why it was not promoted, or in spite of what it was
    items: int
    known: int  # items of the data that had been ingested before, and were left out
    skipped: tuple[str, ...]  # files that could not be read, with the reason
    outcome: dict[str, Any] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False)
    repeated: bool = False  # whether it had learned from these data already: nothing was done


@dataclass(kw_only=True, eq=False)
class Update:
    """One ``fit``, ``update`` or ``adopt`` (its ``kind``); arguments as in ``Workspace.update``.

    If there are several processes, all of them run this. The first one decides and writes; the
    others wait for its decisions, and take part in training and evaluation. ``adopted`` are the
    encoder's weights, its head's weights, and the number of items that the data stand for.
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
    probe: Probe | ProbeSet | None = None
    callbacks: Sequence[ProgressCallback] = ()
    adopted: tuple[Weights | None, Weights | None, int | None] = (None, None, None)

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_number("[0, inf)", tolerance=self.tolerance)
        self.limit = self.budget or UNLIMITED
        if self.limit == UNLIMITED and self.kind == "update":
            self.limit = Budget(**self.workspace.settings["budget"])
        self.versions, self.engine = self.workspace.versions, self.workspace.engine
        self.start = time.perf_counter()
        self.deciding = True  # whether the first process works while the others wait
        self.callback_errors: list[Exception] = []
        self.parent: dict[str, Any] = {}  # the record of the version that training starts from
        self.before: Learner | None = None  # that version, or None for a first one
        self.after: Learner | None = None  # the candidate
        self.plan: dict[str, Any] = {  # recorded in the operation
            "strategy": None if self.strategy is None else settings.encode(self.strategy),
            "budget": vars(self.limit),
            "settings": of_training(self.workspace.settings),
            "only_if_drift": self.only_if_drift,
        }

    def run(self, items: Any, notify: Notify | None) -> Step:
        """Begin or resume, and go as far as possible."""
        with ExitStack() as stack:
            if self.engine.rank > 0:
                return self._run(items, stack)
            try:
                writing = self.workspace.writing(self.kind, notify)
                self.machine: StateMachine = stack.enter_context(writing)
                self.store = self.machine.store
                return self._run(items, stack)
            except BaseException as error:
                # In what all processes do together, the others notice by themselves.
                if self.deciding and not isinstance(error, LostProcess):
                    with suppress(LostProcess):
                        self._send("failed", str(error))
                raise

    def _run(self, items: Any, stack: ExitStack) -> Step:
        state = self._decide(lambda: self._prepare(items))
        if isinstance(state, Step):
            return state
        operation, phase = state.operation, state.phase
        if phase != "evaluated" and self.engine.processes > 1:
            with self.engine.error_barrier("read the workspace"):
                if self.engine.rank > 0:
                    store = Store.open(self.workspace.store_file, readonly=True, still=True)
                    self.store = stack.enter_context(closing(store))
                    self._read_parent(operation["base"])
        if phase == "ingested":
            outcome = self._train(operation)
            self._decide(lambda: self._write(operation, outcome))
        begin = time.perf_counter()
        evaluation = None if phase == "evaluated" else self._evaluate(operation)
        return self._decide(lambda: self._finish(evaluation, time.perf_counter() - begin))

    def _decide(self, work: Callable[[], T]) -> T:
        """Let the first process do something while the others wait; returns its result to all."""
        if self.engine.rank == 0:
            self.deciding = True
            result = work()
            self.deciding = False
            self._send("done", result)
            return result
        message, payload = "wait", None
        while message == "wait":
            message, payload = self.engine.broadcast((message, payload))
        if message == "failed":
            raise ProcessFailed(f"process 0 of {self.engine.processes} has failed: {payload}")
        return cast(T, payload)

    def _send(self, message: Message, payload: Any = None) -> None:
        if self.engine.processes > 1:
            self.engine.broadcast((message, payload))

    # Decisions of the first process --------------------------------------------------------------

    def _prepare(self, items: Any) -> State | Step:
        """Ingest new items; the state to continue from, or a step if nothing is left to do."""
        machine, workspace = self.machine, self.workspace
        finished = machine.recover()
        state = machine.state
        if state.resumable and state.operation["kind"] != self.kind:
            raise state.unfinished()
        if self.kind == "update" and state.current is None:
            raise WorkspaceError(f"{workspace.folder} {NO_ENCODER}")
        self._read_parent(state.current)
        _ = self._own_probe  # an error in it comes before anything is done
        data = None
        if items is not None:
            data = NewData(items, self.learner.domain, strict=self.strict, read=workspace.read)
        if finished is not None and finished["kind"] == self.kind and _same(data, finished):
            # This very command was interrupted when only some cleaning up was left.
            return self._step(finished["number"], promoted=True)
        if not (state.resumable and self._resume(data)):
            repeated = self._ingest(data)
            if repeated is not None and machine.state.phase == "idle":
                step = self._step(repeated, promoted=True, repeated=True)
                return step if data is None else replace(step, skipped=tuple(data.skipped))
        if state.current is None and data is not None and data.columns:
            workspace.remember(data.columns, machine)
        if self.tolerance not in (None, machine.state.operation["tolerance"]):
            machine.tolerate(self.tolerance)
        if self.engine.processes > 1:
            self._fold()
        return machine.state

    def _read_parent(self, version: int | None) -> None:
        """Set the learner that training starts from."""
        if version is None:
            self.learner = self.workspace.template()
        else:
            self.learner = self.workspace.load(version, self.store)
            self.parent = self.versions.record(version)

    def _resume(self, data: NewData | None) -> bool:
        """Resume an unfinished operation; False if new data have to be ingested first."""
        machine, operation = self.machine, self.machine.state.operation
        name, refused = operation["data"]["name"], machine.state.refused
        if self.discard:
            machine.discard()
            machine.notify(f"{name} was unfinished or refused, and is discarded")
            return False
        if not _same(data, operation):
            if not refused or self.kind == "adopt":
                raise machine.state.unfinished()
            items = counted(operation["data"]["items"])
            machine.notify(
                f"{items} of {name} were refused before, and are taken along (--discard drops them)"
            )
            return False
        before, now = {**SINCE, **operation["settings"]}, self.plan["settings"]
        changed = [name for name in before | now if before.get(name) != now.get(name)]
        other_budget = vars(self.limit) not in (vars(UNLIMITED), operation["budget"])
        other_plan = (
            self.plan["strategy"] not in (None, operation["strategy"])
            or other_budget
            or (self.only_if_drift and not operation.get("only_if_drift"))
            or (changed and not self.force and self.kind != "adopt")
        )
        if refused and (other_plan or machine.state.candidate is None):
            machine.retry(self.plan)
            machine.notify(f"training on {name} once more, with the present settings")
            return True
        if changed and machine.state.phase == "ingested":
            was, is_now = (repr(each.get(changed[0])) for each in (before, now))
            raise Unfinished(
                f"{CONFIG}: {changed[0]} was {was} when {NAMES[self.kind]} began that is "
                f"unfinished, and is {is_now} now: change it back to resume, or run "
                f"incontrast {self.kind} --discard to drop it"
            )
        budget = ", another budget and otherwise" if other_budget else " and"
        machine.notify(
            f"resuming with {name}{budget} the settings it was begun with (--discard drops it)"
        )
        return True

    def _ingest(self, data: NewData | None) -> int | None:
        """Ingest new data; returns a version that has learned from all of them, if there is one."""
        machine, learner, current = self.machine, self.learner, self.machine.state.current
        if data is not None and not self.again:
            repeated = self._repeated(data)
            if repeated is not None:
                return repeated
        adopting = self.kind == "adopt"
        if self.kind != "update" and current is not None:
            other = ", with other weights or other data" if adopting else ""
            raise WorkspaceError(
                f"{self.workspace.folder} is fitted already (version {current}){other}: update it, "
                "or create another workspace"
            )
        if data is None:
            raise WorkspaceError(
                f"there is no unfinished {self.kind}: give some data, incontrast {self.kind} DATA"
            )
        weights, head_weights, count = self.adopted
        sample = [len(data), count or len(data)] if adopting else None
        if sample is not None:
            learner.memory = Memory.for_sample(learner.memory.policy, *sample)
        if adopting and self.engine.processes == 1:
            items = data.examples()
            if items is not None:  # or they would be ingested in vain
                learner.adoptable(items, weights, head_weights)
        probe = self.parent.get("probe")
        if isinstance(self.probe, ProbeSet):
            path = str(Path(self.probe.path).absolute())
            probe = {"path": path, "label": self.probe.label}
        usual = self.workspace.settings["tolerance"]
        operation: Operation = {
            "kind": self.kind,
            "base": current,
            "number": machine.next_number(),
            "probe": probe,
            "tolerance": usual if self.tolerance is None else self.tolerance,
            "sample": sample,
            **self.plan,
        }
        alive = partial(self._send, "wait")  # before the others take this process for lost
        new = ingest(machine, data, learner, operation, again=self.again, alive=alive)
        return None if new else current

    def _repeated(self, data: NewData) -> int | None:
        """Of the versions that led to the current one, that which has learned from these data."""
        number = self.machine.state.current
        while number is not None and self.versions.exists(number):
            try:
                record = self.versions.record(number)
            except Damaged:
                return None
            if _same(data, record):
                if self.kind == "adopt" and not self._is_adopted(record):
                    return None
                # Of these data, items may have arrived with any version before this one.
                items = self.store.columns(record["first"] + record["data"]["items"])
                return None if bool((items["state"] == FORGOTTEN).any()) else number
            number = record["parent"]
        return None

    def _is_adopted(self, record: dict[str, Any]) -> bool:
        """Whether a version is the encoder that is to be adopted."""
        weights, head_weights, count = self.adopted
        stands_for = (record.get("sample") or (0, count))[1]
        if record["kind"] != "adopt" or count not in (None, stands_for):
            return False
        learner = self.workspace.load(record["version"], None)
        width = learner.encoder.width if isinstance(learner.encoder, EncoderWithHead) else None
        if head_weights is not None and width is None:
            return False
        made = self.workspace.template().made_elsewhere
        given = made(learner.domain, weights, width, head_weights).state_dict()
        known = learner.encoder.state_dict()
        return all(torch.equal(given[name], known[name]) for name in known)

    def _fold(self) -> None:
        """Empty the log of the store: other processes read the file without it."""
        end = time.monotonic() + PATIENCE
        while not self.store.fold(wait=1.0):
            if time.monotonic() > end:
                raise StoreBusy(
                    f"another process has been reading {self.store.path} for {PATIENCE:.0f} s: end "
                    "it, then run this again"
                )
            self._send("wait")

    def _write(self, operation: Operation, outcome: Outcome) -> None:
        """Write the candidate as a version, with a record of how it came about."""
        assert self.after is not None
        learner, memory, parent = self.after, self.after.memory, self.parent
        number, base, first = operation["number"], operation["base"], operation["first"]
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
            "from_scratch": from_scratch,  # the cost of the last training from scratch before
            "outcome": outcome.as_json() | {"settings": settings.encode(outcome.strategy)},
        }
        learner.space = number
        self.versions.write(number, partial(saving.write, learner), record)
        self.machine.trained(record["outcome"])
        done = f"trained version {number} in {outcome.seconds:.1f} s"
        self.machine.notify(f"adopted as version {number}" if self.kind == "adopt" else done)

    def _finish(self, evaluation: dict[str, Any] | None, seconds: float) -> Step:
        """Record how the candidate was evaluated, and promote it if it is to be."""
        machine, number = self.machine, self.machine.state.operation["number"]
        if evaluation is not None:
            machine.evaluated(evaluation, self.versions.record(number)["outcome"], seconds)
            machine.notify(f"evaluated version {number} in {seconds:.1f} s")
        promoted = self.force or not machine.state.refused
        if promoted:
            machine.promote()
        return self._step(number, promoted=promoted)

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

    # All processes together ----------------------------------------------------------------------

    def _train(self, operation: Operation) -> Outcome:
        """Train on the new items; ``after`` is the candidate then."""
        limit = self.limit if self.limit != UNLIMITED else Budget(**operation["budget"])
        left = limit
        if limit.seconds is not None:
            seconds = limit.seconds - (time.perf_counter() - self.start)
            left = replace(limit, seconds=max(self.engine.broadcast_float(seconds), 1e-3))
        try:
            return self._learn(operation, left)
        except BudgetTooSmall as error:
            seconds = limit.seconds or error.seconds
            data, command = operation["data"], f"incontrast {self.kind}"
            pending = (
                f"{counted(data['items'])} of {data['name']} ingested, to be trained: {command} "
                f"--seconds N resumes it, {command} --discard drops it"
            )
            spent = seconds - error.seconds + error.spent
            raise BudgetTooSmall(seconds, spent, pending) from None
        except (ValueError, TrainingDiverged) as error:
            if self.engine.rank == 0 and error not in self.callback_errors:
                if isinstance(error, TrainingDiverged) or operation["joined"]["operation"]:
                    self.machine.failed(error)  # items that were refused before stay
                else:
                    self.machine.discard()  # it would end the same way every time
            raise

    def _learn(self, operation: Operation, budget: Budget) -> Outcome:
        learner = self.learner
        new = self._new_items(operation)
        if len(new) == 0:
            raise ValueError("all new items have been forgotten: there is nothing to train on")
        if operation["sample"] is not None:
            learner.memory = Memory.for_sample(learner.memory.policy, *operation["sample"])
        learner.evaluations_after = 2  # a candidate's checks take about as long as an outcome's
        self.before = None if operation["base"] is None else copy.copy(learner)
        self.after = learner
        probe = self._probe(operation)
        if self.kind == "adopt":
            weights, head_weights, _ = self.adopted
            return learner.adopt(new, weights=weights, head_weights=head_weights, probe=probe)
        options: dict[str, Any] = {
            "budget": budget,
            "callbacks": [_Watched(each, self.callback_errors) for each in self.callbacks],
            "checkpoint": self.workspace.training_file,
            "probe": probe,
        }
        if self.before is None:
            return learner.fit(new, **options)
        return learner.update(
            new,
            strategy=self._strategy(operation),
            tolerance=operation["tolerance"],
            only_if_drift=operation.get("only_if_drift", False),
            **options,
        )

    def _new_items(self, operation: Operation) -> StoredCollection:
        """The items that were ingested and not forgotten since."""
        first = operation["first"]
        items = self.store.columns(first + operation["data"]["items"])
        ids = first + (items["state"][first:] == PRESENT).nonzero()[0]
        keys, sizes = (torch.from_numpy(items[name][ids]) for name in ("key", "size"))
        return StoredCollection(self.store, self.learner.domain, torch.from_numpy(ids), sizes, keys)

    def _evaluate(self, operation: Operation) -> dict[str, Any]:
        if self.after is None:  # an earlier run has trained it
            self.before = None if operation["base"] is None else self.learner
            self.after = self.workspace.load(operation["number"], self.store)
        return evaluate(
            self.before,
            self.after,
            self.store,
            new=self._new_items(operation).ids,
            outcome=self.versions.record(operation["number"])["outcome"],
            tolerance=operation["tolerance"],
        )

    def _strategy(self, operation: Operation) -> Strategy | None:
        """The strategy that the operation was begun with."""
        begun, file = operation["strategy"], self.workspace.state_file
        if begun in (None, self.plan["strategy"]):
            return self.strategy
        check_trust(begun, self.workspace.trust, file)
        try:
            return cast(Strategy, settings.decode(begun, file, "strategy"))
        except ValueError as error:
            raise Unfinished(
                f"the update under way was begun with {begun.get('name', begun['type'])}, which is "
                "or has a part of your own: pass it again to resume, or discard the update"
            ) from error

    @cached_property
    def _own_probe(self) -> Probe | None:
        """The probe of this run."""
        if not isinstance(self.probe, ProbeSet):
            return self.probe
        return Probe(self.probe.read(self.workspace.settings["table"]))

    def _probe(self, operation: Operation) -> Probe | None:
        """The probe of this run, or the last one's, with old and new classes told apart."""
        probe = self._own_probe
        if probe is None and operation["probe"] is not None:
            try:
                known = ProbeSet(**operation["probe"])
                probe = Probe(known.read(self.workspace.settings["table"]))
            except ValueError as error:  # it was moved, which is no reason to refuse new data
                log.warning("the probe set of the version before is left out: %s", error)
        old = set(self.parent.get("classes", ()))
        if probe is None or probe.new is not None or not old:
            return probe
        labels, new = set(probe.labels.tolist()), _classes(operation) - old
        return replace(probe, new=new & labels, old=old & labels)


class _Watched(Callback):
    """A callback whose errors are also put on a list."""

    def __init__(self, callback: ProgressCallback, errors: list[Exception]) -> None:
        self.callback, self.errors = callback, errors

    def __call__(self, progress: Progress) -> bool | None:
        return self._watch(self.callback, progress)

    def on_end(self, run: Run) -> None:
        if isinstance(self.callback, Callback):
            self._watch(self.callback.on_end, run)

    def on_outcome(self, outcome: Outcome, learner: Learner) -> None:
        if isinstance(self.callback, Callback):
            self._watch(self.callback.on_outcome, outcome, learner)

    def _watch(self, call: Callable[..., bool | None], *arguments: Any) -> bool | None:
        try:
            return call(*arguments)
        except Exception as error:
            self.errors.append(error)
            raise


def _classes(operation: Operation) -> set[str]:
    return {name for part in operation["data"]["parts"] for name in part["classes"]}


def _same(data: NewData | None, operation: Operation) -> bool:
    """Whether an operation or a version is about these data; no data mean those it has."""
    parts = operation["data"]["parts"]
    return data is None or data.fingerprint in [part["fingerprint"] for part in parts]
