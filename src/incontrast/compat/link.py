"""Maps between the spaces of two versions, both ways, with what to expect of them.

``chain`` finds the way from one space to another over several links. ``pack`` turns links into
tensors and JSON, which are saved with a learner.
"""

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

FEWEST = 60  # pairs
HELD_OUT, MOST_HELD_OUT = 1 / 3, 1000  # share of the pairs, and its limit
FIELDS = ("old", "new", "pairs", "encoder")  # of a link, which JSON has unchanged
TOLERANCE = 0.002  # of recall, within which the fastest map is as good as the best
CHANCE = 0.25  # standard errors of a difference in recall, likewise
SLOW: Kind = "residual"  # ten times slower than others: only for stored vectors, not for queries,
WORTH = 0.02  # and only if its recall is higher by more than this


class NoAdapter(ValueError):
    """There is no map between two spaces."""


@dataclass(frozen=True, eq=False)
class Link:
    """Maps between the spaces of two versions, in both directions.

    Args:
        old: The number of the old space.
        new: The number of the new one.
        to_old: Maps new queries for vectors that are stored: the index stays unchanged.
        to_new: Maps stored vectors for new queries, without the encoder.
        tried: The quality of the best map of each kind on held-out pairs, for each direction.
        pairs: How many items it was fitted on.
        encoder: The hash of the old version's encoder, if known.
    """

    old: int
    new: int
    to_old: Adapter
    to_new: Adapter
    tried: dict[Direction, dict[Kind, Quality]]
    pairs: int
    encoder: str | None = None

    def expected(self, direction: Direction) -> Quality:
        """The quality of the chosen map in a search among the held-out items, 1,000 at most.

        A search in a larger index finds less: see ``incontrast reembed --plan``.
        """
        return self.tried[direction][self.adapter(direction).kind]

    def adapter(self, direction: Direction) -> Adapter:
        return self.to_old if direction == "to_old" else self.to_new


class _Trial(NamedTuple):
    """A map fitted to two thirds of the pairs, and its quality on the others."""

    kind: Kind
    place: int  # among the candidates of its kind
    cost: int
    quality: Quality
    recall: Tensor  # (held out,)


def check_pairs(count: int) -> None:
    """Refuse too few items to fit a map to."""
    if count < FEWEST:
        raise NoAdapter(
            f"a map between versions is fitted on at least {FEWEST} items that both have "
            f"embedded, got {count}: give the learner a larger memory"
        )


def fit_link(before: Tensor, after: Tensor, *, old: int, new: int, seed: int) -> Link:
    """Fit maps of every kind in both directions to two thirds of the pairs, and choose the best.

    The fastest map is chosen whose recall on the other pairs is the highest, within 0.002 or a
    quarter of the standard error of the difference. Residual maps, which take ten times as long,
    must be better by 0.02. The chosen map is fitted again to all pairs.

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
        raise ValueError(f"each item has two embeddings, got {len(before)} old, {len(after)} new")
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
    for direction in tried:
        to_old = direction == "to_old"
        source, target = (after, before) if to_old else (before, after)
        pairs, goal = Pairs(source[rest], target[rest]), target[held]
        trials: list[_Trial] = []
        for kind in KINDS:
            if kind == SLOW and to_old:
                continue
            fitted = candidates(kind, pairs, generator(seed, "adapter", old, new))
            for place, adapter in enumerate(fitted):
                mapped = adapter.rounded()(source[held])
                queries, corpus = (mapped, goal) if to_old else (goal, mapped)
                quality, recall = measured(queries, corpus, ranked)
                trials.append(_Trial(kind, place, adapter.cost, quality, recall))
        qualities = tried[direction]
        for trial in trials:
            if trial.kind not in qualities or trial.quality.recall > qualities[trial.kind].recall:
                qualities[trial.kind] = trial.quality
        best = _best(trials)
        qualities[best.kind] = best.quality
        again = candidates(best.kind, Pairs(source, target), generator(seed, "adapter", old, new))
        adapters[direction] = next(islice(again, best.place, None)).rounded()
    return Link(old, new, adapters["to_old"], adapters["to_new"], tried, len(before))


def _best(trials: list[_Trial]) -> _Trial:
    """The fastest one of those that are as good as the best."""
    slow = torch.tensor([trial.kind == SLOW for trial in trials])
    worth = torch.stack([trial.recall for trial in trials]) - WORTH * slow[:, None]
    behind = worth[worth.mean(dim=1).argmax()] - worth
    error = behind.std(dim=1) / behind.shape[1] ** 0.5
    good = behind.mean(dim=1) <= (CHANCE * error).clamp(min=TOLERANCE)
    return min(compress(trials, good.tolist()), key=lambda trial: trial.cost)


def unchanged(old: int, new: int) -> Link:
    """The link between versions with the same weights."""
    same = Quality(1.0, (1.0, 1.0), 1.0, (1.0, 1.0), 1.0)
    nothing = Adapter("none", {})
    return Link(old, new, nothing, nothing, {"to_old": {"none": same}, "to_new": {"none": same}}, 0)


def renumbered(links: tuple[Link, ...], new: int, encoder: str) -> tuple[Link, ...]:
    """The links of a new version; the first gets its number and the hash of the old encoder."""
    return (*(replace(link, new=new, encoder=encoder) for link in links[:1]), *links[1:])


def pack(links: Iterable[Link]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by name, in half precision where that changes nothing, and JSON."""
    tensors, records = {}, []
    for link in links:
        kinds, tried = {}, {}
        for direction, qualities in link.tried.items():
            adapter = link.adapter(direction)
            kinds[direction] = adapter.kind
            tried[direction] = {kind: quality._asdict() for kind, quality in qualities.items()}
            for name, tensor in adapter.tensors.items():
                half = tensor.half()
                same = torch.equal(half.float(), tensor)
                tensors[f"{link.old}-{link.new}.{direction}.{name}"] = half if same else tensor
        fields = {name: getattr(link, name) for name in FIELDS}
        records.append({**fields, "kinds": kinds, "tried": tried})
    return tensors, records


def unpack(tensors: dict[str, Tensor], records: list[dict[str, Any]]) -> tuple[Link, ...]:
    """The links that ``pack`` packed, up to the first of a former release that is not readable."""
    links: list[Link] = []
    for record in records:
        fields: dict[str, Any] = {name: record[name] for name in FIELDS}
        for direction, kind in record["kinds"].items():
            prefix = f"{record['old']}-{record['new']}.{direction}."
            parts = {
                name.removeprefix(prefix): tensor.float()
                for name, tensor in tensors.items()
                if name.startswith(prefix)
            }
            if not PARTS.issuperset(parts) or ("down" in parts) != ("forms" in parts):
                former = "maps to version %d and before are of a former kind: updates fit new ones"
                log.warning(former, record["old"])
                return tuple(links)
            fields[direction] = Adapter(kind, parts)
        fields["tried"] = {
            direction: {kind: Quality.from_json(figures) for kind, figures in qualities.items()}
            for direction, qualities in record["tried"].items()
        }
        links.append(Link(**fields))
    return tuple(links)


class Chain(NamedTuple):
    """Maps applied one after the other.

    Attributes:
        steps: None if both spaces are the same.
        recall: Expected after all steps: the product, since what one loses is lost.
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
        NoAdapter: There is no way.
    """
    edges: dict[int, list[tuple[int, Link, Direction]]] = {}
    for link in links:
        edges.setdefault(link.new, []).append((link.old, link, "to_old"))
        edges.setdefault(link.old, []).append((link.new, link, "to_new"))
    reached = {start: Chain((), 1.0, 1.0)}
    waiting = deque([start])
    while waiting and goal not in reached:
        space = waiting.popleft()
        steps, recall, precision = reached[space]
        for other, link, direction in edges.get(space, []):
            if other not in reached:
                step, quality = link.adapter(direction), link.expected(direction)
                reached[other] = Chain(
                    (*steps, step), recall * quality.recall, precision * quality.precision
                )
                waiting.append(other)
    if goal not in reached:
        spaces = ", ".join(map(str, sorted(reached)))
        raise NoAdapter(
            f"there is no map from the space of version {start} to that of version {goal}: maps "
            f"lead to {spaces} (an update fits one if there are {FEWEST} items to fit it on)"
        )
    return reached[goal]
