"""Learners from encoders that were trained elsewhere."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from incontrast import (
    ICL,
    Adam,
    FineTune,
    Fixed,
    Graphs,
    Images,
    KeepAll,
    Learner,
    NoUpdate,
    Pairs,
    Pooled,
    Probe,
    Queue,
    Reservoir,
    Retrain,
    Text,
    Vectors,
    call,
    load_weights,
    pretrained,
)
from incontrast.compat.quality import neighbours_kept
from incontrast.domains.check import DomainError
from incontrast.domains.images.encoders import ResNet18
from incontrast.learner import adopted_settings

PLAIN = Vectors(8, mean=(0.0,) * 8, std=(1.0,) * 8, limit=None)
SHORT = ICL(max_epochs=2)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def test_an_adopted_encoder_gives_the_embeddings_it_gave(blobs) -> None:
    module, rows = network().eval(), blobs(50)
    learner = Learner.from_encoder(module, PLAIN, seen=rows)
    assert learner.version == 1
    assert (learner.memory.seen, len(learner.memory)) == (50, 50)
    with torch.no_grad():
        torch.testing.assert_close(learner.embed(rows), module(rows))


def test_the_normalisation_that_is_assumed_is_logged(caplog) -> None:
    Learner.from_encoder(nn.Flatten(), Images(8, 1, mean=0.5, std=0.5), strategy=FineTune())
    as_they_are = Vectors(8, mean=(0.0,) * 8, std=(1.0,) * 8, limit=None)
    Learner.from_encoder(nn.Linear(8, 4), as_they_are, strategy=FineTune())
    assert "the encoder gets" not in caplog.text
    for domain in (Images(8, 1), Pairs(Images(8, 1))):
        caplog.clear()
        Learner.from_encoder(nn.Flatten(), domain, strategy=FineTune())
        assert "minus mean [0.449], divided by std [0.226]: give what" in caplog.text
    Learner.from_encoder(nn.Linear(8, 4), Vectors(8), strategy=FineTune())
    assert "divided by std, of the first data where they are not given" in caplog.text
    assert "std=(1.0,) * dim, limit=None" in caplog.text


def test_the_encoder_of_pairs_is_adopted_too(blobs) -> None:
    rows = blobs(50)
    for given in (network(), network):
        learner = Learner.from_encoder(given, Pairs(PLAIN), seen=(rows, rows + 0.1))
        with torch.no_grad():
            torch.testing.assert_close(learner.embed(rows), network().eval()(rows))


def test_a_domain_that_makes_its_encoder_itself_takes_no_other(blobs) -> None:
    class Own(Vectors):
        def encoder(self) -> nn.Module:
            return network()

    with pytest.raises(
        TypeError, match=r"Own makes its encoder itself .* state_dict\(\) as weights"
    ):
        Learner.from_encoder(network, Own(8), seen=blobs(20))
    weights = {name: value + 1 for name, value in network().state_dict().items()}
    learner = Learner.from_encoder(None, Own(8), seen=blobs(20), weights=weights)
    assert torch.equal(learner.backbone[0].weight, weights["0.weight"])


def test_an_adopted_encoder_is_updated_and_the_users_module_is_not(blobs) -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    learner = Learner.from_encoder(module, PLAIN, seen=blobs(50), strategy=SHORT)
    assert learner.drift(blobs(20) + 2.0).new == 20
    outcome = learner.update(blobs(20) + 2.0)
    assert learner.version == 2
    assert outcome.loss.after.all < outcome.loss.before.all
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_an_adopted_encoder_keeps_old_items_neighbours(tmp_path) -> None:
    """Nothing tells whether it knows more than views can teach; a loss that falls does not."""
    old, new = torch.randn(160, 8, generator=Generator().manual_seed(0)).split([120, 40])
    module = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
    wild = ICL(max_epochs=4, lr=0.1, protection=None)  # 0.48 to 0.61 stay, over ten seeds
    stayed = {}
    for bound in (None, 0.85):
        learner = Learner.from_encoder(module, PLAIN, seen=old, keep_neighbours=bound)
        before = learner.embed(old)
        outcome = learner.update(new, strategy=wild)
        stayed[bound] = neighbours_kept(before, learner.embed(old))[2]
    assert stayed[None] < 0.8
    assert stayed[0.85] >= 0.85
    assert outcome.neighbours == pytest.approx(stayed[0.85])
    assert outcome.kept in (0.0, 0.0625, 0.125, 0.25, 0.5)
    assert f"old items keep {stayed[0.85]:.0%} of their nearest items" in str(outcome)
    learner.save(tmp_path / "bounded")
    again = Learner.load(tmp_path / "bounded", domain=replace(PLAIN, encoder=module))
    assert again.keep_neighbours == 0.85


def test_a_change_of_which_no_part_leaves_neighbours_in_place_is_reverted(blobs) -> None:
    old, new = blobs(120), blobs(40, seed=1)
    learner = Learner.from_encoder(network(), PLAIN, seen=old, keep_neighbours=0.999)
    before = learner.embed(old)
    outcome = learner.update(new, strategy=ICL(max_epochs=2, lr=0.3))
    assert outcome.reverted
    assert "reverted: it did more harm than good" in str(outcome)
    torch.testing.assert_close(learner.embed(old), before)
    assert len(learner.memory) == 160


def test_neighbours_are_of_a_sample_that_says_something_whatever_is_evaluated(
    blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def kept(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, float]:
        looked_at.append(len(before))
        return neighbours_kept(before, after)

    monkeypatch.setattr(call, "neighbours_kept", kept)
    for count, evaluated in ((120, 8), (600, 10_000)):
        learner = Learner.from_encoder(network(), PLAIN, seen=blobs(count))
        learner.evaluation_sample = evaluated
        assert learner.update(blobs(40, seed=1), strategy=SHORT).neighbours is not None
    assert {*looked_at} == {120, 512}


def test_an_encoder_without_gradients_is_adopted_and_used(blobs) -> None:
    class Constant(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(rows)

    learner = Learner.from_encoder(Constant(8, 4), PLAIN, seen=blobs(40))
    assert learner.update(blobs(20, seed=1), strategy=NoUpdate()).steps == 0
    assert learner.embed(blobs(3)).shape == (3, 4)
    with pytest.raises(DomainError, match="with gradients"):
        learner.update(blobs(20, seed=2), strategy=SHORT)
    with pytest.raises(DomainError, match="with gradients"):
        Learner(replace(PLAIN, encoder=Constant(8, 4))).fit(blobs(40))


class Masked(nn.Linear):
    """With a causal mask as transformers have it, saved or not."""

    def __init__(self, persistent: bool) -> None:
        super().__init__(8, 8)
        mask = torch.full((4, 4), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        words = super().forward(rows).view(-1, 4, 2)
        return ((words @ words.mT + self.mask).softmax(dim=2) @ words).flatten(1)


@pytest.mark.parametrize("persistent", [True, False])
def test_parts_of_a_change_have_the_mask_of_their_encoder(
    blobs, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    losses, measured = [], call.Call._measured_after

    def noted(self: call.Call, encoder: nn.Module) -> call.Measured:
        found = measured(self, encoder)
        losses.append(found.loss.all)
        return found

    monkeypatch.setattr(call.Call, "_measured_after", noted)
    learner = Learner.from_encoder(Masked(persistent), PLAIN, seen=blobs(60), keep_neighbours=0.999)
    learner.update(blobs(20, seed=1), strategy=ICL(max_epochs=2, lr=0.3))
    assert len(losses) > 1
    assert torch.tensor(losses).isfinite().all()


def test_the_bound_is_for_what_was_trained_elsewhere(blobs) -> None:
    rows = blobs(40)
    assert Learner(PLAIN).keep_neighbours is None
    adopted = Learner.from_encoder(network, PLAIN, seen=rows)
    assert adopted.keep_neighbours == 0.6
    assert (
        Learner.from_encoder(network, PLAIN, seen=rows, keep_neighbours=None)
        .update(rows, strategy=SHORT)
        .neighbours
        is None
    )
    # Nor is it for an encoder that is trained from scratch, or looked at by labels.
    labels = [0, 1] * 20
    for how in ({"strategy": Retrain(max_epochs=1)}, {"probe": Probe(rows, labels)}):
        assert adopted.update(rows, **{"strategy": SHORT, **how}).neighbours is None
    with pytest.raises(ValueError, match=r"keep_neighbours must be in \(0, 1\), .* no bound"):
        Learner(PLAIN, keep_neighbours=1.5)


def test_sentence_models_are_updated_by_small_steps(blobs) -> None:
    model = pretrained("folder", pooling="mean")
    for domain in (Text(encoder=model), Pairs(Text(encoder=model))):
        assert adopted_settings(domain)["strategy"] == ICL.small_steps()
    chosen = ICL.small_steps(lr=1e-5, max_epochs=3)
    assert (chosen.optimizer, chosen.lr) == (Adam(), Fixed(1e-5, warmup=0.1))
    assert (chosen.max_epochs, chosen.emphasis) == (3, ICL().emphasis)
    for domain in (Text(), Images(8, encoder=model), PLAIN):
        assert "strategy" not in adopted_settings(domain)
    own = Learner.from_encoder(network, PLAIN, seen=blobs(20), strategy=SHORT)
    assert own.strategy == SHORT
    assert Learner.from_encoder(network, PLAIN, seen=blobs(20), strategy=None).strategy == ICL()


def test_a_sample_stands_for_what_was_seen(blobs) -> None:
    learner = Learner.from_encoder(
        network(), PLAIN, seen=blobs(50), seen_count=1000, strategy=SHORT, seed=1
    )
    assert learner.memory.policy == Reservoir()
    assert (learner.memory.seen, len(learner.memory)) == (1000, 50)
    outcome = learner.update(blobs(400) + 1.0, strategy=NoUpdate())
    assert outcome.growth_ratio == pytest.approx(400 / 1400)
    assert learner.memory.seen == 1400
    # One in twenty of the new ones stays, as of the old ones: 20 of 400, give or take 5 spreads.
    assert 50 <= len(learner.memory) <= 50 + 20 + 22
    assert set(range(50)) <= set(learner.memory.ids.tolist())


def test_a_limited_memory_of_a_sample_stays_a_sample(blobs) -> None:
    learner = Learner.from_encoder(
        network(), PLAIN, seen=blobs(50), seen_count=100, memory=Reservoir(items=60)
    )
    learner.update(blobs(100), strategy=NoUpdate())
    assert len(learner.memory) == 60
    old = int((learner.memory.ids < 50).sum())
    assert 5 <= old <= 50  # half of what was seen is old: 30, give or take 6 spreads
    queue = Learner.from_encoder(
        network(), PLAIN, seen=blobs(50), seen_count=100, memory=Queue(items=60)
    )
    queue.update(blobs(20), strategy=NoUpdate())
    assert queue.memory.ids.tolist() == list(range(10, 70))


def test_a_saved_sample_stands_for_as_many(blobs, tmp_path) -> None:
    learner = Learner.from_encoder(network(), PLAIN, seen=blobs(30), seen_count=90)
    learner.save(tmp_path / "saved")
    domain = replace(PLAIN, encoder=network)
    again = Learner.load(tmp_path / "saved", domain=domain)
    assert again.memory.seen == 90
    assert again.memory.threshold == pytest.approx(1 / 3)
    assert torch.equal(again.embed(blobs(5)), learner.embed(blobs(5)))


def test_samples_that_make_no_sense_are_refused(blobs) -> None:
    with pytest.raises(ValueError, match="seen_count must count every old item, got 10 for 50"):
        Learner.from_encoder(network(), PLAIN, seen=blobs(50), seen_count=10)
    with pytest.raises(ValueError, match=r"KeepAll\(\) cannot continue: use Reservoir"):
        Learner.from_encoder(network(), PLAIN, seen=blobs(50), seen_count=100, memory=KeepAll())
    with pytest.raises(ValueError, match="seen_count=100 is the number that seen stands for"):
        Learner.from_encoder(network(), PLAIN, seen_count=100)


def test_a_failed_adoption_leaves_the_memory_as_it_was(blobs) -> None:
    learner = Learner(replace(PLAIN, encoder=network), memory=Reservoir())
    memory, unreadable = learner.memory, Probe(blobs(4)[:, :3], [0, 1, 0, 1])
    with pytest.raises(ValueError, match="8"):
        learner.adopt(blobs(50), seen_count=1000, probe=unreadable)
    assert not learner.fitted
    assert learner.memory is memory


def test_without_old_items_updates_need_none_and_the_cost_is_said(blobs, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        learner = Learner.from_encoder(network(), PLAIN, head="mlp")
    assert "what they do to old items is not measured" in caplog.text
    assert learner.memory.seen == 0
    with pytest.raises(ValueError, match="drift is measured against at least"):
        learner.drift(blobs(20))
    with pytest.raises(ValueError, match=r"at least 2 old items in memory, got 0.*Distill\(\)"):
        learner.update(blobs(20), strategy=ICL())
    outcome = learner.update(blobs(40), strategy=FineTune(max_epochs=1))
    assert outcome.change_ratio is None
    assert learner.encoder.width == 4  # the head came with the first items
    assert learner.update(blobs(20), strategy=SHORT).growth_ratio == pytest.approx(1 / 3)


def test_statistics_are_measured_on_what_was_seen(blobs) -> None:
    rows = 3.0 * blobs(200) + 7.0
    learner = Learner.from_encoder(network(), Vectors(8), seen=rows)
    assert torch.tensor(learner.domain.mean) == pytest.approx(rows.mean(dim=0), abs=2.0)


class Giving(nn.Module):
    """Gives what it is told, made of its input's 8 features."""

    def __init__(self, output) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.output = output

    def forward(self, rows):
        return self.output(self.linear(rows))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            lambda x: (x, x),
            r"got a tuple of 2: name what an embedding is, Pooled\(encoder, output=",
        ),
        (lambda x: {"last": x}, r"got a dict of last: name .* Pooled\(encoder, output="),
        (lambda x: x[:, None, :], r"shape \(\d, 1, 4\): name .*, Pooled\(encoder, pooling="),
        (lambda x: x[:1], r"must give \(\d, d\) embeddings"),
        (lambda x: x / 0.0, "gave NaN or infinite embeddings"),
        (lambda x: x.item(), "the encoder cannot take a batch"),
    ],
)
def test_encoders_that_give_no_vectors_are_refused(blobs, output, message) -> None:
    with pytest.raises(DomainError, match=message):
        Learner.from_encoder(Giving(output), PLAIN, seen=blobs(20))


WORDS = Text().collect(["one two three", "four five", "six"] * 4)


@pytest.mark.parametrize(
    "domain",
    [PLAIN, Pairs(PLAIN), Images(8, 1), Graphs(features=2), Text().fit_statistics(WORDS)],
)
def test_without_items_an_encoder_is_tried_on_some_of_the_domains_own(domain) -> None:
    with pytest.raises(DomainError, match="the encoder cannot take a batch of views"):
        Learner.from_encoder(nn.Linear(5, 4), domain)


@pytest.mark.parametrize(
    ("output", "settings"),
    [
        (lambda x: (x * 2, x), {"output": 1}),
        (lambda x: {"other": x * 2, "last": x}, {"output": "last"}),
        (lambda x: torch.stack([x - 1, x + 1], dim=1), {"pooling": "mean"}),
        (lambda x: torch.stack([x, x - 1], dim=1), {"pooling": "max"}),
        (lambda x: torch.stack([x, x - 1], dim=1), {"pooling": "first"}),
        (lambda x: x[:, :, None, None].expand(-1, -1, 2, 2), {"pooling": "mean"}),
        (lambda x: (x[:, None],), {"output": 0, "pooling": "mean"}),
    ],
)
def test_pooling_that_is_named_makes_vectors(blobs, output, settings) -> None:
    encoder, rows = Giving(output), blobs(20)
    learner = Learner.from_encoder(Pooled(encoder, **settings), PLAIN, seen=rows)
    with torch.no_grad():
        torch.testing.assert_close(learner.embed(rows), encoder.linear(rows))


def test_an_output_that_is_not_there_is_refused_with_those_that_are(blobs) -> None:
    encoder = Pooled(Giving(lambda x: {"last": x}), output="first")
    with pytest.raises(DomainError, match=r"has no output 'first': it has last"):
        Learner.from_encoder(encoder, PLAIN, seen=blobs(20))
    with pytest.raises(ValueError, match="pooling must be 'mean'"):
        Pooled(network(), pooling="sum")


def test_torchvisions_and_timms_weights_fit_resnet18(tmp_path) -> None:
    source = ResNet18()
    extras = {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    for prefix in ("", "module.", "module.backbone."):
        names = {prefix + name: value for name, value in {**source.state_dict(), **extras}.items()}
        names["projector.0.weight"] = torch.zeros(3)
        if not prefix:
            del names["projector.0.weight"], names["bn1.num_batches_tracked"]
        save_file(names, tmp_path / "weights.safetensors")
        found = load_weights(ResNet18(), tmp_path / "weights.safetensors")
        assert torch.equal(found.layer4[1].conv2.weight, source.layer4[1].conv2.weight)


def test_of_two_prefixes_that_fit_the_user_chooses() -> None:
    query, key = nn.Linear(3, 2), nn.Linear(3, 2)

    def under(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
        return {prefix + name: value for name, value in module.state_dict().items()}

    both = {**under("encoder_k.", key), **under("encoder_q.", query)}
    with pytest.raises(ValueError, match=r"under 'encoder_k\.' and under 'encoder_q\.': choose"):
        load_weights(nn.Linear(3, 2), both)
    found = load_weights(nn.Linear(3, 2), both, prefix="encoder_q.")
    assert torch.equal(found.weight, query.weight)
    with pytest.raises(ValueError, match="2 missing"):
        load_weights(nn.Linear(3, 2), both, prefix="encoder.")
    same = {**under("a.", query), **under("b.", query)}
    assert torch.equal(load_weights(nn.Linear(3, 2), same).weight, query.weight)
    shapes = {**under("large.", nn.Linear(3, 9)), **under("small.", query)}
    assert torch.equal(load_weights(nn.Linear(3, 2), shapes).weight, query.weight)


def test_weights_that_do_not_fit_are_named_with_the_nearest(tmp_path) -> None:
    good = ResNet18().state_dict()
    wrong = {name.replace("layer1.0", "layer1_0"): value for name, value in good.items()}
    with pytest.raises(ValueError, match="10 missing") as error:
        load_weights(ResNet18(), wrong)
    with pytest.raises(ValueError, match=r"7×7, as encoder='resnet18-standard' has it at any size"):
        load_weights(Images(32, encoder="resnet18").encoder(), ResNet18().state_dict())
    assert "10 missing: layer1.0.conv1.weight (the file has layer1_0.conv1.w" in str(error.value)
    assert "12 unknown: layer1_0.conv1.weight (the encoder has layer1.0.conv1" in str(error.value)
    with pytest.raises(ValueError, match=r"\(64, 3, 7, 7\), the encoder's is \(64, 3, 3, 3\)"):
        Learner.from_encoder("resnet18", Images(32), weights=good)
    (tmp_path / "weights.pt").write_bytes(b"PK something else")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_weights(ResNet18(), tmp_path / "weights.pt")
    save_file(good, tmp_path / "half.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "half.safetensors").read_bytes()[:999])
    with pytest.raises(
        ValueError, match=r"no complete safetensors file .*: copy or write it again"
    ):
        load_weights(ResNet18(), tmp_path / "half.safetensors")
    with pytest.raises(FileNotFoundError, match=r"give a \.safetensors file"):
        load_weights(ResNet18(), tmp_path / "nothing.safetensors")
    with pytest.raises(TypeError, match=r"a \.safetensors file or a state dict, got a Tensor"):
        load_weights(ResNet18(), torch.zeros(3))  # type: ignore[arg-type]


def test_a_function_that_makes_no_encoder_says_why(blobs) -> None:
    def broken() -> nn.Module:
        raise OSError("no weights on disk")

    for function, message in (
        (broken, "failed: OSError: no weights on disk"),
        (nn.Linear, "must make one without arguments, and failed: TypeError: Linear"),
    ):
        with pytest.raises(ValueError, match=message):
            Learner.from_encoder(function, PLAIN, seen=blobs(9))


def test_a_checkpoint_is_no_state_dict_and_the_part_that_is_one_is_named() -> None:
    checkpoint = {"optimizer": {"state": {}}, "model": network().state_dict(), "epoch": 5}
    with pytest.raises(ValueError, match=r"give the state dict in it, \['model'\]"):
        load_weights(network(), checkpoint)
