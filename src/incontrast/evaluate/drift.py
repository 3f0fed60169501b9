"""Whether new data differ from old data in the encoder's eyes, with a p-value; label-free.

The change ratio r of an old item (Def. 4) compares new items as its negatives with old
ones; r = 1 means that they are the same to it. How far r may stray from 1 by chance follows
from shuffling: other old items serve as the reference, and under the hypothesis that nothing has
changed, the new items could have been any of the two groups taken together. So the statistic is
computed again for random groups of the same sizes, from the same embeddings.

Embeddings are of views, as in training. An encoder that was trained elsewhere with others may
hardly recognise an item in them: then they say more about views than about items, and items are
embedded as they are. Old items alone decide that, so that the test stays exact.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize

from incontrast.bounds import check_number
from incontrast.domains.base import Domain
from incontrast.evaluate.population import Quartiles
from incontrast.loss import Objective
from incontrast.randomness import generator
from incontrast.strategies.strategy import Strategy
from incontrast.text import counted, duration
from incontrast.training.engine import Engine, embed, embed_views
from incontrast.training.loop import TrainingDiverged, train
from incontrast.training.progress import Progress
from incontrast.training.task import Increment, Task

Advice = Literal["nothing to do", "update", "consider retraining"]

ANCHORS, REFERENCE = 512, 1024  # old items at most: those looked at, and those that stand for X
COMPARED = 1000  # new items at most
FEWEST = 30  # old items at least
RECOGNISED = 0.9  # of others must be less similar than an item's other view, for views to tell
SHUFFLES = 999
MOSTLY_NEW = 0.5  # from this growth ratio on, an update has little to start from
FEW = 30  # new items below which only large differences show
TRIAL, LONGEST_TRIAL = 1.0, 5.0  # seconds of a forecast; the latter only to come to
FEWEST_STEPS = 3  # that are timed


@dataclass(frozen=True)
class Drift:
    """How new data look to an encoder."""

    change_ratio: Quartiles  # of r over old items, with the new items as ΔX
    distance: float  # root of the mean of (log r)², which the test is about; 0 is no change
    by_chance: float  # the largest distance that is not drift at this significance
    p_value: float  # how often chance alone gives a distance as large
    significance: float  # the share of false alarms that is accepted
    anchors: int  # old items over which r is looked at
    reference: int  # other old items, which stand for X
    new: int  # new items that were looked at
    growth_ratio: float  # α, the share that the new items would have of everything seen
    seconds: float | None = (
        None  # that an update should take here, at most; None if none is needed or tried
    )
    as_they_are: bool = False  # whether items were compared without views
    differences: dict[str, Any] = field(default_factory=dict)  # see ``Domain.differences``

    @property
    def drifted(self) -> bool:
        """Whether chance is ruled out at this significance."""
        return self.p_value <= self.significance

    @property
    def advice(self) -> Advice:
        if not self.drifted:
            return "nothing to do"
        return "consider retraining" if self.growth_ratio >= MOSTLY_NEW else "update"

    def __str__(self) -> str:
        ratio = self.change_ratio
        basis = (
            f"change ratio {ratio.median:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f}), in all "
            f"{self.distance:.3f} away from 1 where chance gives up to {self.by_chance:.3f}, "
            f"p = {self.p_value:.3f}; from {self.new} new, {self.reference} old items and "
            f"{self.anchors} others as anchors"
        )
        reason = {
            "nothing to do": "Nothing to do: the new items look like the old ones",
            "update": "Update: the new items differ from the old ones",
            "consider retraining": (
                "Consider retraining: the new items differ from the old ones and are "
                f"{self.growth_ratio:.0%} of all"
            ),
        }[self.advice]
        text = f"{reason} ({basis})."
        if self.as_they_are:
            text += (
                " Items were compared as they are: in views of this domain the encoder hardly "
                "recognises them. If it was trained with others, give the domain those."
            )
        if self.new < FEW:
            text += f" With {counted(self.new, 'new item')} only large differences show."
        if self.seconds is not None:
            text += f" An update should take about {duration(self.seconds)}."
        if "summary" in self.differences:
            text += f" {self.differences['summary']}"
        return text


def measure_drift(
    encoder: nn.Module,
    domain: Domain,
    increment: Increment,
    *,
    significance: float = 0.05,
    objective: Objective,
    engine: Engine,
    seed: int,
) -> Drift:
    """Draw items, embed views of them, and compare; arguments as in ``measure`` and ``drift``."""
    old, new = increment.old, increment.new
    if old is None or len(old) < FEWEST:
        raise ValueError(
            f"drift is measured against at least {FEWEST} old items, memory holds "
            f"{increment.stored}: give the learner a larger memory"
        )
    check_number("(0, 1)", significance=significance)
    draws, views = generator(seed, "drift"), generator(seed, "drift views")
    known = torch.randperm(len(old), generator=draws)[: ANCHORS + REFERENCE]
    fresh = torch.randperm(len(new), generator=draws)[:COMPARED]
    first, second = embed_views(encoder, domain, old, known, views, engine=engine)
    anchors = min(ANCHORS, len(known) // 3)
    told_apart = _told_apart(first[:anchors], second[:anchors])
    as_they_are = engine.broadcast_float(told_apart) < RECOGNISED
    if as_they_are:
        first = second = embed(encoder, domain, old.select(known), engine=engine)
        later = embed(encoder, domain, new.select(fresh), engine=engine)
    else:
        _, later = embed_views(encoder, domain, new, fresh, views, engine=engine)
    found = drift(
        (first[:anchors], second[:anchors]),
        second[anchors:],
        later,
        objective=objective,
        growth_ratio=increment.growth_ratio,
        draws=draws,
        significance=significance,
    )
    differences = domain.differences(old.take(known), new.take(fresh))
    return replace(found, as_they_are=as_they_are, differences=differences)


def _told_apart(first: Tensor, second: Tensor) -> float:
    """The share of other items that are less similar to an item's view than its other view is."""
    similarity = normalize(first) @ normalize(second).T  # (a, a)
    others = max(1, len(first) * (len(first) - 1))
    return float((similarity < similarity.diagonal()[:, None]).sum()) / others


def drift(
    anchors: tuple[Tensor, Tensor],
    reference: Tensor,
    new: Tensor,
    *,
    objective: Objective,
    growth_ratio: float,
    draws: Generator,
    significance: float = 0.05,
) -> Drift:
    """Compare new items with old ones as negatives of other old items.

    Shapes:
        anchors: (a, d) and (a, d) embeddings of two views of some old items
        reference, new: (o, d), (n, d) embeddings of a view of other old items, of the new items
    """
    first, second = (normalize(views.double()) for views in anchors)
    pool = normalize(torch.cat([new, reference]).double())
    count, total = len(new), len(pool)

    # f, all divided by its largest possible value: in a ratio that does not matter, and it is
    # never too large to add.
    def similar(cosine: Tensor) -> Tensor:
        return torch.exp((cosine - 1.0) / objective.temperature)

    positive = similar((first * second).sum(dim=1))[:, None]  # (a, 1)
    negatives = similar(first @ pool.T)  # (a, n + o)
    # Column 0 says who is new, the others say who might have been.
    order = torch.rand(total, SHUFFLES, generator=draws).argsort(dim=0)[:count]
    member = torch.zeros(total, 1 + SHUFFLES, dtype=torch.float64)
    member[:count, 0] = 1.0
    member[:, 1:].scatter_(0, order, 1.0)
    inside = negatives @ member  # (a, 1 + shuffles)
    outside = negatives.sum(dim=1, keepdim=True) - inside
    k = objective.negatives
    log_ratio = torch.log(positive + k * inside / count) - torch.log(
        positive + k * outside.clamp(min=0.0) / (total - count)
    )
    distance = log_ratio.square().mean(dim=0).sqrt()
    # A hair less, so that equal groups count as equal whatever the order of their sums.
    if not bool(distance.isfinite().all()):
        raise ValueError(
            "embeddings are not finite, so nothing can be said about drift: "
            "look for extreme values in the data"
        )
    as_large = int((distance[1:] >= distance[0] * (1.0 - 1e-9) - 1e-12).sum())
    parts = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    beyond = max(1, int(significance * (1 + SHUFFLES)))  # if so many are as large, it is chance
    return Drift(
        change_ratio=Quartiles(*torch.quantile(log_ratio[:, 0].exp(), parts).tolist()),
        distance=float(distance[0]),
        by_chance=float(distance[1:].topk(beyond).values[-1]),
        p_value=(1 + as_large) / (1 + SHUFFLES),
        significance=significance,
        anchors=len(first),
        reference=len(reference),
        new=count,
        growth_ratio=growth_ratio,
    )


def forecast(task: Task, strategy: Strategy, *, without_gradients: int = 0) -> float | None:
    """Seconds that an update takes at most (patience may end it earlier); None if it cannot.

    The task has a copy of the encoder, which is trained for about a second after its first step:
    that one is slow, since caches and the allocator are cold. Forward passes ``without_gradients``
    come besides, as evaluation needs them.
    """
    passes = 2 * strategy.epoch_items(task.increment) * strategy.epochs(task.increment)
    if passes == 0:
        return 0.0
    passes += without_gradients // 3  # backward takes twice what forward does
    steps: list[tuple[float, int]] = []  # seconds and forward passes after each
    task.stepped = task.encoder  # compiling would take longer than the trial

    def note(progress: Progress) -> bool:
        if progress.finished is None:
            steps.append((progress.seconds, progress.forward_passes))
        tried = steps[-1][0] - steps[0][0]
        return tried < TRIAL or (len(steps) <= FEWEST_STEPS and tried < LONGEST_TRIAL)

    try:
        run = train(task, strategy, callbacks=[note])
    except (TrainingDiverged, ValueError):
        return None
    # Where others use the machine too, most steps do not wait and a few wait long: the mean tells.
    if len(steps) == 1:
        return passes * run.seconds / run.forward_passes
    (begun, before), (ended, after) = steps[0], steps[-1]
    return passes * (ended - begun) / (after - before)
