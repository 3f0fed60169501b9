"""A fit or an update, in four steps each of which is complete on disk before the next begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from incontrast import saving
from incontrast._version import __version__
from incontrast.learner import Learner
from incontrast.memory import Store, StoredCollection, StoreError
from incontrast.memory.store import FORGOTTEN
from incontrast.outcome import Outcome
from incontrast.randomness import generator
from incontrast.strategies import Strategy
from incontrast.training.loop import TrainingDiverged
from incontrast.training.progress import Budget, ProgressCallback
from incontrast.workspace.crew import Crew
from incontrast.workspace.errors import Damaged, Unfinished, WorkspaceError
from incontrast.workspace.evaluation import evaluate
from incontrast.workspace.files import sweep
from incontrast.workspace.housekeeping import tidy
from incontrast.workspace.intake import Intake

if TYPE_CHECKING:
    from incontrast.workspace.workspace import Workspace

__all__ = ["NAMES", "Advance", "Notify", "Step", "counted", "finish_forgetting"]

Notify = Callable[[str], None]

NAMES = {"fit": "a fit", "update": "an update"}


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
        self.journal = workspace.journal
        self.store = store
        self.kind = kind
        self.strategy = strategy
        self.budget = budget or Budget()
        self.progress = progress
        self.notify = notify or (lambda sentence: None)
        self.crew = crew or workspace.crew()

    def run(self, items: Any, *, strict: bool, force: bool, discard: bool, again: bool) -> Step:
        finished = self.recover()
        current = self.versions.current()
        pending = self.store.note("pending")
        if pending is not None and pending["kind"] != self.kind:
            raise Unfinished(
                f"{NAMES[pending['kind']]} with {pending['data']['name']} is unfinished: "
                f"run incontrast {pending['kind']} to finish it"
            )
        if finished is not None and finished["kind"] == self.kind:
            # This very command was cut short when all but some tidying was done.
            domain = self.workspace.learner(memory=False).domain
            intake = None if items is None else Intake(items, domain, strict=strict)
            if intake is None or intake.fingerprint == finished["data"]["fingerprint"]:
                return self._step(finished["number"], promoted=True)
        if self.kind == "fit" and current is not None and items is not None:
            intake = Intake(items, self.workspace.learner(memory=False).domain, strict=strict)
            if self._repeated(intake, current) == current:
                return self._step(current, promoted=True, repeated=True)
        if self.kind == "fit" and current is not None:
            raise WorkspaceError(
                f"{self.workspace.folder} is fitted already (version {current}): update it, "
                "or make another workspace"
            )
        if self.kind == "update" and current is None:
            raise WorkspaceError(f"{self.workspace.folder} has no encoder yet: run fit first")
        learner = (
            self.workspace.template()
            if current is None
            else self.workspace._load(current, self.store)
        )
        intake = None if items is None else Intake(items, learner.domain, strict=strict)
        pending = self._choose(pending, intake, discard)
        if pending is None:
            if intake is None:
                raise WorkspaceError(f"there is no unfinished {self.kind}: give some data")
            known = None if again else self._repeated(intake, current)
            if known is not None:
                return self._step(known, promoted=True, repeated=True)
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
        self._finish(pending)
        return self._step(number, promoted=True)

    def recover(self) -> dict[str, Any] | None:
        """Clear away what an interruption has left.

        Returns:
            What was promoted and is finished now.
        """
        self.versions.sweep()
        sweep(self.workspace.folder)
        if self.store.note("forgetting") is not None:
            finish_forgetting(self.workspace, self.store)
        rolled_back = self.store.note("rollback")
        pending: dict[str, Any] | None = self.store.note("pending")
        try:
            current = self.versions.current()
        except Damaged:
            return None  # a rollback can set the pointer again; all else will say what is wrong
        if rolled_back is not None:
            if current == rolled_back["to"]:
                self.journal.add("rollback", version=current, before=rolled_back["before"])
            self.store.set_note("rollback", None)
        finished = None
        if pending is not None and (pending.get("dropped") or not pending["complete"]):
            self.discard(pending)
        elif pending is not None and current == pending["number"]:
            told = self._tell_missing(pending)
            self._finish(pending, told="promote" in told)
            finished = pending
        elif pending is not None:
            self._tell_missing(pending)
        tidy(self.workspace, self.store)
        return finished

    def discard(self, pending: dict[str, Any]) -> None:
        """Drop what is under way."""
        number, first = pending["number"], pending["first"]
        self.store.set_note("pending", {**pending, "dropped": True})  # `recover` goes on with it
        made = self.versions.folder(number).is_dir()
        if made:
            self.store.set_note("last", number)  # a number is used once
            self.versions.remove(number)
        (self.workspace.reports / f"version-{number}.html").unlink(missing_ok=True)
        if pending["complete"] and pending["base"] is not None:
            # The journal has told their ids, which nothing else may bear from now on.
            ids = torch.arange(first, first + pending["data"]["items"])
            self.store.remove(ids, forgotten=True)
        else:
            self.store.drop_from(first)
        self.journal.add("discard", version=number, made=made, data=pending["data"])
        self.store.set_note("pending", None)

    def _tell_missing(self, pending: dict[str, Any]) -> set[str]:
        """Write the lines of the journal that were cut off from their steps.

        Returns:
            The steps that were told before.
        """
        number = pending["number"]
        told: set[str] = set()
        for event in self.journal.events():
            if event.get("version") == number:
                # A number that was dropped before there was a version is given again.
                told = set() if event["step"] == "discard" else told | {event["step"]}
        if "ingest" not in told:
            self._tell_ingest(pending)
        with suppress(Damaged):  # which the next step will name
            if "train" not in told and self.versions.folder(number).is_dir():
                self._tell_train(number)
            evaluation = self.versions.evaluation(number)
            if "evaluate" not in told and evaluation is not None:
                self._tell_evaluate(number, evaluation)
        return told

    def _tell_ingest(self, pending: dict[str, Any], **about: float) -> None:
        version, data, first = pending["number"], pending["data"], pending["first"]
        self.journal.add("ingest", version=version, data=data, first=first, **about)

    def _tell_train(self, number: int, **about: float) -> None:
        outcome = self.versions.record(number)["outcome"]
        shown = ("strategy", "from_scratch", "epochs", "steps", "passes", "stopped")
        told = {key: outcome[key] for key in shown} | {"training_seconds": outcome["seconds"]}
        self.journal.add("train", version=number, **told, **about)

    def _tell_evaluate(self, number: int, evaluation: dict[str, Any], **about: float) -> None:
        objections = evaluation["objections"]
        self.journal.add("evaluate", version=number, objections=objections, **about)

    def _choose(
        self, pending: dict[str, Any] | None, intake: Intake | None, discard: bool
    ) -> dict[str, Any] | None:
        """What is under way, if this run is to go on with it."""
        if pending is None:
            return None
        same = intake is None or intake.fingerprint == pending["data"]["fingerprint"]
        if discard or (not same and self._refused(pending)):
            self.discard(pending)
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
            "strategy": None if self.strategy is None else saving.encode(self.strategy),
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
                self.discard(pending)
            raise
        ids = torch.arange(first, first + count)
        draws = generator(learner.seed, "memory", learner.version + 1)
        pending["complete"] = True
        pending["data"] |= {"items": count, "skipped": intake.skipped}
        self.store.complete(first, learner.memory.policy.keys(ids, draws), ("pending", pending))
        self.store.fold()
        seconds = time.perf_counter() - begin
        self._tell_ingest(pending, seconds=seconds)
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
            "progress": self.progress,
        }
        try:
            with self.crew.joint("train", pending, self.store):
                if self.kind == "fit":
                    outcome = learner.fit(new, **options)
                else:
                    outcome = learner.update(new, strategy=self._strategy(pending), **options)
        except (ValueError, TrainingDiverged):
            if self.crew.leads:
                self.discard(pending)  # it would end the same way every time
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
            "outcome": _figures(outcome),
        }
        self.versions.write(pending["number"], learner, record)
        seconds = time.perf_counter() - begin
        self._tell_train(pending["number"], seconds=seconds)
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
        strategy: Strategy = saving.decode(written, "strategy", self.store.path)
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
        self._tell_evaluate(number, evaluation, seconds=seconds)
        self.notify(f"evaluated version {number} in {seconds:.1f} s")

    def _finish(self, pending: dict[str, Any], *, told: bool = False) -> None:
        """After the pointer was moved: say so, and make room."""
        number = pending["number"]
        if not told:
            evaluation = self.versions.evaluation(number) or {"objections": []}
            self.journal.add("promote", version=number, despite=evaluation["objections"])
        self.store.set_note("last", number)
        self.store.set_note("pending", None)
        tidy(self.workspace, self.store)
        self.notify(f"version {number} is the current one")

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


def finish_forgetting(workspace: Workspace, store: Store) -> int:
    """Delete the items that are noted to be forgotten; returns how many there were."""
    noted = store.note("forgetting")
    ids: list[int] = noted["ids"]
    # Reports show pictures of items; `incontrast report` makes them again.
    for page in workspace.reports.glob("*.html"):
        page.unlink()
    store.remove(torch.tensor(ids), forgotten=True)
    workspace.journal.add("forget", items=noted["items"], ids=ids)
    store.set_note("forgetting", None)
    return int(noted["items"])


def counted(count: int) -> str:
    """So many items, in words."""
    return f"{count:,} item{'' if count == 1 else 's'}"


def _figures(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON."""

    def pair(change: Any) -> dict[str, Any]:
        names = ("before", "after")
        return {name: _plain(figure._asdict()) for name, figure in zip(names, change, strict=True)}

    return {
        "strategy": type(outcome.strategy).__name__,
        "settings": saving.encode(outcome.strategy),
        "from_scratch": outcome.strategy.from_scratch,
        "growth_ratio": outcome.growth_ratio,
        "loss": pair(outcome.loss),
        "change_ratio": None if outcome.change_ratio is None else pair(outcome.change_ratio),
        "seconds": outcome.seconds,
        "evaluation_seconds": outcome.evaluation_seconds,
        "epochs": outcome.epochs,
        "steps": outcome.steps,
        "passes": outcome.passes,
        "stopped": outcome.stopped,
        "undone": outcome.undone,
        "taken_back": outcome.taken_back,
        "history": [_plain(vars(epoch)) for epoch in outcome.history],
    }


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no nan."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
