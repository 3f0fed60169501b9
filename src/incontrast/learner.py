"""The learner: fit an encoder on the first data, update it when new data arrives, embed."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from incontrast.data.labelled import Labelled
from incontrast.domains.base import Collection, Domain
from incontrast.domains.check import check_views
from incontrast.embedding import embed
from incontrast.evaluate.drift import Drift, measure_drift
from incontrast.evaluate.population import Population, TrueLoss, measure
from incontrast.forecast import forecast as expected_seconds
from incontrast.memory import KeepAll, Memory, Policy, StoredCollection
from incontrast.outcome import Change, Outcome
from incontrast.randomness import generator, seeded
from incontrast.rates import RatesState
from incontrast.strategies import ICL, Retrain, Strategy
from incontrast.training.agreement import facts
from incontrast.training.contrast import Objective
from incontrast.training.engine import Precision
from incontrast.training.fabric import choose_engine
from incontrast.training.increment import Increment
from incontrast.training.loop import calibrate, train
from incontrast.training.progress import Budget, ProgressCallback, Run
from incontrast.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Learner"]

log = logging.getLogger(__name__)

EVALUATED = 512  # old and new items, each, on which an outcome's figures are measured


class Learner:
    """An encoder of unlabelled data that can be kept up to date.

    Whatever goes wrong inside ``fit`` or ``update``, an interrupt included, leaves the
    learner exactly as it was.

    Args:
        domain: The kind of data: ``Images(...)``, ``Graphs()``, ``Vectors(...)`` or your own.
        strategy: How an update is done.
        fitting: How the first fit is done, and a retraining from scratch.
        objective: Temperature and number of negatives of the contrastive loss.
        memory: Which old items to keep for later updates.
        seed: The same seed gives the same bits.
        device: ``"cpu"``, ``"cuda"``, ``"mps"``, …; None takes a CUDA device if there is one.
        precision: ``"bfloat16"`` runs the encoder under autocast.
        fabric: A launched ``lightning_fabric.Fabric``, whose processes work together and which
            then decides device and precision. None takes the processes that ``torchrun`` has
            started, if it has. Every process makes the same calls with the same data.

    >>> from incontrast import Vectors
    >>> rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> learner = Learner(Vectors(5), fitting=Retrain(max_epochs=2), seed=0)
    >>> outcome = learner.fit(rows[:48])
    >>> outcome = learner.update(rows[48:])
    >>> outcome.growth_ratio
    0.25
    >>> learner.embed(rows).shape
    torch.Size([64, 64])
    """

    def __init__(
        self,
        domain: Domain,
        *,
        strategy: Strategy | None = None,
        fitting: Strategy | None = None,
        objective: Objective | None = None,
        memory: Policy | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        precision: Precision = "float32",
        fabric: Fabric | None = None,
    ) -> None:
        self.domain = domain
        self.unbound_domain = domain
        """As it was given: every fit starts from it."""
        self.strategy = ICL() if strategy is None else _checked(strategy)
        self.fitting = Retrain() if fitting is None else _checked(fitting)
        self.objective = objective or Objective()
        self.seed = seed
        self.engine = choose_engine(device, precision, fabric)
        self.memory = Memory(memory or KeepAll())
        self.version = 0
        """How many fits and updates have made this encoder."""
        self.rates_state: RatesState = {}
        """What learned rates have learned so far; the next run goes on from it."""
        self._encoder: nn.Module | None = None

    @property
    def encoder(self) -> nn.Module:
        """The encoder, in evaluation mode."""
        if self._encoder is None:
            raise RuntimeError("there is no encoder yet: call fit() first")
        return self._encoder

    @property
    def fitted(self) -> bool:
        """Whether there is an encoder."""
        return self._encoder is not None

    def fit(
        self,
        items: Any,
        *,
        budget: Budget | None = None,
        progress: ProgressCallback | None = None,
    ) -> Outcome:
        """Train a fresh encoder on these items, and remember them.

        Fitting again starts anew: encoder and memory of before are gone once it has succeeded.
        """
        with self.engine.together("read the items"):
            collection = _collected(self.unbound_domain, items)
            domain = self.unbound_domain.bind(
                collection.in_memory() if isinstance(collection, StoredCollection) else collection
            )
        return self._train(
            None,
            domain,
            Increment(None, collection, 0),
            Memory(self.memory.policy),
            {},
            self.fitting,
            budget,
            progress,
            version=1,
        )

    def update(
        self,
        items: Any,
        *,
        strategy: Strategy | None = None,
        budget: Budget | None = None,
        progress: ProgressCallback | None = None,
    ) -> Outcome:
        """Bring the encoder up to date with new items, and remember them.

        Args:
            items: ΔX, of the same kind as the first data.
            strategy: How to do it, for this once; the learner's own by default.
            budget: What it may cost. An update that a budget ends is still a good one.
            progress: Called after every step and every epoch.
        """
        if not self.fitted:
            raise RuntimeError("there is no encoder to update yet: call fit() first")
        strategy = self.strategy if strategy is None else _checked(strategy)
        with self.engine.together("read the new items"):
            new = _collected(self.domain, items)
        increment = Increment(self.memory.items, new, self.memory.seen)
        return self._train(
            self.encoder,
            self.domain,
            increment,
            self.memory,
            self.rates_state,
            strategy,
            budget,
            progress,
            version=self.version + 1,
        )

    def _train(
        self,
        current: nn.Module | None,
        domain: Domain,
        increment: Increment,
        memory: Memory,
        rates_state: RatesState,
        strategy: Strategy,
        budget: Budget | None,
        progress: ProgressCallback | None,
        version: int,
    ) -> Outcome:
        """Work on copies throughout; the learner changes in the last lines, or not at all."""
        if increment.kept + len(increment.new) < 2:
            raise ValueError("training needs at least 2 items, got 1: items are compared")
        with self.engine.together("begin training"):
            if current is None or strategy.from_scratch:
                with seeded(self.seed, "weights", version):
                    encoder = domain.encoder()
            else:
                encoder = copy.deepcopy(current)
            encoder = self.engine.place(encoder)
            check_views(domain, increment.new, encoder, place=self.engine.place)
            remembered = memory.admit(increment.new, generator(self.seed, "memory", version))
        self.engine.check_same(lambda: facts(self.seed, version, domain, increment, strategy))
        self.engine.align(encoder)
        task = Task(
            encoder,
            domain,
            increment,
            objective=self.objective,
            engine=self.engine,
            seed=generator(self.seed, "task", version).initial_seed(),
        )
        if current is None:
            # BatchNorm that has seen no data would make the start look better or worse than it is.
            with seeded(task.seed, "calibration", device=self.engine.device):
                calibrate(task, encoder)
        before, before_seconds = self._measure(
            encoder if current is None else current, domain, increment
        )
        run = train(task, strategy, budget=budget, progress=progress, rates_state=rates_state)
        after, after_seconds = self._measure(encoder, domain, increment)
        self.engine.align(encoder)
        taken_back = False
        if strategy.rates.guarded and current is not None and not strategy.from_scratch:
            rise = self.engine.agree(after.true_loss().all - before.true_loss().all)
            taken_back = rise > 0.0
        if taken_back and current is not None:
            encoder, after = current, before
        outcome = _outcome(
            strategy, increment, run, before, after, before_seconds + after_seconds, taken_back
        )
        self.domain, self._encoder, self.memory, self.version = domain, encoder, remembered, version
        self.rates_state = run.rates_state or rates_state
        log.info("version %d: %s", version, outcome)
        return outcome

    def _measure(
        self, encoder: nn.Module, domain: Domain, increment: Increment
    ) -> tuple[Population, float]:
        begin = time.perf_counter()
        training = encoder.training
        population = measure(
            encoder.eval(),
            domain,
            increment,
            objective=self.objective,
            engine=self.engine,
            sample=EVALUATED,
            seed=self.seed,
        )
        encoder.train(training)
        return population, time.perf_counter() - begin

    def embed(self, items: Any, *, progress: Callable[[int], None] | None = None) -> Tensor:
        """(n, d) embeddings of these items, on the CPU.

        Args:
            items: Of the same kind as the first data.
            progress: Called with the number of items done, after each batch.
        """
        encoder = self.encoder
        with self.engine.together("read the items"):
            collection = _collected(self.domain, items)
        return embed(encoder, self.domain, collection, engine=self.engine, progress=progress)

    def true_loss(self, old: Any, new: Any = None, *, sample: int | None = None) -> TrueLoss:
        """The true loss of old and of new items, each with noise from both.

        Args:
            old: Items of X.
            new: Items of ΔX, if any.
            sample: Items of each at most, drawn at random; all of them if None.
        """
        encoder = self.encoder
        first = _collected(self.domain, old)
        if new is None:
            increment = Increment(None, first, 0)
        else:
            increment = Increment(first, _collected(self.domain, new), len(first))
        loss = measure(
            encoder,
            self.domain,
            increment,
            objective=self.objective,
            engine=self.engine,
            sample=sample,
            seed=self.seed,
        ).true_loss()
        return loss if new is not None else TrueLoss(loss.new, loss.old, loss.all)

    def drift(self, new: Any, *, level: float = 0.05, forecast: bool = True) -> Drift:
        """Whether new items differ from what memory holds, in this encoder's eyes.

        Args:
            new: Items of the same kind as the first data.
            level: The share of false alarms that is accepted.
            forecast: Also try for a second how long an update would take on this machine.
        """
        encoder = self.encoder
        increment = Increment(self.memory.items, _collected(self.domain, new), self.memory.seen)
        settings: dict[str, Any] = {
            "objective": self.objective,
            "engine": self.engine,
            "seed": self.seed,
        }
        found = measure_drift(encoder, self.domain, increment, level=level, **settings)
        if not forecast:
            return found
        seconds = expected_seconds(encoder, self.domain, increment, self.strategy, **settings)
        return replace(found, seconds=seconds)

    def forget(self, ids: Iterable[int]) -> None:
        """Remove items from memory for good; ids are places in the order of arrival, from 0."""
        self.memory = self.memory.forget(ids)

    def save(self, folder: str | Path) -> None:
        """Write the learner to a folder: weights as safetensors, the rest as JSON."""
        from incontrast.saving import save

        save(self, Path(folder))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        domain: Domain | None = None,
        strategy: Strategy | None = None,
        fitting: Strategy | None = None,
        memory: Policy | None = None,
        device: torch.device | str | None = None,
        fabric: Fabric | None = None,
    ) -> Learner:
        """Read a learner back. Nothing in the folder is executed.

        Args:
            folder: What ``save`` wrote.
            domain: The domain, where it is one of your own or has an encoder of your own.
            strategy: The strategy, where it is one of your own.
            fitting: The fitting strategy, where it is one of your own.
            memory: The policy of the memory, where it is one of your own.
            device: As in the constructor.
            fabric: As in the constructor.
        """
        from incontrast.saving import load

        return load(
            Path(folder),
            kind=cls,
            domain=domain,
            strategy=strategy,
            fitting=fitting,
            memory=memory,
            device=device,
            fabric=fabric,
        )


def _checked(strategy: Any) -> Strategy:
    if isinstance(strategy, Strategy):
        return strategy
    hint = " (without its parentheses?)" if isinstance(strategy, type) else ""
    raise TypeError(f"a strategy must be an object such as ic.ICL(), got {strategy!r}{hint}")


def _collected(domain: Domain, items: Any) -> Collection:
    """Labels of labelled data are never looked at; items of a store were collected before."""
    if isinstance(items, StoredCollection):
        return items
    return domain.collect(items.items if isinstance(items, Labelled) else items)


def _outcome(
    strategy: Strategy,
    increment: Increment,
    run: Run,
    before: Population,
    after: Population,
    evaluation_seconds: float,
    taken_back: bool,
) -> Outcome:
    return Outcome(
        strategy=strategy,
        growth_ratio=increment.growth_ratio,
        loss=Change(before.true_loss(), after.true_loss()),
        change_ratio=(
            Change(before.change_ratio(), after.change_ratio()) if increment.kept > 1 else None
        ),
        seconds=run.seconds,
        evaluation_seconds=evaluation_seconds,
        epochs=len(run.history),
        steps=run.steps,
        passes=run.passes,
        stopped=run.stopped,
        undone=run.undone,
        taken_back=taken_back,
        history=run.history,
    )
