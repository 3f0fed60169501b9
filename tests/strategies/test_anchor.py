"""``ICL(compatible=...)``: old items stay where they were, at no forward pass a second time."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

import incontrast as ic


def updated(blobs, compatible: float) -> tuple[float, ic.Outcome]:
    """Mean cosine of old items before and after."""
    learner = ic.Learner(
        ic.Vectors(8, hidden=16, out=6), fit_strategy=ic.Retrain(max_epochs=3), seed=0
    )
    old = blobs(120)
    learner.fit(old)
    before = normalize(learner.embed(old))
    strategy = ic.ICL(max_epochs=6, compatible=compatible)
    outcome = learner.update(blobs(40, seed=1, shift=2.0), strategy=strategy)
    return float((before * normalize(learner.embed(old))).sum(1).mean()), outcome


def test_more_of_it_moves_old_items_less(blobs) -> None:
    cosines, outcomes = zip(*(updated(blobs, weight) for weight in (0.0, 1.0, 30.0)), strict=True)
    assert cosines[0] < cosines[1] < cosines[2]
    # Every old item is embedded once more at most.
    assert outcomes[1].forward_passes - outcomes[0].forward_passes <= 120


def test_the_same_seed_gives_the_same_update(blobs) -> None:
    assert updated(blobs, 0.3)[0] == updated(blobs, 0.3)[0]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="compatible must be at least 0, got -1"):
        ic.ICL(compatible=-1.0)


def test_it_is_one_minus_the_cosine(blobs) -> None:
    from incontrast.strategies.icl import anchor_loss
    from incontrast.training.task import ViewBatch

    learner = ic.Learner(ic.Vectors(8, hidden=16, out=6), fit_strategy=ic.Retrain(max_epochs=1))
    old = blobs(20)
    learner.fit(old)
    task = ic.Task(
        learner.encoder,
        learner.domain,
        ic.Increment(learner.domain.collect(old), learner.domain.collect(blobs(4)), 20),
        objective=learner.objective,
        engine=learner.engine,
        seed=0,
        before=learner.encoder,
    )
    places = torch.tensor([3, 7, 5])
    first, second = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    loss = anchor_loss(task, ViewBatch(None, 3, places), first, second)
    anchors = normalize(learner.embed(old[places]))
    by_hand = [
        1 - float(anchors[row] @ normalize(views[row], dim=0))
        for row in range(3)
        for views in (first, second)
    ]
    assert loss.item() == pytest.approx(sum(by_hand) / 6, abs=1e-6)
    assert task.forward_passes == 3
