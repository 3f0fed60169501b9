"""Projection heads: the loss sees the head, embeddings are the backbone's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from incontrast import ICL, Adam, Learner, Optimizer, Retrain, Vectors
from incontrast.domains.check import DomainError
from incontrast.heads import EncoderWithHead, make_head

QUICK = Retrain(max_epochs=2)


def fitted(blobs, **settings) -> Learner:
    learner = Learner(
        Vectors(8, out=16), fit_strategy=QUICK, strategy=ICL(max_epochs=2), **settings
    )
    learner.fit(blobs(60))
    return learner


def narrow(width: int) -> nn.Module:
    return nn.Linear(width, 5)


@pytest.mark.parametrize(("head", "width"), [("linear", 128), ("mlp", 128), (narrow, 5)])
def test_embeddings_are_the_backbones_unless_the_head_is_asked_for(blobs, head, width) -> None:
    learner = fitted(blobs, head=head)
    rows = blobs(10)
    with torch.no_grad():
        expected = learner.encoder.head(learner.embed(rows))
    assert learner.embed(rows).shape == (10, 16)
    assert learner.embed(rows, head=True).shape == (10, width)
    torch.testing.assert_close(learner.embed(rows, head=True), expected)


def test_losses_are_measured_through_the_head(blobs) -> None:
    learner = fitted(blobs, head="mlp")
    seen = learner.evaluation_loss(blobs(40)).all
    learner._encoder = learner.backbone
    assert learner.evaluation_loss(blobs(40)).all != pytest.approx(seen, rel=1e-3)


def test_a_head_is_updated_saved_and_loaded_with_its_backbone(blobs, tmp_path) -> None:
    learner = fitted(blobs, head="mlp")
    before = {name: value.clone() for name, value in learner.encoder.head.state_dict().items()}
    learner.update(blobs(20) + 1.0)
    after = learner.encoder.head.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in ("0.weight", "3.weight"))
    assert not torch.equal(before["1.running_mean"], after["1.running_mean"])  # calibrated
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved")
    rows = blobs(10)
    assert torch.equal(again.embed(rows, head=True), learner.embed(rows, head=True))
    assert again.head == "mlp"


def test_a_module_as_head_keeps_its_weights_and_is_passed_again(blobs, tmp_path) -> None:
    head = nn.Linear(16, 4)
    learner = Learner.from_encoder(None, Vectors(8, out=16), seen=blobs(40), head=head)
    assert torch.equal(learner.encoder.head.weight, head.weight)
    learner.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"a Linear of your own.*head="):
        Learner.load(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", head=head)
    assert torch.equal(again.embed(blobs(5), head=True), learner.embed(blobs(5), head=True))


def test_without_a_head_nothing_changes(blobs) -> None:
    learner = fitted(blobs)
    assert learner.encoder is learner.backbone
    assert torch.equal(learner.embed(blobs(5)), learner.embed(blobs(5), head=True))


@pytest.mark.parametrize("head", ["mpl", 3, nn.Linear])
def test_what_cannot_be_a_head_is_refused(head) -> None:
    with pytest.raises(ValueError, match="head must be None"):
        Learner(Vectors(8), head=head)


def test_a_head_that_does_not_fit_is_refused(blobs) -> None:
    with pytest.raises(DomainError, match=r"the head, on embeddings of 16 dimensions, cannot take"):
        fitted(blobs, head=nn.Linear(7, 4))
    with pytest.raises(DomainError, match=r"must give \(2, d\) embeddings.*\(2, 4, 4\)"):
        fitted(blobs, head=nn.Unflatten(1, (4, 4)))
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, got int"):
        fitted(blobs, head=lambda width: width)


def weights_after(blobs, optimizer, freeze: str = "") -> tuple[dict, dict]:
    """Weights before and after an update, of an encoder with a head."""
    learner = fitted(blobs, head="linear")
    for name, parameter in learner.encoder.named_parameters():
        parameter.requires_grad_(not (freeze and name.startswith(freeze)))
    before = {name: value.clone() for name, value in learner.encoder.state_dict().items()}
    learner.update(blobs(20) + 1.0, strategy=ICL(max_epochs=1, optimizer=optimizer))
    return before, learner.encoder.state_dict()


def test_frozen_parts_stay_with_their_statistics(blobs) -> None:
    before, after = weights_after(blobs, Adam(), freeze="backbone.0")
    assert torch.equal(before["backbone.0.weight"], after["backbone.0.weight"])
    assert not torch.equal(before["backbone.3.weight"], after["backbone.3.weight"])
    before, after = weights_after(blobs, Adam(), freeze="backbone.1")
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(before[f"backbone.1.{name}"], after[f"backbone.1.{name}"])


def test_parts_have_learning_rates_of_their_own(blobs) -> None:
    def moved(optimizer) -> dict[str, float]:
        before, after = weights_after(blobs, optimizer)
        return {name: float((after[name] - before[name]).abs().max()) for name in before}

    plain, scaled = moved(Adam()), moved(Adam(lr_factors={"0": 1e-3, "head": 2.0}))
    assert scaled["backbone.0.weight"] < 0.01 * plain["backbone.0.weight"]
    assert scaled["head.weight"] > plain["head.weight"]


def test_a_part_that_is_not_there_is_named_with_the_nearest(blobs) -> None:
    with pytest.raises(ValueError, match=r"begins with 'haed'.*nearest is 'head'"):
        weights_after(blobs, Adam(lr_factors={"haed": 0.1}))


def test_an_encoder_without_trainable_weights_is_refused(blobs) -> None:
    learner = fitted(blobs)
    learner.encoder.requires_grad_(False)
    with pytest.raises(ValueError, match="all of it is frozen"):
        learner.update(blobs(10))


def test_gradients_are_clipped_and_weights_decay(blobs) -> None:
    def lengths(optimizer) -> float:
        before, after = weights_after(blobs, optimizer)
        return float((after["head.weight"] - before["head.weight"]).norm())

    def steepest(parameters) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    assert lengths(Optimizer(factory=steepest, max_norm=1e-6)) < 1e-6
    assert lengths(Optimizer(factory=steepest)) > 1e-6
    assert lengths(Adam(weight_decay=50.0)) > 1.5 * lengths(Adam())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_norm": 0.0}, "max_norm must be positive"),
        ({"lr_factors": {"head": 0.0}}, "the factor of 'head'.*freeze a part"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_impossible_steps_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Adam(**settings)


def test_optimisers_of_ours_are_saved_with_their_settings(blobs, tmp_path) -> None:
    optimizer = Adam(lr_factors={"0": 0.1}, max_norm=1.0, weight_decay=0.01)
    learner = Learner(Vectors(8), fit_strategy=QUICK, strategy=ICL(optimizer=optimizer))
    learner.fit(blobs(40))
    learner.save(tmp_path / "saved")
    assert Learner.load(tmp_path / "saved").strategy.optimizer == optimizer


def test_simclrs_head_is_two_layers_with_a_hidden_one_as_wide_as_embeddings() -> None:
    head = make_head("mlp", 64)
    shapes = [tuple(p.shape) for p in head.parameters()]
    assert shapes == [(64, 64), (64,), (64,), (128, 64), (128,)]
    assert EncoderWithHead(nn.Identity(), head, 64)(torch.zeros(4, 64)).shape == (4, 128)
