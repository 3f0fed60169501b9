"""Old items that are near the new ones are drawn more often, and all alike at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import incontrast as ic
from incontrast.training.engine import Engine

NEAR, FAR = torch.tensor([1.0, 0.1]), torch.tensor([-0.1, 1.0])


def task_with(near: int, far: int, new: Tensor, before: nn.Module | None = None) -> ic.Task:
    """Old items of two kinds, the first of which is where the new ones are."""
    domain = ic.Vectors(2, mean=(0.0, 0.0), std=(1.0, 1.0))
    jitter = torch.linspace(0.9, 1.1, near + far)[:, None]
    rows = torch.cat([NEAR.expand(near, 2), FAR.expand(far, 2)]) * jitter
    increment = ic.Increment(domain.collect(rows), domain.collect(new), near + far)
    return ic.Task(
        nn.Identity(),
        domain,
        increment,
        objective=ic.Objective(),
        engine=Engine("cpu"),
        seed=0,
        before=before or nn.Identity(),
    )


def begin(task: ic.Task, begun: float, epoch_part: float) -> ic.Task:
    task.begun, task.epoch_part = begun, epoch_part
    return task


def near_share(strategy: ic.ICL, begun: float) -> float:
    """Of the old items of an epoch that begins when this part of the run is done."""
    task = begin(task_with(100, 300, NEAR.expand(40, 2)), begun, 0.0)
    drawn = [batch.old for batch in strategy.sample(task)]
    assert all(len(batch.unique()) == len(batch) == 48 for batch in drawn)
    return float((torch.cat(drawn) < 100).float().mean())


def test_near_ones_are_drawn_more_often_at_first_and_all_alike_at_the_end() -> None:
    strategy = ic.ICL(max_epochs=1000)
    shares = [near_share(strategy, begun) for begun in (0.0, 0.45, 0.9, 1.0)]
    assert shares[0] == pytest.approx(0.75 + 0.25 * 0.25, abs=0.06)
    assert shares[1] == pytest.approx(0.375 + 0.625 * 0.25, abs=0.06)
    assert shares[2] == shares[3] == pytest.approx(0.25, abs=0.06)
    assert near_share(ic.ICL(hard_negatives=None), 0.0) == pytest.approx(0.25, abs=0.06)


def test_the_share_falls_within_a_single_epoch() -> None:
    task = begin(task_with(100, 300, NEAR.expand(40, 2)), 0.0, 1.0)
    nears = [int((batch.old < 100).sum()) for batch in ic.ICL().sample(task)]
    assert len(nears) == 12
    assert nears[0] >= 36
    assert max(nears[-2:]) <= 24


@pytest.mark.parametrize("budget", [None, ic.Budget(forward_passes=2_000)])
def test_an_epoch_knows_how_much_of_the_run_it_is(
    blobs, monkeypatch: pytest.MonkeyPatch, budget: ic.Budget | None
) -> None:
    """By the run's epochs, or by a budget that ends it sooner."""
    begun: list[tuple[float, float]] = []
    sample = ic.ICL.sample

    def watched(self: ic.ICL, task: ic.Task) -> Iterator[ic.BatchIndices]:
        begun.append((task.begun, task.epoch_part))
        return sample(self, task)

    learner = ic.Learner(ic.Vectors(8, hidden=16, out=6), fit_strategy=ic.Retrain(max_epochs=1))
    learner.fit(blobs(100))
    monkeypatch.setattr(ic.ICL, "sample", watched)
    learner.update(blobs(20, seed=1), strategy=ic.ICL(max_epochs=4), budget=budget)
    parts = [part for _, part in begun]
    starts = [start for start, _ in begun]
    if budget is None:
        assert parts == [0.25] * 4
        assert starts == pytest.approx([0.0, 0.25, 0.5, 0.75])
    else:
        assert parts == [2 * 10 * (10 + 48) / 2_000] * len(parts)
        assert starts[1] > starts[0] + 0.5


def test_each_new_item_has_its_own_neighbours() -> None:
    task = task_with(100, 100, torch.stack([NEAR, FAR]))
    sampler = ic.HardNegatives(spread=0.01).sampler(task)
    assert (sampler.draw(20, torch.tensor([0])) < 100).all()
    assert (sampler.draw(20, torch.tensor([1])) >= 100).all()
    mixed = sampler.draw(100, torch.tensor([0, 1])) < 100
    assert 30 <= mixed.sum() <= 70


def test_more_new_items_than_are_compared_go_by_the_mean() -> None:
    task = task_with(100, 100, NEAR.expand(50, 2))
    sampler = ic.HardNegatives(items=16, spread=0.01).sampler(task)
    assert task.forward_passes == 16 + 16
    assert len(sampler.pool) == 16
    others = torch.tensor([place for place in range(50) if sampler.rows[place] == 16])
    assert len(others) == 50 - 16
    near = int((sampler.pool < 100).sum())
    assert (sampler.draw(near, others) < 100).all()


def test_embeddings_that_are_not_finite_are_left_to_the_first_step() -> None:
    class Broken(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows * torch.nan

    task = task_with(30, 30, NEAR.expand(4, 2), before=Broken())
    assert len(ic.HardNegatives().sampler(task).draw(10, torch.tensor([0]))) == 10


def test_few_old_items_are_all_taken_without_a_comparison() -> None:
    task = task_with(10, 20, NEAR.expand(20, 2))
    assert [len(batch.old) for batch in ic.ICL().sample(task)] == [30] * 10
    assert task.forward_passes == 0


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [3, 9, 14])
def test_an_update_that_resumes_draws_the_same_items(blobs, tmp_path: Path, after: int) -> None:
    learner = ic.Learner(ic.Vectors(8, hidden=16, out=6), fit_strategy=ic.Retrain(max_epochs=2))
    learner.fit(blobs(200))
    learner.save(tmp_path / "learner")
    new, strategy = blobs(60, seed=1, shift=2.0), ic.ICL(max_epochs=2)
    steps = 0

    def interrupt(progress: ic.Progress) -> None:
        nonlocal steps
        steps += progress.finished is None
        if steps == after:
            raise Interrupted

    found = []
    for callbacks in ([], [interrupt]):
        twin, file = ic.Learner.load(tmp_path / "learner"), tmp_path / f"{len(callbacks)}.ckpt"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("incontrast.training.resume.TrainingFile.due", lambda *_: True)
            if callbacks:
                with pytest.raises(Interrupted):
                    twin.update(new, strategy=strategy, checkpoint=file, callbacks=callbacks)
            twin.update(new, strategy=strategy, checkpoint=file)
        found.append(twin.embed(new))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("argument", "value"), [("share", 0.0), ("until", 1.5), ("items", 1), ("spread", 0.0)]
)
def test_what_makes_no_sense_is_refused(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be"):
        ic.HardNegatives(**{argument: value})


@pytest.mark.parametrize("part", ["emphasis", "hard_negatives", "protection", "meta"])
@pytest.mark.parametrize("given", [False, 0.5, "HardNegatives"])
def test_a_part_of_another_kind_is_refused_at_once(part: str, given: object) -> None:
    with pytest.raises(
        TypeError, match=rf"{part} must be \w+\(\.\.\.\), or None to go without, got"
    ):
        ic.ICL(**{part: given})
