"""Whether new data differ from old data in the encoder's embeddings, with a p-value; no labels.

The change ratio r of an old item (Def. 4) compares new items with old ones as its negatives; r = 1
means that they are the same to it. How far r is from 1 by chance follows from a permutation test:
if nothing has changed, new items and the old reference items are exchangeable, so the statistic is
computed again for random groups of the same sizes.

Embeddings are of views, as in training. But an encoder that was trained elsewhere may hardly
recognise an item in views that it does not know. Then items are embedded without views. Only old
items decide about this, so the test stays exact.
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
from incontrast.text import counted, duration
from incontrast.training.engine import Engine, embed, embed_views
from incontrast.training.task import Increment

Advice = Literal["nothing to do", "update", "consider retraining"]

ANCHORS, REFERENCE = 512, 1024  # most old items that serve as anchors, and that stand for X
COMPARED = 1000  # most new items
FEWEST = 30  # old items
RECOGNISED = 0.9  # share of other items that must be less similar to a view than the item's other
SHUFFLES = 999
MOSTLY_NEW = 0.5  # growth ratio from which an update has little to start from
FEW = 30  # new items below which only large differences show

REASONS: dict[Advice, str] = {
    "nothing to do": "Nothing to do: the new items look like the old ones",
    "update": "Update: the new items differ from the old ones",
    "consider retraining": (
        "Consider retraining: the new items differ from the old ones and are {:.0%} of all"
    ),
}


@dataclass(frozen=True)
class Drift:
    """How new data look to an encoder."""

    change_ratio: Quartiles  # r of old items, with the new items as ΔX
    distance: float  # the statistic: root mean square of log r; 0 is no change
    by_chance: float  # the largest distance that is not drift at this significance
    p_value: float  # probability of such a distance by chance
    significance: float  # accepted share of false alarms
    anchors: int  # old items that have an r
    reference: int  # other old items, which stand for X
    new: int  # new items that were compared
    growth_ratio: float  # α after an update with all new items
    seconds: float | None = None  # an update should take here, at most; None if not needed or tried
    as_they_are: bool = False  # whether items were compared without views
    differences: dict[str, Any] = field(default_factory=dict)  # see ``Domain.differences``

    @property
    def drifted(self) -> bool:
        """Whether the distance is significant."""
        return self.p_value <= self.significance

    @property
    def advice(self) -> Advice:
        if not self.drifted:
            return "nothing to do"
        return "consider retraining" if self.growth_ratio >= MOSTLY_NEW else "update"

    def __str__(self) -> str:
        ratio = self.change_ratio
        sentences = [
            f"{REASONS[self.advice].format(self.growth_ratio)} "
            f"(change ratio {ratio.median:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f}), in all "
            f"{self.distance:.3f} away from 1 where chance gives up to {self.by_chance:.3f}, "
            f"p = {self.p_value:.3f}; from {self.new} new, {self.reference} old items and "
            f"{self.anchors} others as anchors)."
        ]
        if self.as_they_are:
            sentences.append(
                "Items were compared as they are: in views of this domain the encoder hardly "
                "recognises them. If it was trained with others, give the domain those."
            )
        if self.new < FEW:
            sentences.append(f"With {counted(self.new, 'new item')} only large differences show.")
        if self.seconds is not None:
            sentences.append(f"An update should take about {duration(self.seconds)}.")
        if "summary" in self.differences:
            sentences.append(self.differences["summary"])
        return " ".join(sentences)


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
    """Sample items, embed views of them, and compare."""
    old, new = increment.old, increment.new
    if old is None or len(old) < FEWEST:
        raise ValueError(
            f"drift is measured against at least {FEWEST} old items, memory holds "
            f"{increment.stored}: give the learner a larger memory"
        )
    check_number("(0, 1)", significance=significance)
    draws, views = generator(seed, "drift"), generator(seed, "drift views")
    old_places = torch.randperm(len(old), generator=draws)[: ANCHORS + REFERENCE]
    new_places = torch.randperm(len(new), generator=draws)[:COMPARED]
    first, second = embed_views(encoder, domain, old, old_places, views, engine=engine)
    anchors = min(ANCHORS, len(old_places) // 3)
    recognised = _recognised(first[:anchors], second[:anchors])
    as_they_are = engine.broadcast_float(recognised) < RECOGNISED
    if as_they_are:
        first = second = embed(encoder, domain, old.select(old_places), engine=engine)
        compared = embed(encoder, domain, new.select(new_places), engine=engine)
    else:
        _, compared = embed_views(encoder, domain, new, new_places, views, engine=engine)
    found = drift(
        (first[:anchors], second[:anchors]),
        second[anchors:],
        compared,
        objective=objective,
        growth_ratio=increment.growth_ratio,
        draws=draws,
        significance=significance,
    )
    differences = domain.differences(old.take(old_places), new.take(new_places))
    return replace(found, as_they_are=as_they_are, differences=differences)


def _recognised(first: Tensor, second: Tensor) -> float:
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
        anchors: (a, d) and (a, d) embeddings of two views of old items
        reference, new: (o, d), (n, d) embeddings of a view of other old items, of the new items
    """
    first, second = (normalize(views.double()) for views in anchors)
    pool = normalize(torch.cat([new, reference]).double())
    count, total = len(new), len(pool)

    def similar(cosine: Tensor) -> Tensor:
        """f, divided by its largest possible value, which cancels out in a ratio."""
        return torch.exp((cosine - 1.0) / objective.temperature)

    positive = similar((first * second).sum(dim=1))[:, None]  # (a, 1)
    negatives = similar(first @ pool.T)  # (a, n + o)
    # Which items are new: column 0 as observed, the others as shuffled.
    member = torch.zeros(total, 1 + SHUFFLES, dtype=torch.float64)
    member[:count, 0] = 1.0
    order = torch.rand(total, SHUFFLES, generator=draws).argsort(dim=0)[:count]
    member[:, 1:].scatter_(0, order, 1.0)
    inside = negatives @ member  # (a, 1 + shuffles)
    outside = (negatives.sum(dim=1, keepdim=True) - inside).clamp(min=0.0)
    k = objective.negatives
    log_ratio = torch.log(positive + k * inside / count) - torch.log(
        positive + k * outside / (total - count)
    )
    distance = log_ratio.square().mean(dim=0).sqrt()
    if not bool(distance.isfinite().all()):
        raise ValueError("embeddings are not finite: look for extreme values in the data")
    # Slightly less than equal counts as equal: sums in another order are rounded differently.
    as_large = int((distance[1:] >= distance[0] * (1.0 - 1e-9) - 1e-12).sum())
    rank = max(1, int(significance * (1 + SHUFFLES)))
    parts = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return Drift(
        change_ratio=Quartiles(*torch.quantile(log_ratio[:, 0].exp(), parts).tolist()),
        distance=float(distance[0]),
        by_chance=float(distance[1:].topk(rank).values[-1]),
        p_value=(1 + as_large) / (1 + SHUFFLES),
        significance=significance,
        anchors=len(first),
        reference=len(reference),
        new=count,
        growth_ratio=growth_ratio,
    )
