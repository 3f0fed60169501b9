"""Texts: contract, tokens, views, encoders; training that is bitwise reproducible."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

import incontrast as ic
from incontrast.domains.text.collection import BETWEEN, TextCollection, TokenBatch
from incontrast.domains.text.encoders import NGrams, Transformer
from incontrast.domains.text.views import dropout_masks
from incontrast.training import resume

SUBJECTS = ("my card", "the transfer", "a refund", "this payment", "the app", "my account")
VERBS = ("has not arrived", "was declined", "is still pending", "does not work", "was charged")
ENDS = ("yet", "since yesterday, and nobody answers me", "again", "in Spain", "twice", "today?")
SENTENCES = [" ".join(parts) for parts in itertools.product(SUBJECTS, VERBS, ENDS)]
PLAIN: dict[str, Any] = {
    "crop": (1.0, 1.0),
    "delete": 0.0,
    "cut": 0.0,
    "shuffle": 0.0,
    "dropout": 0.0,
}


def fitted(**settings: Any) -> ic.Text:
    domain = ic.Text(**{"encoder": "transformer", "width": 32, **settings})
    return domain.fit_statistics(domain.collect(SENTENCES))


DOMAIN = cache(fitted)


def views(domain: ic.Text, seed: int = 0) -> tuple[TokenBatch, TokenBatch]:
    batch = domain.collect(SENTENCES).take(torch.arange(40))
    return domain.views(batch, Generator().manual_seed(seed))


def learner(**settings: Any) -> ic.Learner:
    domain = ic.Text(encoder="transformer", width=32)
    chosen = {
        "fit_strategy": ic.Retrain(max_epochs=2),
        "strategy": ic.ICL(max_epochs=1, epoch_steps=2),
    }
    return ic.Learner(domain, **{**chosen, **settings})


@pytest.mark.parametrize("encoder", ["transformer", "ngrams"])
@pytest.mark.parametrize("items", [SENTENCES, list(itertools.pairwise(SENTENCES))])
def test_the_domain_keeps_its_contract(encoder: str, items: Any) -> None:
    ic.check_domain(ic.Text(encoder=encoder, width=32), items)


def test_dropout_alone_makes_two_views() -> None:
    views = ic.TextViews(**{**PLAIN, "dropout": 0.1})
    ic.check_domain(ic.Text(encoder="transformer", width=32, views=views), SENTENCES)


def test_the_same_texts_give_the_same_tokeniser_and_no_update_changes_it() -> None:
    assert fitted() == fitted()
    model = learner()
    model.fit(SENTENCES[:100])
    before = model.domain
    model.update(["Guten Tag! 😀 Wo ist mein Geld?"] * 3 + SENTENCES[100:120])
    assert model.domain == before
    assert model.embed(["שלום עולם", "é", "a\0b"]).isfinite().all()


@pytest.mark.parametrize("encoder", ["transformer", "ngrams"])
def test_training_is_bitwise_reproducible(encoder: str) -> None:
    def embeddings() -> Tensor:
        strategies = {
            "fit_strategy": ic.Retrain(max_epochs=1),
            "strategy": ic.ICL(max_epochs=1, epoch_steps=2),
        }
        model = ic.Learner(ic.Text(encoder=encoder, width=32), seed=3, **strategies)
        model.fit(SENTENCES[:120])
        model.update(SENTENCES[120:])
        return model.embed(SENTENCES)

    assert torch.equal(embeddings(), embeddings())


def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", 1e9)

    class Interrupted(Exception):
        pass

    def interrupt(progress: ic.Progress) -> None:
        if progress.steps == 4:
            raise Interrupted

    whole = learner()
    whole.fit(SENTENCES)
    resumed = learner()
    with pytest.raises(Interrupted):
        resumed.fit(SENTENCES, checkpoint=tmp_path / "state", callbacks=[interrupt])
    resumed.fit(SENTENCES, checkpoint=tmp_path / "state")
    assert torch.equal(whole.embed(SENTENCES), resumed.embed(SENTENCES))


def test_a_learner_is_saved_with_its_tokeniser(tmp_path: Path) -> None:
    model = learner()
    model.fit(list(itertools.pairwise(SENTENCES)))
    model.save(tmp_path / "model")
    again = ic.Learner.load(tmp_path / "model")
    assert again.domain == model.domain
    assert torch.equal(again.embed(SENTENCES), model.embed(SENTENCES))
    again.update(SENTENCES[:20])
    assert again.memory.items.contents[0] == BETWEEN.join(text.encode() for text in SENTENCES[:2])


def test_a_meta_step_differentiates_twice() -> None:
    model = learner()
    model.fit(SENTENCES[:100])
    budget = ic.Budget(forward_passes=200)
    assert model.update(SENTENCES[100:], strategy=ic.ICL.paper(order=2), budget=budget).steps


def test_views_of_a_pair_are_of_its_two_texts() -> None:
    domain = fitted(views=ic.TextViews(**PLAIN))
    texts = domain.collect([("my card", "the transfer"), ("again", "today")])
    first, second = domain.views(texts.take(torch.arange(2)), Generator().manual_seed(0))
    for side, names in ((first, ["my card", "again"]), (second, ["the transfer", "today"])):
        expected = domain.prepare(domain.collect(names).take(torch.arange(2)))
        assert torch.equal(side.ids, expected.ids)


def words(domain: ic.Text, batch: TokenBatch) -> list[list[str]]:
    pieces = domain.tokeniser.pieces
    rows = zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)
    return ["".join(pieces[i] for i in ids[:n]).split("Ġ")[1:] for ids, n in rows]


def sentences(count: int = 40) -> list[list[str]]:
    return [text.lower().split() for text in SENTENCES[:count]]


def test_a_crop_is_a_span() -> None:
    domain = fitted(views=ic.TextViews(**{**PLAIN, "crop": (0.3, 0.7)}))
    for view in views(domain):
        for ids, length, whole in zip(
            view.ids.tolist(), view.lengths.tolist(), domain.prepare(_batch()).ids, strict=True
        ):
            span, row = ids[:length], whole.tolist()
            assert any(row[start : start + length] == span for start in range(len(row)))
            assert 0.3 <= length / sum(i != 0 for i in row) < 0.7 + 1 / 3


def _batch(count: int = 40) -> TextCollection:
    return ic.Text().collect(SENTENCES).take(torch.arange(count))


def test_shuffled_words_stay_whole_and_near() -> None:
    domain = fitted(views=ic.TextViews(**{**PLAIN, "shuffle": 2.0}))
    moved = 0
    for view in views(domain):
        for found, text in zip(words(domain, view), sentences(), strict=True):
            assert sorted(found) == sorted(text)
            moved += found != text
            places = {word: place for place, word in enumerate(text)}
            if len(places) == len(text):
                assert all(abs(places[word] - place) <= 2 for place, word in enumerate(found))
    assert moved


def test_deleted_tokens_and_cut_words_are_gone_in_their_share() -> None:
    whole = int(fitted().prepare(_batch()).lengths.sum())
    deleted = views(fitted(views=ic.TextViews(**{**PLAIN, "delete": 0.3})))
    left = sum(int(view.lengths.sum()) for view in deleted) / (2 * whole)
    assert 0.6 < left < 0.8
    domain = fitted(views=ic.TextViews(**{**PLAIN, "cut": 0.3}))
    cut = views(domain)
    masked = sum(int((view.ids == domain.tokeniser.mask).sum()) for view in cut) / (2 * whole)
    assert 0.2 < masked < 0.4


def test_a_view_is_never_empty() -> None:
    domain = fitted(views=ic.TextViews(crop=(0.01, 0.01), delete=0.98))
    for view in views(domain):
        assert view.lengths.min() == 1
        assert (view.ids[:, 0] != 0).all()


def test_little_of_the_buckets_is_padding() -> None:
    lengths = (torch.randn(4000, generator=Generator().manual_seed(0)) * 0.7 + 2.4).exp()
    lengths = lengths.long().clamp(1, 100)
    batch = TokenBatch(torch.ones(len(lengths), 100).long(), lengths)
    padded = sum(part.ids.numel() for _, part in batch.buckets())
    assert 1 - int(lengths.sum()) / padded < 0.15
    order = torch.cat([places for places, _ in batch.buckets()])
    assert torch.equal(order.sort().values, torch.arange(len(lengths)))


def test_padding_changes_no_embedding() -> None:
    domain = fitted()
    for name in ("transformer", "ngrams"):
        encoder = fitted(encoder=name).encoder()
        alone = encoder(domain.prepare(_batch(1)))
        among = encoder(domain.prepare(_batch(40)))[:1]
        torch.testing.assert_close(alone, among)


def test_the_transformer_is_torchs() -> None:
    torch.manual_seed(0)
    ours = Transformer(50, 8, 32, 1, 2, 0.0)
    for weights in ours.parameters():
        nn.init.normal_(weights, std=0.2)
    theirs = nn.TransformerEncoderLayer(32, 2, 128, 0.0, "gelu", batch_first=True, norm_first=True)
    [layer] = ours.layers
    state = {
        "self_attn.in_proj_weight": layer.inputs.weight,
        "self_attn.in_proj_bias": layer.inputs.bias,
        "self_attn.out_proj.weight": layer.outputs.weight,
        "self_attn.out_proj.bias": layer.outputs.bias,
        "linear1.weight": layer.feed[0].weight,
        "linear1.bias": layer.feed[0].bias,
        "linear2.weight": layer.feed[2].weight,
        "linear2.bias": layer.feed[2].bias,
        "norm1.weight": layer.attention_norm.weight,
        "norm1.bias": layer.attention_norm.bias,
        "norm2.weight": layer.feed_norm.weight,
        "norm2.bias": layer.feed_norm.bias,
    }
    theirs.load_state_dict(state)
    batch = TokenBatch(torch.randint(50, (5, 8)), torch.tensor([8, 3, 5, 1, 8]))
    x = theirs(ours.tokens(batch.ids) + ours.places.weight, src_key_padding_mask=~batch.mask)
    weights = ours.weights(batch.ids).exp() * batch.mask[:, :, None]
    expected = (x * weights).sum(1) / weights.sum(1)
    torch.testing.assert_close(ours(batch), expected)


def test_a_bag_is_a_weighted_mean_of_tokens() -> None:
    torch.manual_seed(0)
    bag = NGrams(50, 32, 0.0)
    nn.init.normal_(bag.weights.weight)
    batch = TokenBatch(torch.randint(50, (4, 6)), torch.tensor([6, 1, 3, 2]))
    for row, length, found in zip(batch.ids, batch.lengths, bag(batch), strict=True):
        weights = bag.weights(row[:length]).exp()
        mean = (weights * bag.tokens(row[:length])).sum(0) / weights.sum()
        torch.testing.assert_close(found, mean)


def test_dropout_follows_from_a_texts_seed_alone() -> None:
    seeds = torch.randint(2**62, (64,), generator=Generator().manual_seed(0))
    masks = dropout_masks(seeds, 3, 200, 0.25)
    assert masks.shape == (3, 64, 1, 200)
    assert torch.equal(masks[:, 5:7], dropout_masks(seeds[5:7], 3, 200, 0.25))
    left_out = (masks == 0).float()
    assert abs(left_out.mean() - 0.25) < 0.01
    assert (left_out.mean(dim=(2, 3)) - 0.25).abs().max() < 0.2
    assert masks.max() == pytest.approx(1 / 0.75)


def test_a_given_tokeniser_frames_every_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted({w for s in SENTENCES for w in s.split()})]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    domain = ic.Text(encoder="transformer", tokenizer=tmp_path, width=32, length=5)
    ic.check_domain(domain, SENTENCES)
    for batch in (domain.prepare(_batch(6)), *views(domain)):
        last = batch.ids.gather(1, batch.lengths[:, None] - 1)
        assert (batch.ids[:, 0] == 1).all()
        assert (last == 2).all()
        assert (batch.ids == 2).sum() == len(batch)
    with pytest.raises(ValueError, match=f"has {len(names)} tokens.*embeddings of 7"):
        ic.Text(tokenizer=tmp_path, encoder=lambda: nn.Embedding(7, 4)).encoder()


def test_tokenisers_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokeniser in .*give a tokenizer.json"):
        ic.Text(tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ValueError, match="tokeniser cannot be read"):
        ic.Text(tokenizer=tmp_path / "tokenizer.json")


def test_an_encoder_and_views_of_ones_own() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8192, 16)

        def forward(self, batch: TokenBatch) -> Tensor:
            mask = batch.mask[:, :, None]
            return (self.table(batch.ids) * mask).sum(1) / mask.sum(1)

    def backwards(batch: TokenBatch, generator: Generator) -> TokenBatch:
        kept = torch.randint(1, 3, (), generator=generator)
        return TokenBatch(batch.ids[:, :kept], batch.lengths.clamp(max=int(kept)))

    domain = ic.Text(encoder=Bag, views=backwards)
    model = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=1))
    model.fit(list(itertools.pairwise(SENTENCES)))
    assert model.embed(SENTENCES).shape == (len(SENTENCES), 16)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["fine", ""], "text 1 is empty or has spaces only: leave it out"),
        (["fine", " \n\t "], "text 1 is empty or has spaces only"),
        (["fine", b"caf\xe9"], "text 1 is not Unicode text that UTF-8 can hold .*decode it"),
        (["fine", "\ud800"], "text 1 is not Unicode text"),
        (["fine", 3], "text 1 must be a string or a pair of strings, got int"),
        ([("a", "b", "c")], "text 0 must be a string or a pair"),
        ([("a", None)], "text 0 must be a string or a pair of strings, got str, NoneType"),
        ([{"title": "a", "body": "b"}], "no field 'text' and 2 others .*choose among"),
        ([], "there are no texts"),
    ],
)
def test_what_is_no_text_is_refused_by_name(items: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ic.Text().collect(items)


def test_one_text_is_not_a_list_of_characters() -> None:
    with pytest.raises(TypeError, match="put a single text into a list"):
        ic.Text().collect("hello")
    with pytest.raises(ValueError, match="all 50 texts are the same"):
        learner().fit(["hello"] * 50)


def test_records_and_data_sets_of_texts() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[str, int]:
            return SENTENCES[index], 7

    records = [{"text": text, "label": 1} for text in SENTENCES[:3]]
    expected = ic.Text().collect(SENTENCES[:3]).contents
    assert ic.Text().collect(Rows()).contents == expected
    assert ic.Text().collect(records).contents == expected
    assert ic.Text().collect([text.encode() for text in SENTENCES[:3]]).contents == expected


def test_a_long_text_is_stored_whole_and_read_in_part() -> None:
    long = "word " * 2_000_000
    domain = fitted()
    texts = domain.collect([long, "x" * 10_000_000, *SENTENCES])
    assert domain.unpack(domain.pack(texts, torch.tensor([0]))).contents[0] == long.encode()
    assert domain.prepare(texts.take(torch.arange(2))).lengths.max() == domain.length


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
@settings(max_examples=50)
def test_any_text_is_kept_and_embedded(texts: list[str]) -> None:
    domain = DOMAIN()
    kept = domain.collect(texts)
    again = domain.unpack(domain.pack(kept, torch.arange(len(kept))))
    assert [content.decode() for content in again.contents] == texts
    batch = kept.take(torch.arange(len(kept)))
    assert domain.encoder()(domain.prepare(batch)).isfinite().all()
    for view in domain.views(batch, Generator().manual_seed(0)):
        assert (view.lengths >= 1).all()
        assert (view.ids < domain.tokeniser.size).all()


def test_duplicates_by_the_thousand_train() -> None:
    outcome = learner(fit_strategy=ic.Retrain(max_epochs=1)).fit(["hello"] * 1000 + SENTENCES[:40])
    assert outcome.loss.after.all < 10
