"""The learner: fit, update, embed, save; and that nothing which fails changes it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incontrast import (
    ICL,
    Budget,
    Callback,
    Domain,
    FineTune,
    Fixed,
    Increment,
    KeepAll,
    Learned,
    Learner,
    Meta,
    NoUpdate,
    Objective,
    Reservoir,
    Retrain,
    TensorCollection,
    TrainingDiverged,
    Vectors,
    WarmStart,
    evaluate,
)
from incontrast.data import Labelled

QUICK = Retrain(max_epochs=3)


def make(blobs=None, count: int = 60, **settings) -> Learner:
    learner = Learner(
        Vectors(8, hidden=16, out=8),
        **{"fit_strategy": QUICK, "strategy": ICL(max_epochs=2), "seed": 0, **settings},
    )
    if blobs is not None:
        learner.fit(blobs(count))
    return learner


def state(learner: Learner) -> dict[str, Tensor]:
    weights = {name: value.clone() for name, value in learner.encoder.state_dict().items()}
    assert learner.memory.items is not None
    counts = torch.tensor([learner.version, learner.memory.seen, learner.memory.arrivals])
    return {
        **weights,
        "memory ids": learner.memory.ids,
        "memory": learner.memory.items.data,
        "counts": counts,
    }


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_no_items_of_ones_own_domain(blobs) -> None:
    class Own(Vectors):
        def collect(self, items):
            return super().collect(items) if len(items) else TensorCollection(torch.zeros(0, 8))

    learner = Learner(Own(8, hidden=16, out=8), fit_strategy=Retrain(max_epochs=1))
    with pytest.raises(ValueError, match=r"there are no items in what Own\.collect\(\) returned"):
        learner.fit([])
    learner.fit(blobs(30))
    for method in (learner.update, learner.drift):
        with pytest.raises(ValueError, match="there are no items"):
            method([])
    assert learner.embed([]).shape == (0, 8)


def test_fitting_lowers_the_evaluation_loss(blobs) -> None:
    outcome = make(fit_strategy=Retrain(max_epochs=30)).fit(blobs(300))
    assert outcome.loss_new.after < outcome.loss_new.before
    assert outcome.change_ratio is None
    assert outcome.growth_ratio == 1.0


@pytest.mark.parametrize("strategy", [ICL(), ICL.paper(max_epochs=2), FineTune(max_epochs=2)])
def test_the_same_seed_gives_the_same_bits(strategy, blobs) -> None:
    def trained() -> dict[str, Tensor]:
        learner = make(blobs, strategy=strategy)
        learner.update(blobs(20, shift=1.0, seed=1))
        return state(learner)

    assert_same(trained(), trained())
    other = make(blobs, seed=1)
    assert not torch.equal(next(other.encoder.parameters()), next(make(blobs).encoder.parameters()))


def test_an_update_tells_what_it_did(blobs) -> None:
    learner = make(blobs, count=60)
    outcome = learner.update(blobs(20, seed=1))
    assert outcome.growth_ratio == 0.25
    assert outcome.strategy == ICL(max_epochs=2)
    assert (outcome.epochs, outcome.steps, outcome.stopped) == (2, 20, "epochs")
    # Protection, hard negatives, and 2 epochs of 5 rounds of 2 steps.
    assert outcome.forward_passes == 2 * 60 + (60 + 20) + 2 * 2 * 5 * (20 + 2 * 48)
    assert len(outcome.history) == 2
    assert outcome.history[-1].lr == 1.2e-2
    assert outcome.change_ratio is not None
    lower, median, upper = outcome.change_ratio.after
    assert 0 < lower <= median <= upper
    assert "loss of old items" in str(outcome)
    assert learner.version == 2
    assert learner.memory.seen == len(learner.memory) == 80


def test_updates_are_measured_against_the_encoder_of_before(blobs) -> None:
    learner = make(blobs)
    new = blobs(20, shift=2.0, seed=1)
    before = learner.evaluation_loss(blobs(60), new)
    outcome = learner.update(new, strategy=Retrain(max_epochs=2))
    assert outcome.loss.before == pytest.approx(before)
    assert outcome.loss.after == pytest.approx(learner.evaluation_loss(blobs(60), new))


def test_inference_takes_items_in_and_leaves_the_encoder(blobs) -> None:
    learner = make(blobs)
    before = state(learner)
    learner.update(blobs(20, seed=1), strategy=NoUpdate())
    after = state(learner)
    for name in learner.encoder.state_dict():
        assert torch.equal(before[name], after[name])
    assert learner.memory.seen == 80


def test_retraining_starts_from_fresh_weights(blobs) -> None:
    """Its result does not depend on the encoder that was there."""
    first, second = make(blobs), make(blobs, fit_strategy=Retrain(max_epochs=1))
    for learner in (first, second):
        learner.update(blobs(20, seed=1), strategy=QUICK)
    assert_same(first.encoder.state_dict(), second.encoder.state_dict())
    first.update(blobs(20, seed=2), strategy=WarmStart(max_epochs=1))
    second.update(blobs(20, seed=2), strategy=WarmStart(max_epochs=2))
    assert not torch.equal(next(first.encoder.parameters()), next(second.encoder.parameters()))


def test_embeddings_do_not_depend_on_their_batch(blobs) -> None:
    learner = make(blobs)
    rows = blobs(600, seed=3)
    done: list[int] = []
    whole = learner.embed(rows, progress=done.append)
    assert whole.shape == (600, 8)
    assert done == [256, 512, 600]
    torch.testing.assert_close(whole[:7], learner.embed(rows[:7]))
    assert torch.equal(whole, learner.embed(rows))


# Nothing that fails changes the learner ----------------------------------------------------------


class Boom(Exception):
    pass


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("strategy", [ICL(), ICL(meta=Meta(steps=1)), Retrain(max_epochs=5)])
def test_an_interrupted_update_leaves_the_learner_as_it_was(blobs, error, strategy) -> None:
    learner = make(blobs)
    before = state(learner)

    def interrupt(progress) -> None:
        if progress.steps == 2:
            raise error

    with pytest.raises(error):
        learner.update(blobs(64, seed=1), strategy=strategy, callbacks=[interrupt])
    assert_same(before, state(learner))
    learner.update(blobs(64, seed=1))
    undisturbed = make(blobs)
    undisturbed.update(blobs(64, seed=1))
    assert_same(state(undisturbed), state(learner))


def test_a_failed_fit_leaves_the_learner_as_it_was(blobs) -> None:
    learner = make()

    def interrupt(progress) -> None:
        raise Boom

    with pytest.raises(Boom):
        learner.fit(blobs(60), callbacks=[interrupt])
    assert not learner.fitted
    learner = make(blobs)
    before = state(learner)
    with pytest.raises(Boom):
        learner.fit(blobs(30), callbacks=[interrupt])
    assert_same(before, state(learner))


def test_a_diverging_update_leaves_the_learner_as_it_was(blobs) -> None:
    learner = make(blobs)
    before = state(learner)
    with pytest.raises(TrainingDiverged):
        learner.update(blobs(64, seed=1), strategy=ICL(lr=Fixed(1e30)))
    assert_same(before, state(learner))


def test_fitting_again_starts_over(blobs) -> None:
    learner = make(blobs)
    learner.fit(blobs(60) * 10 + 500)
    expected = (blobs(60) * 10 + 500).mean(0)
    assert learner.domain.mean == pytest.approx(expected.tolist(), abs=10.0)  # it is rounded
    assert learner.embed(blobs(60) * 10 + 500).std(0).max() > 0.01


def test_data_far_away_can_still_be_told_apart(blobs) -> None:
    learner = make(blobs)
    learner.update(blobs(40, seed=1) + 100.0)
    assert learner.embed(blobs(40, seed=1) + 100.0).std(0).max() > 0.01


def test_next_to_no_old_items_at_hand(blobs) -> None:
    learner = make(blobs, memory=Reservoir(items=1))
    outcome = learner.update(blobs(20, seed=1), strategy=FineTune(max_epochs=2))
    assert outcome.change_ratio is None
    learner.update(blobs(20, seed=2), strategy=WarmStart(max_epochs=2))
    learner.forget(learner.memory.ids.tolist())
    learner.update(blobs(20, seed=3), strategy=FineTune(max_epochs=2))
    with pytest.raises(ValueError, match="at least 2 old items in memory"):
        learner.update(blobs(20, seed=4), strategy=ICL())


def test_an_array_that_is_filled_again_changes_nothing(blobs) -> None:
    rows = blobs(60)
    learner = make()
    learner.fit(rows)
    kept = learner.memory.items.data.clone()
    rows.fill_(7.0)
    assert torch.equal(learner.memory.items.data, kept)


# Bad input ---------------------------------------------------------------------------------------


def test_an_update_before_fit() -> None:
    with pytest.raises(RuntimeError, match=r"call fit\(\) first"):
        make().update(torch.zeros(4, 8))
    with pytest.raises(RuntimeError, match=r"call fit\(\) first"):
        make().embed(torch.zeros(4, 8))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (torch.zeros(0, 8), "there are no items"),
        (torch.zeros(5, 7), r"vectors must have shape \(n, 8\), got \(5, 7\)"),
        (torch.zeros(8), r"got \(8,\)"),
        ([[1.0] * 8, [2.0] * 7], "table of numbers"),
        (torch.full((5, 8), torch.nan), "NaN or infinity in item 0"),
        (torch.tensor([[0.0] * 8, [torch.inf] * 8]), "NaN or infinity in item 1"),
        ("nonsense", "nonsense does not exist: give a folder of images, or a file"),
    ],
)
def test_bad_items_are_refused_before_training(items, message: str, blobs) -> None:
    learner = make(blobs)
    before = state(learner)
    for action in (learner.fit, learner.update, learner.embed):
        with pytest.raises(ValueError, match=message):
            action(items)
    assert_same(before, state(learner))


@pytest.mark.parametrize("strategy", [FineTune, "finetune"])
def test_what_is_no_strategy_is_refused(strategy, blobs) -> None:
    learner = make(blobs)
    with pytest.raises(TypeError, match=r"a strategy must be an object such as ic\.ICL\(\), got"):
        learner.update(blobs(20), strategy=strategy)
    with pytest.raises(TypeError, match="a strategy must be"):
        Learner(Vectors(8), strategy=strategy)


def test_labels_are_never_looked_at(blobs) -> None:
    plain, labelled = make(), make()
    plain.fit(blobs(60))
    labelled.fit(Labelled(blobs(60), np.zeros(60, dtype=np.int64), ("a",)))
    assert_same(state(plain), state(labelled))


def test_one_item_is_too_few_to_fit(blobs) -> None:
    with pytest.raises(ValueError, match="at least 2 items, got 1"):
        make().fit(blobs(1))


def test_a_tiny_increment_does_no_harm(blobs) -> None:
    learner = make(blobs, count=200, fit_strategy=Retrain(max_epochs=40))
    for count in (1, 2, 3):
        twin = copy.deepcopy(learner)
        outcome = twin.update(blobs(count, shift=3.0, seed=1), strategy=ICL(max_epochs=20))
        assert outcome.loss.after.all < outcome.loss.before.all


def test_fine_tuning_on_one_item_says_what_is_missing(blobs) -> None:
    learner = make(blobs)
    before = state(learner)
    with pytest.raises(ValueError, match="at least 2 items"):
        learner.update(blobs(1), strategy=FineTune())
    assert_same(before, state(learner))


def test_a_huge_increment(blobs) -> None:
    learner = make(blobs, count=4)
    outcome = learner.update(blobs(2000, seed=1))
    assert outcome.growth_ratio > 0.99
    assert outcome.loss_new.after < outcome.loss_new.before


def test_an_increment_that_repeats_old_items_counts_them_again(blobs) -> None:
    learner = make(blobs)
    outcome = learner.update(blobs(60))
    assert outcome.growth_ratio == 0.5
    assert outcome.change_ratio is not None
    assert outcome.change_ratio.before.median == pytest.approx(1.0, abs=0.3)
    assert learner.memory.seen == 120


@dataclass(frozen=True)
class Wrong(Domain):
    """A domain whose views lose an item."""

    def collect(self, items):
        return TensorCollection(items)

    def views(self, batch, generator):
        return batch[:-1], batch

    def encoder(self):
        return nn.Linear(8, 4)


def test_views_of_the_wrong_shape_are_found_before_training(blobs) -> None:
    with pytest.raises(ValueError, match="4 went in, 3 are in the first view"):
        Learner(Wrong()).fit(blobs(20))


# Memory ------------------------------------------------------------------------------------------


def test_a_reservoir_keeps_a_sample_and_counts_everything(blobs) -> None:
    learner = make(blobs, count=100, memory=Reservoir(items=30))
    outcome = learner.update(blobs(100, seed=1))
    assert outcome.growth_ratio == 0.5
    assert len(learner.memory) == 30
    assert learner.memory.seen == 200


def test_forgotten_items_are_gone(blobs) -> None:
    learner = make(blobs)
    learner.forget([0, 5])
    assert learner.memory.seen == 58
    outcome = learner.update(blobs(58, seed=1))
    assert outcome.growth_ratio == 0.5


def test_a_budget_caps_an_update(blobs) -> None:
    outcome = make(blobs).update(blobs(200, seed=1), budget=Budget(forward_passes=600))
    assert outcome.stopped == "budget"
    assert 600 <= outcome.forward_passes < 750


# Saving ------------------------------------------------------------------------------------------


def test_a_loaded_learner_is_the_same(blobs, tmp_path) -> None:
    learner = make(blobs, memory=Reservoir(items=20), strategy=ICL(retention=0.5, max_epochs=3))
    learner.forget([1])
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    rows = blobs(30, seed=2)
    assert torch.equal(loaded.embed(rows), learner.embed(rows))
    assert_same(state(learner), state(loaded))
    assert loaded.domain == learner.domain
    for setting in ("domain", "strategy", "fit_strategy", "objective", "seed"):
        assert getattr(loaded, setting) == getattr(learner, setting)
    assert loaded.memory.policy == Reservoir(items=20)
    assert loaded.memory.threshold == learner.memory.threshold
    for each in (learner, loaded):
        each.update(blobs(20, seed=3))
    assert_same(state(learner), state(loaded))


@dataclass(frozen=True)
class Mine(Vectors):
    """A domain of a user's own."""


def test_a_domain_of_ones_own_is_passed_again(blobs, tmp_path) -> None:
    learner = Learner(Mine(8), fit_strategy=QUICK)
    learner.fit(blobs(20))
    learner.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"a Mine of your own.*Learner.load\(folder, domain=...\)"):
        Learner.load(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", domain=Mine(8))
    assert loaded.domain == learner.domain
    assert torch.equal(loaded.embed(blobs(5)), learner.embed(blobs(5)))


def test_defaults() -> None:
    learner = Learner(Vectors(3))
    assert learner.strategy == ICL()
    assert learner.fit_strategy == Retrain()
    assert learner.memory.policy == KeepAll()


def test_learned_rates_go_on_from_what_they_have_learned(blobs, tmp_path) -> None:
    learner = make(blobs, strategy=ICL(lr=Learned(learn_every=1), max_epochs=3))
    assert learner.schedule_state == {}
    learner.update(blobs(200, seed=1))
    first = dict(learner.schedule_state)
    assert first
    learner.save(tmp_path / "learner")
    learner.update(blobs(200, seed=2))
    assert any(
        not torch.equal(learner.schedule_state[name], value) for name, value in first.items()
    )
    twin = Learner.load(tmp_path / "learner")
    assert twin.strategy == learner.strategy
    assert_same(first, twin.schedule_state)
    twin.update(blobs(200, seed=2))
    assert_same(state(learner), state(twin))
    assert_same(learner.schedule_state, twin.schedule_state)
    learner.update(blobs(20, seed=3), strategy=ICL(lr=Fixed(1e-3), max_epochs=1))
    assert_same(learner.schedule_state, twin.schedule_state)
    learner.fit(blobs(60))
    assert learner.schedule_state == {}


def test_training_follows_the_objective(blobs) -> None:
    """Temperature and K of the learner, not the defaults, are what is trained on."""

    def weights(**settings) -> Tensor:
        learner = make(blobs, objective=Objective(**settings))
        learner.update(blobs(20, seed=1))
        return learner.embed(blobs(8))

    usual = weights()
    assert torch.equal(usual, weights(temperature=0.1, negatives=31))
    assert not torch.equal(usual, weights(temperature=0.5))
    assert not torch.equal(usual, weights(negatives=3))


def test_the_loss_of_a_run_is_that_of_the_objective(blobs) -> None:
    """With all embeddings alike, NCE-I is log(1 + K) whatever the temperature."""

    @dataclass(frozen=True)
    class Constant(Vectors):
        def encoder(self) -> nn.Module:
            layer = nn.Linear(8, 2)
            nn.init.zeros_(layer.weight)
            return layer

    learner = Learner(
        Constant(8), fit_strategy=Retrain(max_epochs=1, lr=1e-12), objective=Objective(negatives=7)
    )
    assert learner.fit(blobs(40)).history[0].loss == pytest.approx(np.log(8), rel=1e-4)


@pytest.mark.parametrize("budget", [5, 5.0, "a minute"])
def test_a_budget_that_is_none_is_named(blobs, budget) -> None:
    learner = make(blobs)
    for call in (learner.fit, learner.update):
        with pytest.raises(TypeError, match=r"budget must be a Budget, got .*Budget\(seconds="):
            call(blobs(20), budget=budget)


def test_fitting_again_is_told(blobs, caplog) -> None:
    learner = make(blobs)
    assert not caplog.records
    learner.fit(blobs(30))
    assert "fit() starts over: version 1 and its memory are replaced" in caplog.text


class Ending(Callback):
    """Ends a run, and remembers what it was told."""

    def __init__(self, step: int | None = None, epoch: int | None = None) -> None:
        self.step, self.epoch = step, epoch
        self.steps, self.epochs, self.run = 0, 0, None

    def on_step(self, progress) -> bool | None:
        self.steps = progress.steps
        return progress.steps != self.step

    def on_epoch(self, progress) -> bool | None:
        self.epochs += 1
        return progress.epoch != self.epoch

    def on_end(self, run) -> None:
        self.run = run


@pytest.mark.parametrize("ending", [Ending(step=3), Ending(epoch=2), Ending()])
def test_a_callback_follows_a_run_and_can_end_it(blobs, ending: Ending) -> None:
    learner = make(blobs)
    strategy = WarmStart(max_epochs=4, batch_size=20)
    outcome = learner.update(blobs(20, seed=1), strategy=strategy, callbacks=[ending])
    expected = {3: (3, 1, "callback"), None: (16, 4, "epochs")}[ending.step]
    if ending.epoch:
        expected = (8, 2, "callback")
    assert (outcome.steps, outcome.epochs, outcome.stopped) == expected
    assert (ending.steps, ending.epochs) == expected[:2]
    assert ending.run.steps == outcome.steps
    assert learner.version == 2
    assert torch.isfinite(learner.embed(blobs(4))).all()


def test_measuring_follows_the_encoder_to_its_device(blobs) -> None:
    learner = make(blobs)
    increment = Increment(None, TensorCollection(blobs(16)), 0)
    with patch("torch.cuda.is_available", return_value=True):
        assert evaluate.measure(learner.encoder, learner.domain, increment).new is not None


def test_a_learner_is_shown_in_a_line(blobs) -> None:
    learner = Learner(Vectors(8, hidden=16), fit_strategy=Retrain(max_epochs=1), head="linear")
    assert repr(learner) == "Learner(Vectors(dim=8, hidden=16), not fitted)"
    learner.fit(blobs(40))
    parameters = sum(parameter.numel() for parameter in learner.encoder.parameters())
    assert repr(learner) == (
        "Learner(Vectors(dim=8, hidden=16), version 1, 40 items stored / 40 seen, "
        f"{type(learner.backbone).__name__} with a head of {parameters:,} parameters)"
    )
    own = Learner(Vectors(8, encoder=torch.nn.Linear(8, 3)))
    assert str(own) == "Learner(Vectors(dim=8, encoder=Linear), not fitted)"


class Shaped(nn.Module):
    """A layer whose output another function makes of it and of whether it is trained."""

    def __init__(self, shape, width: int = 8) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(width, 6), shape

    def forward(self, batch: Tensor) -> Tensor:
        return self.shape(self.layer(batch), self.training)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (lambda y, _: y.long(), r"floating-point.*torch.int64: give its output as .float\(\)"),
        (lambda y, _: y[:, None].repeat(1, 3, 1), r"shape \(8, 3, 6\): .*Pooled\(encoder, pooling"),
        (lambda y, _: y * float("nan"), r"gave NaN or infinite embeddings of views: look for"),
        (lambda y, trained: y / (not trained), r"NaN or infinite .* of views in training mode"),
        (
            lambda y, _: y[:, : len(y)],
            r"got 6 numbers for 8 views and 4 for a batch, \(4, 4\): pool",
        ),
        (
            lambda y, _: y.repeat(1, 1 + (len(y) == 1)),
            r"6 numbers .* and 12 for one item, \(1, 12\)",
        ),
    ],
)
def test_an_encoder_that_cannot_be_trained_is_refused_before_training(
    shape, message, blobs
) -> None:
    learner = Learner(Vectors(8, encoder=Shaped(shape)))
    with patch("incontrast.call.train") as training, pytest.raises(ValueError, match=message):
        learner.fit(blobs(40))
    assert not training.called
    assert not learner.fitted


def test_a_head_gives_the_same_shape_in_training(blobs) -> None:
    head = Shaped(lambda y, trained: y[:, :2] if trained else y, 64)
    learner = Learner(Vectors(8), head=head)
    message = (
        r"with its head must give vectors of one width, got 6 .* 2 for training mode, \(8, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        learner.fit(blobs(40))
