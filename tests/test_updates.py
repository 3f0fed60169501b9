"""What updates do to real digits: seven classes first, three new ones later.

Every bound is at least five standard deviations, over ten seeds, from what is measured
(``benchmarks/spread.py``): another processor is like another seed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch

from incontrast import (
    ICL,
    Adam,
    Budget,
    FineTune,
    Fixed,
    Increment,
    Learned,
    Learner,
    Outcome,
    Reservoir,
    Retrain,
    TrainingDiverged,
    Vectors,
    WarmStart,
    data,
    evaluate,
)
from incontrast.compat import fitting
from incontrast.evaluate import measure, risk_bound
from incontrast.schedules import LearningRate, Schedule
from incontrast.streams import by_class, in_batches


@pytest.fixture(autouse=True)
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps between versions, which nothing here is about, have few hidden units."""
    monkeypatch.setattr(fitting, "UNITS", 32)
    monkeypatch.setattr(fitting, "CENTRES", 32)


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images = data.digits()
    rows = torch.from_numpy(images.items.reshape(len(images), -1)).float()
    return by_class(rows, [7, 8, 9], labels=images.labels)


@pytest.fixture(scope="module")
def learner(digits) -> Learner:
    fitted = Learner(Vectors(64), fit_strategy=Retrain(max_epochs=20), seed=0)
    fitted.fit(digits[0])
    return fitted


def updated(learner: Learner, new: torch.Tensor, strategy, **options):
    twin = copy.deepcopy(learner)
    return twin, twin.update(new, strategy=strategy, **options)


@pytest.fixture(scope="module")
def by_icl(learner, digits) -> tuple[Learner, Outcome]:
    return updated(learner, digits[1], ICL())


@pytest.fixture(scope="module")
def by_the_papers_objective(learner, digits) -> tuple[Learner, Outcome]:
    return updated(learner, digits[1], ICL(retention=0.0))


def test_icl_learns_the_new_and_keeps_the_old(by_icl) -> None:
    _, outcome = by_icl
    assert outcome.loss_old.after <= 1.02 * outcome.loss_old.before
    assert outcome.loss_new.after < 0.5 * outcome.loss_new.before


def test_the_papers_objective_collapses_old_items_and_retention_repairs_it(
    by_the_papers_objective, by_icl, digits
) -> None:
    without, outcome = by_the_papers_objective
    assert outcome.loss_old.after > 2 * outcome.loss_old.before
    assert outcome.change_ratio.after.median < 0.5 * outcome.change_ratio.before.median
    collapsed = evaluate.uniformity(without.embed(digits[0]))
    repaired, _ = by_icl
    assert collapsed > evaluate.uniformity(repaired.embed(digits[0])) + 0.5


def test_nce_ii_alone_leaves_the_bound_of_theorem_2(
    learner, by_the_papers_objective, by_icl, digits
) -> None:
    increment = Increment(*map(learner.domain.collect, digits), len(digits[0]))
    before = measure(learner.encoder, learner.domain, increment)
    assert risk_bound(before).holds
    paper, kept = (
        risk_bound(measure(after.encoder, after.domain, increment), before=before)
        for after, _ in (by_the_papers_objective, by_icl)
    )
    assert not paper.holds
    assert paper.process_difference < -paper.bound < kept.process_difference
    assert kept.retraining < 0.7 * paper.retraining


def test_a_rate_that_wrecks_the_encoder_is_refused(learner, digits) -> None:
    twin = copy.deepcopy(learner)
    with pytest.raises(TrainingDiverged, match=r"rose to|NaN or infinite"):
        twin.update(digits[1], strategy=ICL(lr=1e3))
    assert twin.version == 1
    assert torch.equal(twin.embed(digits[1]), learner.embed(digits[1]))


def test_an_update_that_its_budget_ends_is_a_good_one(learner, digits) -> None:
    twin = copy.deepcopy(learner)
    outcome = twin.update(digits[1], budget=Budget(forward_passes=15_000))
    assert outcome.stopped == "budget"
    assert outcome.loss_old.after <= 1.15 * outcome.loss_old.before
    assert outcome.loss.after.all < 0.92 * outcome.loss.before.all


def test_fine_tuning_forgets(learner, digits) -> None:
    _, outcome = updated(learner, digits[1], FineTune(max_epochs=40))
    assert outcome.loss_old.after > 1.2 * outcome.loss_old.before
    assert outcome.loss_new.after < 0.6 * outcome.loss_new.before


@pytest.mark.parametrize(
    ("count", "every", "epochs", "bound"),
    [(6, 2, 5, 0.75), pytest.param(20, 1, 10, 0.7, marks=pytest.mark.slow)],
)
def test_updates_in_a_row_with_a_small_memory(
    digits, count: int, every: int, epochs: int, bound: float
) -> None:
    """After a stream, what came first is known as well as what came last."""
    items = torch.cat(digits)[::every]
    parts, kept = list(in_batches(items, count, seed=0)), 180 // every
    learner = Learner(
        Vectors(64), fit_strategy=Retrain(max_epochs=20), memory=Reservoir(items=kept), seed=0
    )
    learner.fit(parts[0])
    start = learner.evaluation_loss(torch.cat(parts)).all
    for part in parts[1:]:
        outcome = learner.update(part, strategy=ICL(max_epochs=epochs))
    assert outcome.growth_ratio == pytest.approx(len(parts[-1]) / len(items))
    assert learner.version == count
    assert learner.memory.seen == len(items)
    assert len(learner.memory) == kept
    loss = learner.evaluation_loss(torch.cat(parts[:-1]), parts[-1])
    assert loss.all < bound * start
    assert loss.old < 1.6 * loss.new


@dataclass(frozen=True)
class Spoiling(Schedule):
    """A rate far too high."""

    guard: bool

    @property
    def guarded(self) -> bool:
        return self.guard

    def begin(self, generator, state=None) -> LearningRate:
        return Fixed(0.3).begin(generator)


def test_a_guarded_update_that_ends_worse_is_reverted(learner, digits) -> None:
    twin, outcome = updated(
        learner, digits[1], ICL(lr=Spoiling(guard=True), max_epochs=1, ema_decay=0.0)
    )
    assert outcome.reverted
    assert outcome.loss.after == outcome.loss.before
    assert "reverted" in str(outcome)
    assert torch.equal(twin.embed(digits[0]), learner.embed(digits[0]))
    assert (twin.version, twin.memory.seen) == (2, len(digits[0]) + len(digits[1]))
    _, outcome = updated(
        learner, digits[1], ICL(lr=Spoiling(guard=False), max_epochs=1, ema_decay=0.0)
    )
    assert not outcome.reverted
    assert outcome.loss.after.all > outcome.loss.before.all


def test_an_update_that_costs_old_items_too_much_keeps_a_part_of_its_change(
    learner, digits
) -> None:
    harsh = FineTune(lr=4e-3, max_epochs=10)  # looks at no old item
    whole, outcome = updated(learner, digits[1], harsh)
    before, lost = outcome.loss_old
    assert lost > 1.05 * before
    assert outcome.kept == 1.0
    met, part = updated(learner, digits[1], harsh, tolerance=(lost / before - 1) / 2)
    assert part.kept in {step / 8 for step in range(1, 8)}
    assert part.loss_old.after <= before + (lost - before) / 2
    assert part.loss_new.after < part.loss_new.before
    assert f"{part.kept:.0%} of the change is kept" in str(part)
    # The learner has the weights on the line between the two, and statistics that fit them.
    for mine, old, new in zip(
        met.encoder.parameters(),
        learner.encoder.parameters(),
        whole.encoder.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(mine, old + part.kept * (new - old))
    assert met.evaluation_loss(digits[0]).old != whole.evaluation_loss(digits[0]).old
    _, easy = updated(learner, digits[1], harsh, tolerance=2 * (lost / before - 1))
    assert easy.kept == 1.0
    _, scratch = updated(learner, digits[1], Retrain(max_epochs=1), tolerance=0.0)
    assert scratch.kept == 1.0  # weights of two encoders that are not kin have nothing between


@dataclass(frozen=True)
class Guarded(Schedule):
    """A fixed learning rate, of which an update is reverted if the loss of all rises."""

    guarded = True

    def begin(self, generator, state=None) -> LearningRate:
        return Fixed(4e-3).begin(generator)


def test_a_guarded_update_keeps_to_a_tolerance_too(learner, digits) -> None:
    strategy = ICL(lr=Guarded(), max_epochs=2, retention=0.0)  # new items at the cost of old ones
    _, whole = updated(learner, digits[1], strategy)
    before, lost = whole.loss_old
    assert not whole.reverted
    _, part = updated(learner, digits[1], strategy, tolerance=(lost / before - 1) / 2)
    assert 0.0 < part.kept < 1.0


def steady(lr: Schedule | float) -> ICL:
    """An objective that stays the same all along, which learned learning rates are made for."""
    return ICL(lr=lr, optimizer=Adam(), emphasis=None, hard_negatives=None)


@pytest.fixture(scope="module")
def at_a_fixed_rate(learner, digits) -> Outcome:
    return updated(learner, digits[1], steady(3e-3))[1]


@pytest.mark.parametrize("start", [pytest.param(1e-2, marks=pytest.mark.slow), 1e-5])
def test_a_learned_learning_rate_does_not_need_a_good_start(
    learner, digits, at_a_fixed_rate, start
) -> None:
    _, outcome = updated(learner, digits[1], steady(Learned(start=start)))
    assert outcome.loss.after.all <= 1.15 * at_a_fixed_rate.loss.after.all


def test_a_start_that_wrecks_the_encoder_is_rolled_back(learner, digits) -> None:
    _, outcome = updated(learner, digits[1], steady(Learned(start=10.0)))
    assert outcome.rollbacks >= 1
    assert outcome.loss.after.all < outcome.loss.before.all


def test_interpolation_keeps_a_part_of_an_updates_change(blobs) -> None:
    learner = Learner(Vectors(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=2))
    learner.fit(blobs(60))
    ends = []
    for part in (1.0, 0.25):
        twin = copy.deepcopy(learner)
        strategy = ICL(max_epochs=2, interpolation=part)
        twin.update(blobs(20, shift=1.0), strategy=strategy)
        ends.append(dict(twin.encoder.named_parameters()))
    whole, some = ends
    kept = strategy.kept(20 / 80)  # between a quarter, where few items are new, and all
    assert 0.25 < kept < 1.0
    for name, start in learner.encoder.named_parameters():
        assert not torch.equal(whole[name], start)
        torch.testing.assert_close(some[name], torch.lerp(start, whole[name], kept))


def test_icl_keeps_all_of_a_change_where_much_is_new() -> None:
    few, some, much = (ICL(interpolation=0.8).kept(alpha) for alpha in (0.05, 0.3, 0.6))
    assert few == 0.8
    assert few < some < much == 1.0
    assert WarmStart(interpolation=0.8).kept(0.6) == 0.8
