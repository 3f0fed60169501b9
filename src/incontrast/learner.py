"""The learner: fit an encoder on the first data, update it when new data arrives, embed."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from incontrast.bounds import check_number, given
from incontrast.call import Call, collected
from incontrast.compat import Chain, Link, chain
from incontrast.domains.arguments import ArgumentDomain
from incontrast.domains.base import Collection, Domain
from incontrast.domains.check import check_views, width_of
from incontrast.domains.images import Images
from incontrast.domains.pairs import Pairs
from incontrast.domains.text import Text
from incontrast.domains.vectors import Vectors
from incontrast.evaluate.drift import FEW, FEWEST, Drift, measure_drift
from incontrast.evaluate.forecast import forecast as expected_seconds
from incontrast.evaluate.population import measure
from incontrast.evaluate.probes import Probe
from incontrast.heads import EncoderWithHead, Head, backbone_of, check_head, make_head
from incontrast.import_path import ImportPath, Trust
from incontrast.loss import Objective
from incontrast.memory.memory import KeepAll, Memory, Policy, Reservoir, StoredCollection
from incontrast.outcome import Outcome
from incontrast.parity import EvaluationLoss
from incontrast.randomness import seeded
from incontrast.schedules import ScheduleState
from incontrast.strategies import ICL, Distill, NoUpdate, Retrain, Strategy
from incontrast.training.engine import Precision, choose_engine, embed
from incontrast.training.loop import check_budget
from incontrast.training.optimizers import Muon
from incontrast.training.progress import Budget, ProgressCallback
from incontrast.training.task import Increment, Task
from incontrast.weights import Weights, load_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)

EVALUATED = 512
ADOPTED = 0.6  # of old items' neighbours stay in updates of an encoder that was trained elsewhere


class Own(TypedDict, total=False):
    """What a saved learner cannot hold, and its owner passes again when it is loaded.

    Objects of incontrast come back by themselves; those of your own classes do not.
    """

    domain: Domain | None
    strategy: Strategy | None
    fit_strategy: Strategy | None
    memory: Policy | None
    head: Head
    device: torch.device | str | None
    fabric: Fabric | None
    trust: Trust


class Learner:
    """An encoder of unlabelled data that can be kept up to date.

    Whatever goes wrong inside ``fit`` or ``update``, an interrupt included, leaves the
    learner exactly as it was.

    Args:
        domain: The kind of data: ``Images(...)``, ``Text()``, ``Graphs()``, ``Vectors(...)`` or one
            of your own.
        strategy: How an update is done.
        fit_strategy: How the first encoder is trained, and a retraining from scratch.
        objective: Temperature and number of negatives of the contrastive loss.
        memory: Which old items to keep for later updates.
        head: What the loss sees of an embedding: None for the embedding itself, ``"linear"``,
            ``"mlp"`` (SimCLR's), a module, or a function of the embeddings' width that makes one.
            It is trained, averaged and saved with the backbone; ``embed`` gives the backbone's
            output.
        keep_neighbours: The least share of old items' ten nearest items that must still be theirs
            after an update; of one that replaces more, less of the change is kept, or none. It is
            for an encoder that knows more than its views can teach: see ``from_encoder``. None is
            no bound.
        seed: Training is bitwise reproducible on one machine with one number of threads. Other
            processors and thread counts round differently, other devices also draw differently;
            on CUDA, ask torch for deterministic algorithms.
        device: ``"cpu"``, ``"cuda"``, ``"mps"``, …; None takes a CUDA device if there is one.
        precision: ``"bfloat16"`` runs the encoder under autocast.
        micro_batch_size: Views that go through the encoder at a time, for batches beyond memory:
            the loss still compares all items of a batch, and gradients are the same, for a second
            forward pass. BatchNorm normalises within each part. None is a whole batch.
        compile: Run the encoder's training steps through ``torch.compile``: for accelerators, and
            encoders of your own. The package's own are no faster by it on a CPU. Compiling takes
            from 10 seconds to minutes, once in a process. Results are the same up to rounding.
        fabric: A launched ``lightning_fabric.Fabric``, whose processes work together and which
            then decides device and precision. None takes the processes that ``torchrun`` has
            started, if it has. Every process makes the same calls with the same data.

    >>> from incontrast import Vectors
    >>> rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> learner = Learner(Vectors(5), fit_strategy=Retrain(max_epochs=2), seed=0)
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
        fit_strategy: Strategy | None = None,
        objective: Objective | None = None,
        memory: Policy | None = None,
        head: Head = None,
        keep_neighbours: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        precision: Precision = "float32",
        micro_batch_size: int | None = None,
        compile: bool = False,
        fabric: Fabric | None = None,
    ) -> None:
        self.domain = domain
        self.initial_domain = domain
        """As it was given: every fit starts from it."""
        self.strategy = ICL() if strategy is None else _checked(strategy)
        self.fit_strategy = Retrain() if fit_strategy is None else _checked(fit_strategy)
        self.objective = objective or Objective()
        self.head = check_head(head)
        check_number("(0, 1)", "None is no bound", **given(keep_neighbours=keep_neighbours))
        self.keep_neighbours = keep_neighbours
        self.seed = seed
        self.engine = choose_engine(device, precision, fabric)
        if micro_batch_size is not None:
            if micro_batch_size < 2 or self.engine.processes > 1:
                raise ValueError(
                    f"micro_batch_size must be at least 2, for a single process, got "
                    f"{micro_batch_size} and {self.engine.processes} processes: they share batches"
                )
            self.engine.micro_batch_size = micro_batch_size
        if not isinstance(compile, bool):
            raise TypeError(f"compile must be True or False, got {compile!r}")
        self.engine.compile = compile
        self.memory = Memory(memory or KeepAll())
        self.version = 0
        """How many fits and updates have led to this encoder."""
        self.schedule_state: ScheduleState = {}
        """What a learned schedule has learned so far; the next run resumes from it."""
        self.evaluations_after = 1
        """How many evaluations follow training, for which a budget of seconds leaves time."""
        self.seconds_for_training = False
        """Whether the seconds of a budget are for training alone; its owner allows for the rest."""
        self.space = 0
        """The number of the space that its embeddings are in: the version, or a workspace's."""
        self.links: tuple[Link, ...] = ()
        """The maps between this space and earlier ones, the newest first."""
        self.evaluation_sample = EVALUATED
        """Old and new items, each, on which an outcome's figures are measured."""
        self._encoder: nn.Module | None = None

    @classmethod
    def from_encoder(
        cls,
        encoder: nn.Module | Callable[[], nn.Module] | str | None,
        domain: Domain,
        *,
        seen: Any = None,
        seen_count: int | None = None,
        weights: Weights | None = None,
        head_weights: Weights | None = None,
        **settings: Any,
    ) -> Learner:
        """A learner at version 1, with an encoder that was trained elsewhere; nothing is trained.

        Args:
            encoder: As ``encoder`` of the domain, which then has it: a module, which is copied, a
                function that makes one, or a name; None for the domain's own.
            domain: The kind of data, with the normalisation and the size that the encoder expects.
            seen: The items that it was trained on, or a uniform sample of them. Without any, drift
                is not measured until there are some, nothing tells what an update does to old
                items, and updates are by ``Distill``, which needs none.
            seen_count: The number of items that a sample stands for.
            weights: A safetensors file or a state dict to give the encoder; see ``load_weights``.
            head_weights: The same for ``head``, which is one of the settings.
            settings: Of ``Learner``. The memory of a sample is ``Reservoir()`` by default, and
                ``keep_neighbours`` is 0.6: nothing tells whether the encoder was trained on far
                more than ``seen``, or with labels, and training on views of these items alone would
                undo that. Give None for one that was trained on them by a contrastive loss; with a
                probe, an update goes by its scores instead.
                A model of ``transformers`` for texts is updated by small steps of Adam.

        Raises:
            DomainError: The encoder does not give (n, d) finite embeddings of these items.
        """
        if seen is None and seen_count is not None:
            raise ValueError(f"seen_count={seen_count} is the number that seen stands for: give it")
        if seen is None and head_weights is not None:
            raise ValueError("head_weights need some seen items: they tell how wide a head is")
        if seen is None and settings.get("strategy") is None:
            settings["strategy"] = Distill(max_epochs=20)
            log.warning(
                "without old items, updates are by Distill: what they do to old items is not "
                "measured, nor is drift. Give seen=..., if only a sample"
            )
        if seen_count is not None and settings.get("memory") is None:
            settings["memory"] = Reservoir()
        adopting = _with_encoder(domain, encoder)
        chosen = {k: v for k, v in settings.items() if v is not None or k == "keep_neighbours"}
        learner = cls(adopting, **adopted_settings(adopting) | chosen)
        kind = domain.domain if isinstance(domain, Pairs) else domain
        if isinstance(kind, Images | Vectors) and (kind.mean is None or kind.std is None):
            advice = "give what the encoder was trained with by mean and std"
            if isinstance(kind, Vectors):
                advice += " (rows as they are: mean=(0.0,) * dim, std=(1.0,) * dim, limit=None)"
            log.warning("the encoder gets %s: %s", kind.normalisation, advice)
        if isinstance(encoder, nn.Module) and weights is None:
            weights = encoder.state_dict()
        if seen is None:
            learner._encoder = made = learner.made_elsewhere(learner.initial_domain, weights)
            if (some := learner.initial_domain.examples()) is not None:
                check_views(learner.domain, some, made, learner.engine.autocast(), learns=False)
            learner.version = learner.space = 1
        else:
            learner.adopt(seen, seen_count=seen_count, weights=weights, head_weights=head_weights)
        return learner

    def __repr__(self) -> str:
        domain = _in_short(self.initial_domain)
        if not self.fitted:
            return f"Learner({domain}, not fitted)"
        parameters = sum(parameter.numel() for parameter in self.encoder.parameters())
        head = " with a head" if self.encoder is not self.backbone else ""
        return (
            f"Learner({domain}, version {self.version}, {len(self.memory):,} items stored / "
            f"{self.memory.seen:,} seen, {type(self.backbone).__name__}{head} of {parameters:,} "
            "parameters)"
        )

    @property
    def encoder(self) -> nn.Module:
        """The encoder with its head, if it has one, in evaluation mode: what losses see."""
        if self._encoder is None:
            raise RuntimeError("there is no encoder yet: call fit() first")
        return self._encoder

    @property
    def backbone(self) -> nn.Module:
        """The encoder without its head, in evaluation mode: what ``embed`` gives."""
        return backbone_of(self.encoder)

    @property
    def fitted(self) -> bool:
        return self._encoder is not None

    def fit(
        self,
        items: Any,
        *,
        budget: Budget | None = None,
        callbacks: Sequence[ProgressCallback] = (),
        checkpoint: str | Path | None = None,
        probe: Probe | None = None,
    ) -> Outcome:
        """Train a first encoder on these items, and remember them.

        Fitting again starts over: encoder and memory of before are gone once it has succeeded.

        Args:
            items: X: what the domain collects, or a path to it.
            budget: What it may cost; its seconds are for the whole call.
            callbacks: Called after every step and every epoch; see ``Callback``.
            checkpoint: A file that the state of training is written to every minute. The same call
                after an interruption resumes from it, and ends with the weights that it would
                have had. It stays where it is; the next run replaces what it holds.
            probe: Labelled items whose scores before and after are in the outcome.
        """
        start, budget = time.perf_counter(), check_budget(budget)
        if self.fitted:
            log.warning("fit() starts over: version %d and its memory are replaced", self.version)
        domain, increment = self._first(items)
        return Call(
            self,
            domain,
            increment,
            self.fit_strategy,
            memory=Memory(self.memory.policy),
            start=start,
            budget=budget,
            callbacks=callbacks,
            checkpoint=checkpoint,
            probe=probe,
        ).run()

    def adopt(
        self,
        seen: Any,
        *,
        seen_count: int | None = None,
        weights: Weights | None = None,
        head_weights: Weights | None = None,
        probe: Probe | None = None,
    ) -> Outcome:
        """Take an encoder that was trained elsewhere as version 1; see ``from_encoder``.

        Args:
            seen: The items that it was trained on, or a uniform sample of them.
            seen_count: The number of items that a sample stands for.
            weights: Of the domain's encoder; None for those that it is made with.
            head_weights: Of the learner's head, likewise.
            probe: Labelled items whose scores are in the outcome.

        Returns:
            Its loss on these items.
        """
        start = time.perf_counter()
        if self.fitted:
            raise RuntimeError(f"there is an encoder already, version {self.version}: update() it")
        domain, increment, encoder = self.adoptable(seen, weights, head_weights)
        memory = self.memory
        if seen_count is not None:
            memory = Memory.for_sample(memory.policy, increment.new_count, seen_count)
        how: dict[str, Any] = {"current": encoder, "memory": memory, "start": start, "probe": probe}
        return Call(self, domain, increment, NoUpdate(), **how).run()

    def forecast(self, items: Any) -> float | None:
        """Seconds that ``fit`` on these items takes here, at most; None if that cannot be told.

        A few steps are tried. Patience may end training earlier.
        """
        domain, increment = self._first(items)
        with seeded(self.seed, "weights", 1):
            encoder = self._with_head(domain.encoder(), domain, increment.new, 1)
        task = Task(encoder, domain, increment, **self._settings())
        return self._expected(task, self.fit_strategy)[0]

    def _expected(self, task: Task, strategy: Strategy) -> tuple[float | None, float]:
        """Seconds that a run takes, if that can be told, and those that a call takes besides."""
        call = Call(self, task.domain, task.increment, strategy, self.memory, time.perf_counter())
        passes, besides = call.besides_training()
        return expected_seconds(task, strategy, without_gradients=passes), besides

    def adoptable(
        self, seen: Any, weights: Weights | None, head_weights: Weights | None = None
    ) -> tuple[Domain, Increment, nn.Module]:
        """What ``adopt`` begins with; refuses an encoder that cannot be made, or used for these."""
        domain, increment = self._first(seen)
        encoder = self.made_elsewhere(domain, weights)
        encoder = self._with_head(encoder, domain, increment.new, 1, head_weights).eval()
        check_views(domain, increment.new, encoder, self.engine.autocast(), learns=False)
        return domain, increment, encoder

    def made_elsewhere(
        self,
        domain: Domain,
        weights: Weights | None,
        width: int | None = None,
        head_weights: Weights | None = None,
    ) -> nn.Module:
        """The encoder that ``adopt`` takes; with a head for embeddings of this width, if any."""
        with seeded(self.seed, "weights", 1):
            encoder = domain.encoder().to(self.engine.device)
        if weights is not None:
            load_weights(encoder, weights)
        return (encoder if width is None else self._headed(encoder, width, 1, head_weights)).eval()

    def _first(self, items: Any) -> tuple[Domain, Increment]:
        with self.engine.error_barrier("read the items"):
            items = collected(self.initial_domain, items)
            held = items.in_memory() if isinstance(items, StoredCollection) else items
            return self.initial_domain.fit_statistics(held), Increment(None, items, 0)

    def update(
        self,
        items: Any,
        *,
        strategy: Strategy | None = None,
        budget: Budget | None = None,
        callbacks: Sequence[ProgressCallback] = (),
        checkpoint: str | Path | None = None,
        probe: Probe | None = None,
        tolerance: float | None = None,
        only_if_drift: bool = False,
    ) -> Outcome:
        """Bring the encoder up to date with new items, and remember them.

        All of them count as new: items that were learned from before are learned from and stored
        once more. A ``Workspace`` leaves those out.

        Args:
            items: ΔX, of the same kind as the first data.
            strategy: How to do it, for this once; the learner's own by default.
            budget: As in ``fit``. An update that a budget ends is still a good one.
            callbacks: As in ``fit``.
            checkpoint: As in ``fit``.
            probe: As in ``fit``.
            tolerance: How much larger the loss of old items may be afterwards, as a share: 0.05 is
                5 %. The learner then keeps as large a part of the change as that allows, or half
                of it where that is better on old and new items (``Outcome.kept``): weights on the
                line between the encoder of before and the trained one. None keeps all of it.
            only_if_drift: Train only if ``drift`` tells new items from old ones, or if there are
                too few of either to tell. Otherwise the items are remembered and the encoder stays
                as it is, for the cost of measuring both: at most 7,700 views and items embedded.
        """
        start, budget = time.perf_counter(), check_budget(budget)
        if not self.fitted:
            raise RuntimeError("there is no encoder to update yet: call fit() first")
        strategy = self.strategy if strategy is None else _checked(strategy)
        large = isinstance(strategy, ICL) and isinstance(strategy.optimizer, Muon)
        if large and is_sentence_model(self.domain):
            log.warning(
                "steps this large undo what a sentence model knows: give "
                "strategy=ICL.small_steps(...), which is the default of an adopted one"
            )
        with self.engine.error_barrier("read the new items"):
            increment = self._increment(items)
        if only_if_drift and not self._may_differ(increment):
            strategy = NoUpdate()
        return Call(
            self,
            self.domain,
            increment,
            strategy,
            current=self.encoder,
            memory=self.memory,
            version=self.version + 1,
            start=start,
            budget=budget,
            callbacks=callbacks,
            checkpoint=checkpoint,
            probe=probe,
            tolerance=tolerance,
        ).run()

    def _may_differ(self, increment: Increment) -> bool:
        """Whether new items differ from old ones, or are too few of either to tell."""
        if increment.stored < FEWEST or increment.new_count < FEW:
            return True
        found = measure_drift(self.encoder, self.domain, increment.resident, **self._settings())
        log.info("%s", found)
        return bool(self.engine.broadcast(found.drifted))

    def _increment(self, new: Any) -> Increment:
        return Increment(self.memory.items, collected(self.domain, new), self.memory.seen)

    def _settings(self) -> dict[str, Any]:
        return {"objective": self.objective, "engine": self.engine, "seed": self.seed}

    def _with_head(
        self,
        encoder: nn.Module,
        domain: Domain,
        items: Collection,
        version: int,
        weights: Weights | None = None,
    ) -> nn.Module:
        """On the device, with a new head if the learner has one."""
        encoder = encoder.to(self.engine.device)
        if self.head is None and weights is not None:
            raise ValueError(
                "there are weights of a head, and no head: say which, as in head='mlp' (--head mlp)"
            )
        if self.head is None:
            return encoder
        autocast = self.engine.autocast()
        width = width_of(encoder, domain, items, autocast=autocast)
        encoder = self._headed(encoder, width, version, weights)
        name = f"the head, on embeddings of {width} dimensions,"
        width_of(encoder, domain, items, name, autocast)
        return encoder

    def _headed(
        self, encoder: nn.Module, width: int, version: int, weights: Weights | None
    ) -> EncoderWithHead:
        with seeded(self.seed, "head", version):
            head = make_head(self.head, width).to(self.engine.device)
        if weights is not None:
            load_weights(head, weights, name="head")
        return EncoderWithHead(encoder, head, width)

    def embed(
        self,
        items: Any,
        *,
        head: bool = False,
        space: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Tensor:
        """(n, d) embeddings of these items, on the CPU.

        Args:
            items: Of the same kind as the first data.
            head: Give the head's output instead, which the loss sees.
            space: The version whose stored vectors these are to be compared with, by cosine:
                they are mapped into its space, and are unit vectors then. This version if None.
            progress: Called with the number of items done, after each batch.

        Raises:
            NoAdapter: No map leads to that space.
        """
        encoder = self.encoder if head else self.backbone
        if head and space is not None:
            raise ValueError("maps are between embeddings, not heads: give head or space, not both")
        mapped = None if space is None or space == self.space else self.adapter(target=space)
        with self.engine.error_barrier("read the items"):
            collection = collected(self.domain, items, least=0)
        found = embed(encoder, self.domain, collection, engine=self.engine, progress=progress)
        return found if mapped is None else mapped(found)

    def adapter(self, source: int | None = None, target: int | None = None) -> Chain:
        """What maps embeddings from the space of one version into that of another.

        ``learner.adapter(target=1)`` takes queries to vectors that version 1 has stored,
        ``learner.adapter(source=1)`` takes those vectors to today's queries.

        Args:
            source: This version if None.
            target: This version if None.
        """
        ends = (self.space if end is None else end for end in (source, target))
        return chain(self.links, *ends)

    def evaluation_loss(
        self, old: Any, new: Any = None, *, sample: int | None = None
    ) -> EvaluationLoss:
        """The loss of old and of new items on fixed views, each with negatives from both.

        Args:
            old: Items of X.
            new: Items of ΔX, if any.
            sample: Items of each at most, drawn at random; all of them if None.
        """
        encoder, first = self.encoder, collected(self.domain, old)
        increment = Increment(None, first, 0)
        if new is not None:
            increment = Increment(first, collected(self.domain, new), len(first))
        found = measure(encoder, self.domain, increment, sample=sample, **self._settings())
        loss = found.evaluation_loss()
        return loss if new is not None else EvaluationLoss(loss.new, loss.old, loss.all)

    def drift(self, new: Any, *, significance: float = 0.05, forecast: bool = True) -> Drift:
        """Whether new items differ from what memory holds, in this encoder's eyes.

        Args:
            new: Items of the same kind as the first data.
            significance: The share of false alarms that is accepted.
            forecast: Also try for a second how long an update would take on this machine, if
                there is something to do.
        """
        encoder, increment = self.encoder, self._increment(new).resident
        domain, settings = self.domain, self._settings()
        found = measure_drift(encoder, domain, increment, significance=significance, **settings)
        if not (forecast and found.drifted):
            return found
        task = Task(copy.deepcopy(encoder), domain, increment, before=encoder, **settings)
        seconds, besides = self._expected(task, self.strategy)
        return replace(found, seconds=None if seconds is None else seconds + besides)

    def forget(self, ids: Iterable[int]) -> None:
        """Remove items from memory for good; ids are places in the order of arrival, from 0."""
        self.memory = self.memory.forget(ids)

    def save(self, folder: str | Path) -> None:
        """Write the learner to a folder: weights as safetensors, the rest as JSON."""
        from incontrast.saving import save

        save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, **own: Unpack[Own]) -> Learner:
        """Read a learner back. Nothing in the folder is executed.

        Args:
            folder: What ``save`` wrote.
            own: Domain, strategies, memory policy and head where they are your own; device and
                fabric as in the constructor; ``trust=True`` permits code that the folder names by
                import path, which is refused otherwise.
        """
        from incontrast.saving import load

        return load(Path(folder), cls, **own)


def adopted_settings(domain: Domain) -> dict[str, Any]:
    """What ``Learner`` takes for an encoder that was trained elsewhere, unless told otherwise."""
    steps = {"strategy": ICL.small_steps()} if is_sentence_model(domain) else {}
    return {"keep_neighbours": ADOPTED, **steps}


def is_sentence_model(domain: Domain) -> bool:
    """Whether the encoder is a model of transformers for texts, from a folder."""
    kind = domain.domain if isinstance(domain, Pairs) else domain
    encoder = kind.arguments().get("encoder")
    return isinstance(kind, Text) and isinstance(encoder, ImportPath) and bool(encoder.folder)


def _with_encoder(domain: Domain, encoder: Any) -> Domain:
    if encoder is None:
        return domain
    if isinstance(domain, Pairs):
        return replace(domain, domain=_with_encoder(domain.domain, encoder))
    if not isinstance(domain, ArgumentDomain) or type(domain).encoder is not ArgumentDomain.encoder:
        raise TypeError(
            f"{type(domain).__name__} makes its encoder itself and takes none, got {encoder!r}: "
            "give None, and the encoder's state_dict() as weights"
        )
    adopting: Domain = replace(cast(Any, domain), encoder=encoder)
    return adopting


def _in_short(domain: Domain) -> str:
    """A domain with what differs from its defaults."""
    name = type(domain).__name__
    if not is_dataclass(type(domain)):
        return name
    given = []
    for argument in fields(cast(Any, domain)):
        value, factory = domain.arguments().get(argument.name), argument.default_factory
        usual = argument.default if factory is MISSING else factory()
        value = type(value) if isinstance(value, nn.Module) else value
        if repr(value) != repr(usual):
            given.append(f"{argument.name}={getattr(value, '__name__', repr(value))}")
    return f"{name}({', '.join(given)})"


def _checked(strategy: Any) -> Strategy:
    if isinstance(strategy, Strategy):
        return strategy
    hint = " (without its parentheses?)" if isinstance(strategy, type) else ""
    raise TypeError(f"a strategy must be an object such as ic.ICL(), got {strategy!r}{hint}")
