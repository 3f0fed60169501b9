"""Batches of views: what a task gives to the loop."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from incontrast import Increment, Objective, Task, TensorCollection, Vectors
from incontrast.memory.memory import StoredCollection
from incontrast.memory.store import Store
from incontrast.training.engine import Engine, two_views
from incontrast.training.fabric import share_of
from incontrast.training.task import BURST, BatchIndices, joint_epoch


class Watched(TensorCollection):
    """Remembers in which threads, and how often, items were taken."""

    def __init__(self, data: Tensor, background: bool) -> None:
        super().__init__(data)
        self.background = background
        self.threads: list[str] = []
        self.third = threading.Event()

    def take(self, indices: Tensor) -> Tensor:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) == 3:
            self.third.set()
        return super().take(indices)


def task_of(items: Any) -> Task:
    held = items.in_memory() if isinstance(items, StoredCollection) else items
    domain = Vectors(held.data.shape[1], hidden=16, out=8).fit_statistics(held)
    increment = Increment(None, items, 0)
    return Task(
        domain.encoder(), domain, increment, objective=Objective(), engine=Engine("cpu"), seed=0
    )


def test_slow_items_are_read_ahead_in_a_thread(blobs) -> None:
    items = Watched(blobs(64), background=True)
    task = task_of(items)
    batches = task.view_batches(joint_epoch(task.increment, 8, task.draws))
    next(batches)
    assert items.third.wait(timeout=30)  # the next ones come without anybody asking
    assert all(name.startswith("incontrast-read") for name in items.threads)
    assert len(list(batches)) == 7


@pytest.mark.parametrize(("size", "read"), [(8, BURST), (2**15, 1)])
def test_items_in_memory_are_read_when_they_are_needed(blobs, size: int, read: int) -> None:
    """Small batches in bursts, a large one alone."""
    items = Watched(blobs(8).repeat(size, 1), background=False)
    task = task_of(items)
    next(task.view_batches(joint_epoch(task.increment, 8 if size == 8 else size, task.draws)))
    assert items.threads == ["MainThread"] * read


@pytest.mark.parametrize(("width", "read"), [(8, BURST), (2**15, 1)])
def test_items_of_a_store_are_read_when_they_are_needed(
    tmp_path: Path, monkeypatch, width: int, read: int
) -> None:
    """As large as they are once they are read."""
    domain = Vectors(width, hidden=16, out=8)
    contents = domain.pack(domain.collect(torch.rand(BURST * 8, width)), torch.arange(BURST * 8))
    sizes = torch.tensor([len(content) for content in contents])
    with closing(Store.create(tmp_path / "items")) as store:
        store.append(0, contents, np.zeros(len(contents)))
        task = task_of(StoredCollection(store, domain, torch.arange(len(contents)), sizes))
        reads: list[int] = []
        taken = StoredCollection.take
        monkeypatch.setattr(
            StoredCollection, "take", lambda self, at: (reads.append(len(at)), taken(self, at))[1]
        )
        next(task.view_batches(joint_epoch(task.increment, 8, task.draws)))
    assert reads == [8] * read


@pytest.mark.parametrize("background", [False, True])
def test_views_do_not_depend_on_how_items_are_read(blobs, background: bool) -> None:
    task, expected = (task_of(Watched(blobs(64), way)) for way in (background, False))
    for ours, theirs in zip(
        *(of.view_batches(joint_epoch(of.increment, 8, of.draws)) for of in (task, expected)),
        strict=True,
    ):
        assert torch.equal(ours.views, theirs.views)


def test_old_items_come_first(blobs) -> None:
    old, new = blobs(8), blobs(8, seed=1)
    domain = Vectors(8, drop=0.0, noise=0.0, mean=(0.0,) * 8, std=(1.0,) * 8)
    increment = Increment(TensorCollection(old), TensorCollection(new), 8)
    task = Task(
        domain.encoder(), domain, increment, objective=Objective(), engine=Engine("cpu"), seed=0
    )
    indices = BatchIndices(torch.tensor([3, 1]), torch.tensor([5, 0, 2]))
    (batch,) = task.view_batches([indices])
    expected = domain.prepare(torch.cat([old[[3, 1]], new[[5, 0, 2]]]))
    assert batch.old == 2
    torch.testing.assert_close(batch.views, torch.cat([expected, expected]))


def test_what_is_made_once_is_kept(blobs) -> None:
    task = task_of(Watched(blobs(8), background=False))
    first = task.once("thing", object)
    assert task.once("thing", object) is first
    assert task.once("another", object) is not first


class Shared(Engine):
    """One of several processes, which only takes its share."""

    def __init__(self, rank: int, processes: int) -> None:
        super().__init__("cpu")
        self.rank, self.processes = rank, processes

    def share(self, count: int) -> range:
        return share_of(count, self.rank, self.processes)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_processes_divide_a_batch_between_them(blobs, processes: int) -> None:
    old, new = TensorCollection(blobs(8)), TensorCollection(blobs(8, seed=1))
    domain = Vectors(8).fit_statistics(old)
    sources = [(old, torch.tensor([5, 0])), (new, torch.tensor([7, 2, 1]))]
    alone = two_views(domain, sources, 3, Engine("cpu"))
    parts = [two_views(domain, sources, 3, Shared(rank, processes)) for rank in range(processes)]
    sides = zip(*(part.chunk(2) for part in parts), strict=True)
    assert torch.equal(torch.cat([torch.cat(side) for side in sides]), alone)


def test_views_that_lose_items_are_noticed_at_any_step(blobs) -> None:
    items = TensorCollection(blobs(8))
    domain = Vectors(8, views=lambda rows, generator: rows[1:]).fit_statistics(items)
    with pytest.raises(ValueError, match="8 went in, 14 came out of both views together"):
        two_views(domain, [(items, torch.arange(8))], 0, Engine("cpu"))
