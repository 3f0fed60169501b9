"""What links the spaces of two versions: the best adapter each way, and what to expect of it.

``chain`` is the way from one space to another over several links; ``pack`` turns
links into tensors and JSON, to be saved with a learner.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from incontrast.compat.adapter import KINDS, PARTS, Adapter, Kind
from incontrast.compat.fitting import Pairs, candidates
from incontrast.compat.quality import Quality, measured, nearest, relevant
from incontrast.randomness import generator

log = logging.getLogger(__name__)

Direction = Literal["to_old", "to_new"]

FEWEST = 60  # pairs at least
HELD_OUT = 1 / 3  # of the pairs, but no more than
MOST_HELD_OUT = 1000
PLAIN = ("old", "new", "pairs", "encoder")  # fields of a link that JSON has as they are
TOLERANCE = 0.002  # of recall, within which the fastest adapter is as good as the best
DEAR: Kind = "residual"  # takes ten times as long as others: only for vectors, not for queries,
WORTH = 0.02  # and only where its recall is higher by more than this
CHANCE = 0.25  # standard errors of the difference, likewise


class NoAdapter(ValueError):
    """There is no map between two spaces."""


@dataclass(frozen=True, eq=False)
class Link:
    """Both ways between the spaces of two versions.

    Args:
        old: The number of the old space.
        new: The number of the new one.
        to_old: Takes a new query to vectors that are stored: the index stays as it is.
        to_new: Takes stored vectors to new queries, without the encoder.
        tried: What each kind of adapter achieved on held-out pairs, each way.
        pairs: Items that both versions have embedded, to fit it.
        encoder: The hash of the old version's encoder, where there is one.
    """

    old: int
    new: int
    to_old: Adapter
    to_new: Adapter
    tried: dict[Direction, dict[Kind, Quality]]
    pairs: int
    encoder: str | None = None

    def expected(self, direction: Direction) -> Quality:
        """Of the adapter that was chosen, among the held-out items alone: 1,000 at most.

        The ten nearest are closer in a larger index, and fewer of them are found; what
        ``incontrast reembed --plan`` expects is scaled to its size.
        """
        return self.tried[direction][self.adapter(direction).kind]

    def adapter(self, direction: Direction) -> Adapter:
        return self.to_old if direction == "to_old" else self.to_new


def check_pairs(count: int) -> None:
    """Refuse too few items to fit a map on."""
    if count < FEWEST:
        raise NoAdapter(
            f"a map between versions is fitted on at least {FEWEST} items that both have "
            f"embedded, got {count}: give the learner a larger memory"
        )


def fit_link(before: Tensor, after: Tensor, *, old: int, new: int, seed: int) -> Link:
    """Fit every kind of adapter both ways on two thirds of the pairs, and keep the best.

    Best is the fastest of those whose recall on the other pairs is highest, but for 0.002 or a
    quarter of the standard error of the difference; a kind that takes ten times as long must be
    0.02 better than the others. What is kept is fitted once more, on all pairs.

    Args:
        before: (n, d) embeddings of n items by the old version.
        after: (n, e) embeddings of the same items by the new one.
        old: The number of the old space.
        new: The number of the new space.
        seed: Determines the split and what is drawn.

    Raises:
        NoAdapter: There are too few pairs, or they are not finite.
    """
    if len(before) != len(after):
        raise ValueError(
            f"pairs are two embeddings of each item, got {len(before)} old and {len(after)} new"
        )
    check_pairs(len(before))
    if not (bool(before.isfinite().all()) and bool(after.isfinite().all())):
        raise NoAdapter("embeddings are not finite, so no map can be fitted to them")
    before, after = normalize(before.float()), normalize(after.float())
    order = torch.randperm(len(before), generator=generator(seed, "adapter split", old, new))
    held = order[: min(int(HELD_OUT * len(order)), MOST_HELD_OUT)]
    rest = order[len(held) :]
    ranked = nearest(after[held], after[held], relevant(len(held)))
    adapters: dict[Direction, Adapter] = {}
    tried: dict[Direction, dict[Kind, Quality]] = {"to_old": {}, "to_new": {}}
    for direction, found in tried.items():
        source, target = (after, before) if direction == "to_old" else (before, after)
        fitted: list[tuple[Quality, int, Kind, int]] = []
        recalls: list[Tensor] = []  # (held out,) of each
        pairs = Pairs(source[rest], target[rest])
        for kind in (kind for kind in KINDS if direction == "to_new" or kind != DEAR):
            made = candidates(kind, pairs, _draws(seed, old, new))
            for place, adapter in enumerate(each.rounded() for each in made):
                mapped, wanted = adapter(source[held]), target[held]
                queries, corpus = (mapped, wanted) if direction == "to_old" else (wanted, mapped)
                cosine = (mapped * wanted).sum(1).mean().item()
                quality, recall = measured(queries, corpus, ranked)
                fitted.append((quality._replace(cosine=cosine), adapter.cost, kind, place))
                recalls.append(recall)
        dear = torch.tensor([kind == DEAR for _, _, kind, _ in fitted])
        worth = torch.stack(recalls) - WORTH * dear[:, None]
        behind = worth[worth.mean(dim=1).argmax()] - worth
        chance = behind.std(dim=1) / len(held) ** 0.5
        good = (behind.mean(dim=1) <= (CHANCE * chance).clamp(min=TOLERANCE)).tolist()
        chosen, _, kind, place = min(compress(fitted, good), key=lambda each: each[1])
        for quality, _, other, _ in fitted:
            if other not in found or quality.recall > found[other].recall:
                found[other] = quality
        found[kind] = chosen
        again = candidates(kind, Pairs(source, target), _draws(seed, old, new))
        adapters[direction] = next(islice(again, place, None)).rounded()
    return Link(old, new, adapters["to_old"], adapters["to_new"], tried, len(before))


def unchanged(old: int, new: int) -> Link:
    """Between versions with the same weights."""
    same = Quality(1.0, (1.0, 1.0), 1.0, (1.0, 1.0), 1.0)
    nothing = Adapter("none", {})
    return Link(old, new, nothing, nothing, {"to_old": {"none": same}, "to_new": {"none": same}}, 0)


def renumbered(links: tuple[Link, ...], new: int, encoder: str) -> tuple[Link, ...]:
    """The links of a new version, the first of which gets its number and the old encoder's hash."""
    return (*(replace(link, new=new, encoder=encoder) for link in links[:1]), *links[1:])


def _draws(seed: int, old: int, new: int) -> torch.Generator:
    return generator(seed, "adapter", old, new)


def pack(links: Iterable[Link]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by name, in half precision where that loses nothing, and JSON."""
    tensors, about = {}, []
    for link in links:
        kinds, tried = {}, {}
        for direction, found in link.tried.items():
            adapter = link.adapter(direction)
            kinds[direction] = adapter.kind
            tried[direction] = {kind: quality._asdict() for kind, quality in found.items()}
            for name, tensor in adapter.tensors.items():
                half = tensor.half()
                same = torch.equal(half.float(), tensor)
                tensors[f"{link.old}-{link.new}.{direction}.{name}"] = half if same else tensor
        plain = {name: getattr(link, name) for name in PLAIN}
        about.append({**plain, "kinds": kinds, "tried": tried})
    return tensors, about


def unpack(tensors: dict[str, Tensor], about: list[dict[str, Any]]) -> tuple[Link, ...]:
    """What ``pack`` packed."""
    links: list[Link] = []
    for entry in about:
        adapters: dict[str, Any] = {}
        for direction, kind in entry["kinds"].items():
            prefix = f"{entry['old']}-{entry['new']}.{direction}."
            own = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            parts = {name.removeprefix(prefix): tensor.float() for name, tensor in own.items()}
            adapters[direction] = Adapter(kind, parts)
            # Unknown, or of an earlier release; and those behind it lead nowhere without it.
            if not PARTS.issuperset(parts) or ("down" in parts) != ("forms" in parts):
                log.warning(
                    "maps to version %d and before are of a kind that is no longer known; the next "
                    "update fits a new one",
                    entry["old"],
                )
                return tuple(links)
        tried: Any = {
            direction: {kind: Quality.from_json(figures) for kind, figures in found.items()}
            for direction, found in entry["tried"].items()
        }
        links.append(Link(**{name: entry[name] for name in PLAIN}, **adapters, tried=tried))
    return tuple(links)


class Chain(NamedTuple):
    """Adapters one after the other, from one space to another.

    Attributes:
        steps: None of them if the spaces are the same.
        recall: Expected after all of them: the product, since what one loses is lost.
        precision: Likewise.
    """

    steps: tuple[Adapter, ...]
    recall: float
    precision: float

    def __call__(self, vectors: Tensor | NDArray[Any]) -> Tensor:
        vectors = torch.as_tensor(vectors)
        for step in self.steps:
            vectors = step(vectors)
        return vectors


def chain(links: Iterable[Link], start: int, goal: int) -> Chain:
    """The shortest way from one space to another.

    Raises:
        NoAdapter: None leads there.
    """
    steps: dict[int, list[tuple[int, Link, Direction]]] = {}
    for link in links:
        steps.setdefault(link.new, []).append((link.old, link, "to_old"))
        steps.setdefault(link.old, []).append((link.new, link, "to_new"))
    found = {start: Chain((), 1.0, 1.0)}
    waiting = deque([start])
    while waiting and goal not in found:
        here = waiting.popleft()
        for place, link, direction in steps.get(here, []):
            if place not in found:
                so_far, expected = found[here], link.expected(direction)
                found[place] = Chain(
                    (*so_far.steps, link.adapter(direction)),
                    so_far.recall * expected.recall,
                    so_far.precision * expected.precision,
                )
                waiting.append(place)
    if goal not in found:
        there = ", ".join(map(str, sorted(found)))
        raise NoAdapter(
            f"there is no map from the space of version {start} to that of version {goal}: "
            f"maps lead to {there} (an update fits one if there are {FEWEST} items to fit it on)"
        )
    return found[goal]
