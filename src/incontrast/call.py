"""One fit, adoption or update of a learner, from what it begins with to its outcome."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from incontrast.compat import Link, NoAdapter, fit_link
from incontrast.compat.link import FEWEST, check_pairs, unchanged
from incontrast.compat.quality import neighbours_kept
from incontrast.data.sources import collect
from incontrast.domains.base import Collection, Domain
from incontrast.domains.check import check_views
from incontrast.evaluate.population import measure
from incontrast.evaluate.probes import Probe
from incontrast.heads import EncoderWithHead, backbone_of
from incontrast.interpolation import HALVINGS, PARTS, Bounds, Measured, keep_part
from incontrast.memory.memory import Memory, StoredCollection
from incontrast.outcome import Change, Outcome
from incontrast.randomness import generator, seeded
from incontrast.schedules import as_schedule
from incontrast.strategies import Strategy
from incontrast.text import fallen_scores
from incontrast.training.averages import CALIBRATED, calibrate
from incontrast.training.engine import embed
from incontrast.training.loop import UNLIMITED, HoursAhead, TrainingDiverged, train
from incontrast.training.progress import Budget, Callback, ProgressCallback, Run
from incontrast.training.resume import TrainingFile, described, digest, identity
from incontrast.training.task import Increment, Task

if TYPE_CHECKING:
    from incontrast.learner import Learner

log = logging.getLogger(__name__)

COMPARED = 16  # old and new items, each, that processes compare before they work together
FITTING = 5e-4  # seconds that fitting a map takes for each of its pairs, about
PAIRS = 4000  # items at most, old and new, on which a map between two versions is fitted
FEW_PAIRS, PASSES = 1000, 20  # of a map: more only if training had so many passes for each
LINKS = 10  # versions back that a learner keeps maps to
FEWEST_OLD, MOST_OLD = 30, 512  # items of which neighbours say something, and are looked at
RISE = 0.01  # of the loss of new items, as a share: less is not worth a word


class BudgetTooSmall(ValueError):
    """There would be no time left for training; nothing was changed.

    ``spent`` are the seconds that all but training takes, about; ``pending`` is what waits.
    """

    def __init__(self, seconds: float, spent: float, pending: str = "") -> None:
        self.seconds, self.spent = seconds, spent
        super().__init__(
            f"a budget of {seconds:g} seconds is too small: reading and evaluating alone take "
            f"about {spent:.1f} s here; give at least {2 * spent:.1f}{pending and f'. {pending}'}"
        )


def collected(domain: Domain, items: Any, *, least: int = 1) -> Collection:
    """Labels of labelled data are never looked at; items of a store were collected before."""
    if isinstance(items, StoredCollection):
        return items
    collection = collect(items, domain)
    if len(collection) < least:
        raise ValueError(f"there are no items in what {type(domain).__name__}.collect() returned")
    return collection


@dataclass(frozen=True, eq=False)
class Call:
    """What a fit, an adoption or an update begins with; ``run`` does it."""

    learner: Learner
    domain: Domain
    increment: Increment
    strategy: Strategy
    memory: Memory
    start: float  # by ``time.perf_counter``
    current: nn.Module | None = None  # the encoder of before
    version: int = 1  # that it leads to
    budget: Budget = UNLIMITED
    callbacks: Sequence[ProgressCallback] = ()
    checkpoint: str | Path | None = None
    probe: Probe | None = None
    tolerance: float | None = None

    def run(self) -> Outcome:
        """Work on copies throughout; the learner changes in the last lines, or not at all."""
        learner, strategy, current = self.learner, self.strategy, self.current
        engine = learner.engine
        schedule_state = {} if current is None else learner.schedule_state
        if self.items < 2:
            raise ValueError("training needs at least 2 items, got 1: items are compared")
        if current is not None and not isinstance(current, EncoderWithHead):
            current = learner._with_head(current, self.domain, self.increment.new, 1).eval()
        continued = None if strategy.from_scratch else current
        with engine.error_barrier("begin training"):
            encoder = copy.deepcopy(continued) if continued is not None else self._new_encoder()
            draws = generator(learner.seed, "memory", self.version)
            remembered = self.memory.admit(self.increment.new, draws)
        engine.check_equal(self._compared)
        engine.broadcast_weights(encoder)
        task = Task(
            encoder,
            self.domain,
            self.data,
            objective=learner.objective,
            engine=engine,
            seed=generator(learner.seed, "task", self.version).initial_seed(),
            before=current,
        )
        before, seconds_before = self._measured_before(task)
        pairs = self._pairs(seconds_before)
        file = None
        if self.checkpoint is not None:
            others = (learner.objective, engine.precision, self.budget.forward_passes)
            begun = (encoder, schedule_state, self.domain, self.increment, self._facts())
            file = TrainingFile(Path(self.checkpoint), identity(*begun, *others))
        try:
            run = train(
                task,
                strategy,
                budget=self._for_training(seconds_before, pairs),
                callbacks=[*self.callbacks, HoursAhead()],
                schedule_state=schedule_state,
                file=file,
            )
        except TrainingDiverged:
            raise
        except RuntimeError:
            if current is not None:  # adopted, maybe, and without gradients: this says so
                check_views(self.domain, self.increment.new, current, engine.autocast())
            raise
        kept, trained = 1.0, time.perf_counter()
        after = self._measured_after(encoder) if run.steps else before
        if continued is not None:
            if not run.steps:
                encoder = continued  # not a copy: the space is the same, and needs no map
            guarded = as_schedule(strategy.lr).guarded
            if guarded and engine.broadcast_float(after.loss.all - before.loss.all) > 0.0:
                encoder, after, kept = continued, before, 0.0
            elif run.steps and self.bounds != Bounds():
                encoder, after, kept = keep_part(
                    task, before, after, self._measured_after, self.bounds
                )
                engine.broadcast_weights(encoder)  # statistics that were set again
        pairs = min(pairs, max(FEW_PAIRS, run.forward_passes // PASSES))
        links = self._links(current, encoder, pairs)
        measuring = seconds_before + time.perf_counter() - trained
        outcome = self._outcome(run, before, after, measuring, kept)
        learner.domain, learner._encoder, learner.memory = self.domain, encoder, remembered
        learner.version = learner.space = self.version
        learner.links = links
        learner.schedule_state = run.schedule_state or schedule_state
        log.info("version %d: %s", self.version, outcome)
        for callback in self.callbacks:
            if isinstance(callback, Callback):
                callback.on_outcome(outcome, learner)
        return outcome

    @property
    def data(self) -> Increment:
        return self.increment.resident

    @property
    def items(self) -> int:
        """Stored ones and new ones."""
        return self.increment.stored + self.increment.new_count

    @property
    def bounds(self) -> Bounds:
        """What it may do to old items."""
        if self.current is None or self.strategy.from_scratch:
            return Bounds()
        return Bounds(self.tolerance, self.learner.keep_neighbours)

    @cached_property
    def _old_places(self) -> Tensor:
        """Old items whose neighbours are looked at; none where there is no bound."""
        if self.bounds.neighbours is None or self.probe is not None:
            return torch.empty(0, dtype=torch.int64)
        draws = generator(self.learner.seed, "neighbours")
        stored = torch.randperm(self.increment.stored, generator=draws)
        return stored[:MOST_OLD].sort().values

    @cached_property
    def _old_before(self) -> Tensor:
        """(n, d) their embeddings by the encoder of before."""
        assert self.current is not None
        return self._embedded_old(self.current)

    def _embedded_old(self, encoder: nn.Module) -> Tensor:
        assert self.data.old is not None
        items = self.data.old.select(self._old_places)
        return embed(backbone_of(encoder), self.domain, items, engine=self.learner.engine)

    # Before training -----------------------------------------------------------------------------

    def _new_encoder(self) -> nn.Module:
        learner, new = self.learner, self.increment.new
        with seeded(learner.seed, "weights", self.version, device=learner.engine.device):
            encoder = self.domain.encoder()
            encoder = learner._with_head(encoder, self.domain, new, self.version)
            check_views(self.domain, new, encoder, learner.engine.autocast())
        return encoder

    def _facts(self) -> dict[str, Any]:
        """What the run is known by."""
        return {
            "seed": self.learner.seed,
            "version": self.version,
            "domain": described(self.domain),
            "strategy": described(self.strategy),
            "the number of items seen": self.increment.seen,
            "the number of old items": self.increment.stored,
            "the number of new items": self.increment.new_count,
        }

    def _compared(self) -> dict[str, Any]:
        """What all processes must agree on."""
        return {
            **self._facts(),
            "the digest of some old items": digest(self.domain, self.increment.old, COMPARED),
            "the digest of some new items": digest(self.domain, self.increment.new, COMPARED),
            "the tolerance": self.tolerance,
            "keep_neighbours": self.learner.keep_neighbours,
        }

    def _measured_before(self, task: Task) -> tuple[Measured, float]:
        """What is known of the encoder of before, or of a new one, and what a measurement takes."""
        begin = time.perf_counter()
        encoder = task.before or task.encoder
        try:
            with self._deadline(encoder):
                if task.before is None:
                    # BatchNorm that has seen no data would make the start look better or worse.
                    with seeded(task.seed, "calibration", device=task.engine.device):
                        calibrate(task, encoder)
                    begin = time.perf_counter()
                before = self._measure(encoder)
        except BudgetTooSmall:
            raise
        except Exception:
            # If a domain or an encoder of the user's own is to blame, this says what is wrong.
            autocast = task.engine.autocast()
            check_views(self.domain, self.increment.new, task.encoder, autocast, learns=False)
            raise
        return before, time.perf_counter() - begin

    # The seconds of the budget, which are for the whole call -------------------------------------

    @property
    def _measured_items(self) -> int:
        """Items on which an outcome's figures are measured."""
        counts = (self.increment.stored, self.increment.new_count)
        return sum(min(count, self.learner.evaluation_sample) for count in counts)

    def besides_training(self) -> tuple[int, float]:
        """Forward passes without gradients, and seconds, that a call without a budget takes.

        Two measurements, BatchNorm's statistics, and the map.
        """
        pairs = min(self.items, PAIRS)
        views = 2 * self._measured_items + min(self.items, CALIBRATED)
        return 2 * (views + pairs), FITTING * pairs

    def _pairs(self, seconds: float) -> int:
        """Items on which a map is fitted: as many as a tenth of the budget allows for.

        Args:
            seconds: That a measurement takes.
        """
        pairs = min(self.items, PAIRS)
        if self.budget.seconds is None:
            return pairs
        # Both encoders embed an item once, where both of its views were measured.
        allowed = self.budget.seconds / 10 / (seconds / self._measured_items + FITTING)
        return min(pairs, max(FEWEST, int(self.learner.engine.broadcast_float(allowed))))

    def _for_training(self, seconds: float, pairs: int) -> Budget:
        """What is left of the budget for training.

        After training come, for every part of the change that may be tried, BatchNorm's statistics
        and the same measurement as before; then the map.
        """
        budget, learner = self.budget, self.learner
        if budget.seconds is None or learner.seconds_for_training:
            return budget
        parts = 1
        if self.bounds != Bounds():
            parts += PARTS if self.bounds.neighbours is None else HALVINGS
        items = pairs + parts * (min(self.items, CALIBRATED) + len(self._old_places))
        measurements = learner.evaluations_after - 1 + parts + items / self._measured_items
        after = seconds * measurements + FITTING * pairs
        spent = learner.engine.broadcast_float(time.perf_counter() - self.start + after)
        if spent >= budget.seconds:
            raise BudgetTooSmall(budget.seconds, spent)
        return replace(budget, seconds=budget.seconds - spent)

    @contextmanager
    def _deadline(self, encoder: nn.Module) -> Iterator[None]:
        """End what precedes training once it has taken the whole budget.

        Not among several processes, of which none may end by itself.
        """
        limit, begin, done = self.budget.seconds, time.perf_counter(), 0
        if limit is None or self.learner.seconds_for_training or self.learner.engine.processes > 1:
            yield
            return
        own = threading.get_ident()  # others may embed by this encoder meanwhile
        needed = 2 * (self._measured_items + min(self.items, CALIBRATED))  # two views of each

        def look(module: nn.Module, given: Any, embeddings: Tensor) -> None:
            nonlocal done
            if threading.get_ident() != own:
                return
            done += len(embeddings)
            now = time.perf_counter()
            if now - self.start >= limit:
                left = (now - begin) * max(0.0, needed / done - 1.0)
                raise BudgetTooSmall(limit, now - self.start + left)

        hook = backbone_of(encoder).register_forward_hook(look)
        try:
            yield
        finally:
            hook.remove()

    # Before and after training -------------------------------------------------------------------

    def _measure(self, encoder: nn.Module) -> Measured:
        learner, training = self.learner, encoder.training
        population = measure(
            encoder.eval(),
            self.domain,
            self.data,
            objective=learner.objective,
            engine=learner.engine,
            sample=learner.evaluation_sample,
            seed=learner.seed,
        )
        scores = None
        if self.probe is not None:
            items = collected(self.domain, self.probe.items)
            found = embed(backbone_of(encoder), self.domain, items, engine=learner.engine)
            scores = self.probe.scores(found)
        encoder.train(training)
        return Measured(population, population.evaluation_loss(), scores)

    def _measured_after(self, encoder: nn.Module) -> Measured:
        found = self._measure(encoder)
        if len(self._old_places) < FEWEST_OLD:
            return found
        _, _, stayed = neighbours_kept(self._old_before, self._embedded_old(encoder))
        return found._replace(neighbours=stayed)

    def _links(self, before: nn.Module | None, after: nn.Module, pairs: int) -> tuple[Link, ...]:
        """The maps that a new version has: one more than the version before it had."""
        learner, data, space = self.learner, self.data, self.version
        if before is None or space == 1:
            return ()
        if after is before:
            return (unchanged(learner.space, space), *learner.links)[:LINKS]
        draws = generator(learner.seed, "pairs", space)
        order = torch.randperm(self.items, generator=draws)[:pairs].sort().values
        new = order >= data.stored
        parts = [data.new.select(order[new] - data.stored)]
        if data.old is not None:
            parts.insert(0, data.old.select(order[~new]))
        by = partial(embed, domain=self.domain, engine=learner.engine)
        try:
            check_pairs(len(order))
            embedded = [
                torch.cat([by(backbone_of(encoder), items=part) for part in parts if len(part)])
                for encoder in (before, after)
            ]
            link = fit_link(*embedded, old=learner.space, new=space, seed=learner.seed)
        except (NoAdapter, LinAlgError) as error:  # the update is none the worse for it
            log.warning("stored vectors of before cannot be mapped: %s", error)
            return ()
        return (link, *learner.links)[:LINKS]

    def _outcome(
        self, run: Run, before: Measured, after: Measured, evaluation_seconds: float, kept: float
    ) -> Outcome:
        stored, first, last = self.increment.stored, before.population, after.population
        probe = Change(before.probe, after.probe) if before.probe and after.probe else None
        worse = list(fallen_scores(probe)) if stored and probe else []
        if stored and self.increment.new_count > 1:
            # The same views of the same items: what chance does shows in how their changes differ.
            changes = last.new_losses - first.new_losses
            error = changes.std().item() / len(changes) ** 0.5
            if changes.mean().item() > max(2.0 * error, RISE * abs(before.loss.new)):
                rose = f"from {before.loss.new:.3f} to {after.loss.new:.3f}"
                worse.insert(0, f"the loss of new items rose {rose}")
        alike = math.log1p(self.learner.objective.negatives)  # the loss where all embeddings are
        if stored and self.increment.new_count > 1 and (last.new_losses - alike).abs().max() < 0.01:
            worse.insert(0, "all embeddings are nearly the same, they have collapsed")
        return Outcome(
            strategy=self.strategy,
            growth_ratio=self.increment.growth_ratio,
            loss=Change(before.loss, after.loss),
            change_ratio=(
                Change(first.change_ratio(), last.change_ratio()) if stored > 1 else None
            ),
            probe=probe,
            seconds=run.seconds,
            evaluation_seconds=evaluation_seconds,
            epochs=len(run.history),
            steps=run.steps,
            forward_passes=run.forward_passes,
            stopped=run.stopped,
            rollbacks=run.rollbacks,
            kept=kept,
            neighbours=after.neighbours,
            history=run.history,
            worse=tuple(worse),
        )
