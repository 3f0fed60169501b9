"""Old items that new ones are easily mistaken for, drawn more often than others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from incontrast.bounds import check_number, check_whole
from incontrast.domains.base import Collection
from incontrast.names import NamedArguments
from incontrast.training.task import Task

BATCH = 64  # items that are embedded at a time
LEAST = 1e-9  # chance of an item: there must be enough of them to draw


@dataclass(frozen=True, kw_only=True)
class HardNegatives(NamedArguments):
    """How many of a step's old items are drawn for being near its new ones.

    Most old items are far from any new one and tell it nothing. Those that are near tell it where
    not to be (Robinson et al. 2021), and are the ones that an update moves most. Nearness is the
    cosine between embeddings by the encoder of before. The share falls to none before the run ends:
    its last steps draw all old items alike, as retraining does.

    Args:
        share: Of the old items of a step, at first.
        until: The part of the run in which it falls to none, linearly.
        items: Old and new items that are compared, each with each, at most so many of both. Old
            items are drawn among these; other new items go by the mean of those compared.
        spread: Temperature of the softmax over old items: a low one draws the very nearest alone.
    """

    share: float = 0.75
    until: float = 0.9
    items: int = 512
    spread: float = 0.08

    def __post_init__(self) -> None:
        check_number("(0, 1]", "it is a share of the old items of a step", share=self.share)
        check_number("(0, 1]", "it is a part of the run", until=self.until)
        check_whole(2, items=self.items)
        check_number("(0, inf)", spread=self.spread)

    def left(self, done: float) -> float:
        """The share when this part of the run is done.

        >>> tuple(round(HardNegatives().left(done), 3) for done in (0.0, 0.3, 0.9, 1.0))
        (0.75, 0.5, 0.0, 0.0)
        """
        return self.share * max(1.0 - done / self.until, 0.0)

    def sampler(self, task: Task) -> HardSampler:
        """Compare old and new items; all processes get the first one's chances."""
        old, new = task.increment.old, task.increment.new
        assert old is not None
        draws = task.generator("hard negatives")
        pool, some = (
            torch.randperm(len(items), generator=draws)[: self.items] for items in (old, new)
        )
        cosines = _embedded(task, new, some) @ _embedded(task, old, pool).T
        chances = (cosines / self.spread).softmax(dim=1)
        # Rows of the new items that were compared, then one for all others.
        chances = torch.cat([chances, chances.mean(dim=0, keepdim=True)])
        chances = chances.nan_to_num(0.0).clamp_min(LEAST)  # NaN: the first step will say so
        rows = torch.full((len(new),), len(some))
        rows[some] = torch.arange(len(some))
        return HardSampler(pool, task.engine.broadcast(chances), rows, draws)


@dataclass(frozen=True, eq=False)
class HardSampler:
    """Draws old items that are near given new ones."""

    pool: Tensor  # (p,) places of old items
    chances: Tensor  # (rows, p) how likely each of them is
    rows: Tensor  # (ΔN,) where the chances of each new item are
    generator: Generator

    def draw(self, size: int, new: Tensor) -> Tensor:
        """``size`` distinct old items, or all of the pool; any first so many are such a draw too.

        >>> sampler = HardSampler(
        ...     torch.tensor([5, 6, 7]),
        ...     torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        ...     torch.tensor([0, 1]),
        ...     Generator().manual_seed(0),
        ... )
        >>> sampler.draw(1, torch.tensor([1])).tolist()
        [7]
        """
        chances = self.chances[self.rows[new]].mean(dim=0)
        chosen = torch.multinomial(chances, min(size, len(self.pool)), generator=self.generator)
        return self.pool[chosen]


def _embedded(task: Task, items: Collection, places: Tensor) -> Tensor:
    """(n, d) unit vectors of these items, by the encoder of before."""
    found = [task.embed_before(items, part) for part in torch.split(places, BATCH)]
    return normalize(torch.cat(found).cpu())
