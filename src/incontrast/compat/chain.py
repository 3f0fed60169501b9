"""The way from one space to another, over the maps that there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from incontrast.compat.adapter import Adapter
from incontrast.compat.link import FEWEST, Direction, Link, NoAdapter


class Chain(NamedTuple):
    """Adapters one after the other, from one space to another.

    Args:
        steps: None of them if the spaces are the same.
        recall: Expected after all of them: the product, since what one loses is lost.
        precision: Likewise.
    """

    steps: tuple[Adapter, ...]
    recall: float
    precision: float

    def __call__(self, vectors: Tensor) -> Tensor:
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
