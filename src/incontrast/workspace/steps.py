"""A fit or an update, in four steps each of which is complete on disk before the next begins."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from incontrast import settings
from incontrast._version import __version__
from incontrast.learner import Learner
from incontrast.memory import Store, StoredCollection, StoreError
from incontrast.memory.store import FORGOTTEN
from incontrast.randomness import generator
from incontrast.strategies import Strategy
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback
from incontrast.workspace.errors import Damaged, Unfinished, WorkspaceError
from incontrast.workspace.evaluation import evaluate
from incontrast.workspace.figures import figures_of
from incontrast.workspace.intake import Intake
from incontrast.workspace.process_group import Crew
from incontrast.workspace.recovery import Notify, Recovery
from incontrast.workspace.words import NAMES, counted

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["Advance", "Step"]


@dataclass(frozen=True)
class Step:
    """What a fit or an update came to.

    Args:
        version: The number of the version, promoted or not.
        promoted: Whether it is the current one now.
        objections: Why it was not promoted, or what was wrong when it was forced.
        items: Items that came in.
        skipped: Files that could not be read, with the reason.
        outcome: Figures of training, as JSON.
        evaluation: Figures of the evaluation, as JSON.
        repeated: Whether this version had learned from these data already, so nothing was done.
    """

    version: int
    promoted: bool
    objections: tuple[str, ...]
    items: int
    skipped: tuple[str, ...]
    outcome: dict[str, Any]
    evaluation: dict[str, Any]
    repeated: bool = False


class Advance:
    """One run of ``fit`` or ``update``, with the lock held.

    The note ``pending`` in the store says what is under way: which items (from ``first`` on, once
    ``complete``), on which version (``base``), towards which (``number``). A version folder that
    has its name is trained; one with an evaluation is evaluated; the pointer says what is promoted.
    """

    def __init__(
        self,
        workspace: Workspace,
        store: Store,
        kind: str,
        strategy: Strategy | None,
        budget: Budget | None,
        progress: ProgressCallback | None,
        notify: Notify | None,
        crew: Crew | None = None,
    ) -> None:
        self.workspace = workspace
        self.versions = workspace.versions
        self.store = store
        self.kind = kind
        self.strategy = strategy
        self.budget = budget or Budget()
        self.progress = progress
        self.recovery = Recovery(workspace, store, notify)
        self.notify = self.recovery.notify
        self.crew = crew or workspace.crew()

    def run(self, items: Any, *, strict: bool, force: bool, discard: bool, again: bool) -> Step:
        finished = self.recovery.recover()
        current = self.versions.current()
        pending = self.store.note("pending")
        if pending is not None and pending["kind"] != self.kind:
            raise Unfinished(
                f"{NAMES[pending['kind']]} with {pending['data']['name']} is unfinished: "
                f"run incontrast {pending['kind']} to finish it"
            )
        if self.kind == "update" and current is None:
            raise WorkspaceError(f"{self.workspace.folder} has no encoder yet: run fit first")
        learner = (
            self.workspace.template()
            if current is None
            else self.workspace._load(current, self.store)
        )
        intake = None if items is None else Intake(items, learner.domain, strict=strict)
        if finished is not None and finished["kind"] == self.kind and _same(intake, finished):
            # This very command was cut short when all but some tidying was done.
            return self._step(finished["number"], promoted=True)
        pending = self._choose(pending, intake, discard)
        if pending is None:
            known = None if again or intake is None else self._repeated(intake, current)
            if known is not None:
                return self._step(known, promoted=True, repeated=True)
            if self.kind == "fit" and current is not None:
                raise WorkspaceError(
                    f"{self.workspace.folder} is fitted already (version {current}): update it, "
                    "or make another workspace"
                )
            if intake is None:
                raise WorkspaceError(f"there is no unfinished {self.kind}: give some data")
            pending = self._ingest(intake, learner, current)
        number = pending["number"]
        if not self.versions.folder(number).is_dir():
            self.train(pending, learner)
        if self.versions.evaluation(number) is None:
            self.evaluate(pending)
        step = self._step(number, promoted=False)
        if step.objections and not force:
            return step
        self.versions.promote(number)
        self.recovery.finish(pending)
        return self._step(number, promoted=True)

    def _choose(
        self, pending: dict[str, Any] | None, intake: Intake | None, discard: bool
    ) -> dict[str, Any] | None:
        """What is under way, if this run is to go on with it."""
        if pending is None:
            return None
        same = _same(intake, pending)
        if discard or (not same and self._refused(pending)):
            self.recovery.discard(pending)
            self.notify(f"{pending['data']['name']} was unfinished or refused, and is dropped")
            return None
        if not same:
            raise Unfinished(
                f"{NAMES[self.kind]} with {pending['data']['name']} is unfinished: run incontrast "
                f"{self.kind} without data to finish it, or with --discard to drop it"
            )
        self.notify(
            f"going on with {pending['data']['name']}, with the settings it was begun with "
            "(--discard drops it)"
        )
        return pending

    def _refused(self, pending: dict[str, Any]) -> bool:
        evaluation = self.versions.evaluation(pending["number"])
        return evaluation is not None and bool(evaluation["objections"])

    def _repeated(self, intake: Intake, current: int | None) -> int | None:
        """The version that has learned from these very data, of those that led to this one."""
        while current is not None and self.versions.folder(current).is_dir():
            try:
                record = self.versions.record(current)
            except Damaged:
                return None
            if record["data"]["fingerprint"] == intake.fingerprint:
                first = record["first"]
                states = self.store.columns(first + record["data"]["items"]).states[first:]
                return None if bool((states == FORGOTTEN).any()) else current
            current = record["parent"]
        return None

    def _ingest(self, intake: Intake, learner: Learner, current: int | None) -> dict[str, Any]:
        """Items into the store, where they do not count until the version is promoted."""
        begin = time.perf_counter()
        first = self.store.arrivals()  # an id is used once, whichever version goes on
        last = max([self.store.note("last") or 0, *self.versions.numbers()])
        pending: dict[str, Any] = {
            "kind": self.kind,
            "complete": False,
            "base": current,
            "number": last + 1,
            "first": first,
            "strategy": None if self.strategy is None else settings.encode(self.strategy),
            "budget": vars(self.budget),
            "data": {"name": intake.name, "fingerprint": intake.fingerprint},
        }
        self.store.set_note("pending", pending)
        count = 0
        try:
            for contents in intake.packed():
                self.store.append(first + count, contents)
                count += len(contents)
                self.crew.tell("wait")  # before they take this process for lost
            if count == 0:
                raise ValueError(
                    f"nothing in {intake.name} can be read; the first: {intake.skipped[0]}"
                )
        except Exception:
            with suppress(StoreError):  # on a full disk: the next run does it
                self.recovery.discard(pending)
            raise
        ids = torch.arange(first, first + count)
        draws = generator(learner.seed, "memory", learner.version + 1)
        pending["complete"] = True
        pending["data"] |= {"items": count, "skipped": intake.skipped}
        self.store.complete(first, learner.memory.policy.keys(ids, draws), ("pending", pending))
        self.store.fold()
        seconds = time.perf_counter() - begin
        self.recovery.tell_ingest(pending, seconds=seconds)
        self.notify(f"ingested {counted(count)} in {seconds:.1f} s")
        return pending

    def train(self, pending: dict[str, Any], learner: Learner) -> None:
        """Train on what was ingested; the first process writes what comes of it."""
        begin = time.perf_counter()
        first, count = pending["first"], pending["data"]["items"]
        skipped = () if pending["base"] is None else self.versions.extent(pending["base"]).skipped
        if learner.memory.arrivals < first:  # others came in after versions that were rolled back
            skipped = (*skipped, (learner.memory.arrivals, first))
            learner.memory = learner.memory.skip_to(first)
        sizes = self.store.columns(first + count).sizes[first:]
        ids = torch.arange(first, first + count)
        new = StoredCollection(self.store, learner.domain, ids, sizes)
        options: dict[str, Any] = {
            "budget": Budget(**pending["budget"]),
            "callbacks": [] if self.progress is None else [self.progress],
        }
        try:
            with self.crew.joint("train", pending, self.store):
                if self.kind == "fit":
                    outcome = learner.fit(new, **options)
                else:
                    outcome = learner.update(new, strategy=self._strategy(pending), **options)
        except (ValueError, TrainingDiverged):
            if self.crew.leads:
                self.recovery.discard(pending)  # it would end the same way every time
            raise
        if not self.crew.leads:
            return
        memory = learner.memory
        record = {
            "kind": self.kind,
            "parent": pending["base"],
            "workspace": self.workspace.id,
            "incontrast": __version__,
            "torch": torch.__version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "data": pending["data"],
            "first": first,
            "memory": {
                "arrivals": memory.arrivals,
                "threshold": None if math.isinf(memory.threshold) else memory.threshold,
                "skipped": skipped,
                "kept": len(memory),
                "seen": memory.seen,
            },
            "outcome": figures_of(outcome),
        }
        self.versions.write(pending["number"], learner, record)
        seconds = time.perf_counter() - begin
        self.recovery.tell_train(pending["number"], seconds=seconds)
        self.notify(f"trained version {pending['number']} in {seconds:.1f} s")

    def _strategy(self, pending: dict[str, Any]) -> Strategy | None:
        written = pending["strategy"]
        if written is None:
            return None
        if written["type"] == "yours":
            if self.strategy is None:
                raise Unfinished(
                    f"the update under way was begun with a {written['name']} of your own: "
                    "pass it again to go on, or discard the update"
                )
            return self.strategy
        strategy: Strategy = settings.decode(written, "strategy", self.store.path)
        return strategy

    def evaluate(self, pending: dict[str, Any]) -> None:
        """Judge what was trained; the first process writes the judgement."""
        begin = time.perf_counter()
        number, base = pending["number"], pending["base"]
        with self.crew.joint("evaluate", pending, self.store):
            after = self.workspace._load(number, self.store)
            before = None if base is None else self.workspace._load(base, self.store)
            evaluation = evaluate(
                before,
                after,
                self.store,
                first=pending["first"],
                count=pending["data"]["items"],
                outcome=self.versions.record(number)["outcome"],
                tolerance=self.workspace.settings["tolerance"],
            )
        if not self.crew.leads:
            return
        self.versions.set_evaluation(number, evaluation)
        seconds = time.perf_counter() - begin
        self.recovery.tell_evaluate(number, evaluation, seconds=seconds)
        self.notify(f"evaluated version {number} in {seconds:.1f} s")

    def _step(self, number: int, *, promoted: bool, repeated: bool = False) -> Step:
        record = self.versions.record(number)
        evaluation = self.versions.evaluation(number) or {}
        return Step(
            version=number,
            promoted=promoted,
            objections=tuple(evaluation.get("objections", ())),
            items=record["data"]["items"],
            skipped=tuple(record["data"]["skipped"]),
            outcome=record["outcome"],
            evaluation=evaluation,
            repeated=repeated,
        )


def _same(intake: Intake | None, pending: dict[str, Any]) -> bool:
    """Whether this run is about what was begun: without data, it is."""
    return intake is None or intake.fingerprint == pending["data"]["fingerprint"]
