"""What check_domain accepts, and what it says about each rule that is broken."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from incontrast import (
    ICL,
    Domain,
    DomainError,
    Graphs,
    Images,
    Learner,
    Retrain,
    TensorCollection,
    Vectors,
    check_domain,
)

ITEMS = torch.randn(6, 4, generator=Generator().manual_seed(0))


class Noisy(Domain):
    """The least that a domain is: rows of four numbers, and noise for a view."""

    def collect(self, items: Any) -> TensorCollection:
        return TensorCollection(torch.as_tensor(items))

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        first, second = torch.randn(2, *batch.shape, generator=generator)
        return batch + first, batch + second

    def encoder(self) -> nn.Module:
        return nn.Linear(4, 3)


class Returns(nn.Module):
    """An encoder that makes something of the right embeddings."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.change = change

    def forward(self, batch: Tensor) -> Any:
        return self.change(self.linear(batch))


def broken(**methods: Any) -> Domain:
    """A whole domain but for these methods."""
    domain: Domain = type("Broken", (Noisy,), methods)()
    return domain


def collecting(**methods: Any) -> Domain:
    """A whole domain but for these methods of its collection."""
    collection = type("BrokenCollection", (TensorCollection,), methods)
    return broken(collect=lambda self, items: collection(items))


def noisy(batch: Tensor, generator: Generator | None) -> Tensor:
    return batch + torch.randn(batch.shape, generator=generator)


SHARED = nn.Linear(4, 3)
TRIANGLE = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])


@pytest.mark.parametrize(
    ("domain", "items"),
    [
        (Vectors(4), ITEMS),
        (Vectors(4, noise=0.0), ITEMS.tolist()),
        (Images(8, 1, encoder="small"), np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8)),
        (Images(16), torch.rand(4, 3, 16, 16, generator=Generator().manual_seed(0))),
        (Graphs(), [(TRIANGLE, torch.eye(3) * number) for number in range(1, 6)]),
    ],
)
def test_the_domains_of_the_library_pass(domain: Domain, items: Any) -> None:
    check_domain(domain, items)


def test_a_domain_of_one_s_own_needs_three_methods() -> None:
    check_domain(Noisy(), ITEMS)


def test_the_least_domain_can_be_learned_from() -> None:
    learner = Learner(Noisy(), fit_strategy=Retrain(max_epochs=1))
    learner.fit(ITEMS)
    assert learner.embed(ITEMS).shape == (6, 3)


def test_the_check_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    check_domain(Noisy(), ITEMS)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (
            lambda self, batch, generator: [noisy(batch, generator)] * 2,
            r"views\(\) must return two batches as a tuple, got a list of 2",
        ),
        (lambda self, batch, generator: batch, r"as a tuple, got a tensor of shape \(4, 4\)"),
        (lambda self, batch, generator: None, "as a tuple, got a NoneType"),
        (
            lambda self, batch, generator: (batch, noisy(batch, generator)[1:]),
            r"views\(\) must keep the number of items: 4 went in, 3 are in the second view",
        ),
        (
            lambda self, batch, generator: (noisy(batch, None), noisy(batch, None)),
            r"views\(\) must draw from its generator alone: the same seed gave other views",
        ),
        (
            lambda self, batch, generator: (batch, batch + 1),
            r"views\(\) must be random: two seeds gave the same views",
        ),
        (
            lambda self, batch, generator: (noisy(batch, generator),) * 2,
            r"views\(\) must draw two different views: both are the same",
        ),
        (
            lambda self, batch, generator: (batch.clamp_(min=0), noisy(batch, generator)),
            r"views\(\) must not change its input",
        ),
    ],
    ids=[
        *("list", "one batch", "nothing", "loses an item", "global generator"),
        *("not random", "the same twice", "in place"),
    ],
)
def test_broken_views(views: Any, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(broken(views=views), ITEMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda embeddings: embeddings[:, 0],
            r"the encoder must give \(8, d\) embeddings of views, got a tensor of shape \(8,\)",
        ),
        (lambda embeddings: embeddings.mean(dim=0)[None], r"got a tensor of shape \(1, 3\)"),
        (lambda embeddings: (embeddings, embeddings), "of views, got a tuple of 2"),
        (lambda embeddings: embeddings.log(), "the encoder gave NaN or infinite embeddings of v"),
        (lambda embeddings: embeddings / 0, "the encoder gave NaN or infinite embeddings of v"),
        (lambda embeddings: embeddings @ torch.ones(4, 1), "cannot take a batch of views: mat1"),
    ],
    ids=["one number", "one row", "two results", "NaN", "infinity", "another width"],
)
def test_broken_encoders(change: Any, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(broken(encoder=lambda self: Returns(change)), ITEMS)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {"join": lambda self, batches: batches[0]},
            r"join\(\) must hold the items of all batches: 2·4 went in, 4 came out",
        ),
        (
            {"prepare": lambda self, batch: batch[1:]},
            r"the encoder must give \(4, d\) embeddings of prepared items, got .* \(3, 3\)",
        ),
        (
            {"pack": lambda self, collection, indices: [b"everything"]},
            r"pack\(\) must give bytes for each item",
        ),
        (
            {"pack": lambda self, collection, indices: collection.take(indices).tolist()},
            r"pack\(\) must give bytes for each item",
        ),
        (
            {"unpack": lambda self, blobs: Noisy().unpack(blobs[::-1])},
            r"unpack\(\) must give back the items that pack\(\) took",
        ),
        (
            {"unpack": lambda self, blobs: Noisy().unpack(blobs[:-1])},
            r"unpack\(\) must give back the items that pack\(\) took",
        ),
    ],
    ids=[
        *("join", "prepare", "pack too few", "pack no bytes"),
        *("unpack in another order", "unpack too few"),
    ],
)
def test_other_broken_methods(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(broken(**methods), ITEMS)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {"take": lambda self, indices: self.data[indices.unique()]},
            r"take\(\) must give one item per index: 3 indices, 2 items",
        ),
        (
            {"select": lambda self, indices: self},
            r"select\(\) must give the items that were asked for",
        ),
        ({"extend": lambda self, other: self}, r"extend\(\) must give a new collection"),
        ({"sizes": lambda self: torch.tensor([4])}, r"sizes\(\) must give the bytes of each item"),
    ],
    ids=["take", "select", "extend", "sizes"],
)
def test_broken_collections(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(collecting(**methods), ITEMS)


def test_a_collection_that_extends_itself_in_place() -> None:
    def extend(self: TensorCollection, other: TensorCollection) -> TensorCollection:
        self.data = torch.cat([self.data, other.data])
        return self

    with pytest.raises(DomainError, match=r"extend\(\) must give a new collection"):
        check_domain(collecting(extend=extend), ITEMS)


def test_too_few_items_to_tell() -> None:
    with pytest.raises(DomainError, match="give check_domain at least 4 items, got 3"):
        check_domain(Noisy(), ITEMS[:3])


def test_a_learner_finds_broken_views_before_it_trains() -> None:
    domain = broken(views=lambda self, batch, generator: batch)
    with pytest.raises(DomainError, match="must return two batches as a tuple"):
        Learner(domain).fit(ITEMS)


class Narrow(nn.Module):
    """Works under autocast only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: Tensor) -> Any:
        return self.layer(batch.to(torch.bfloat16))


@pytest.mark.parametrize("head", [None, "linear"])
def test_a_learner_tries_the_encoder_in_its_precision(head: Any) -> None:
    dtypes = set()

    def views(self: Domain, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        dtypes.add((batch @ batch.T).dtype)  # which autocast would change
        return noisy(batch, generator), noisy(batch, generator)

    domain = broken(encoder=lambda self: Narrow(), views=views)
    fit = Retrain(max_epochs=1)
    learner = Learner(domain, head=head, fit_strategy=fit, precision="bfloat16")
    learner.fit(ITEMS)
    assert learner.embed(ITEMS).shape == (6, 3)
    assert dtypes == {torch.float32}
    with pytest.raises(DomainError, match="must have the same dtype"):
        Learner(domain, head=head, fit_strategy=fit).fit(ITEMS)


class Scaled(NamedTuple):
    """A batch of rows, each with a factor."""

    rows: Tensor
    factors: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: Any) -> Scaled:
        return Scaled(self.rows.to(device), self.factors.to(device))


class ScaledRows(TensorCollection):
    def take(self, indices: Tensor) -> Any:
        return Scaled(self.data[indices], torch.ones(len(indices), 1))


class ScaledDomain(Noisy):
    """Batches are named tuples, which torch itself takes apart in places."""

    def collect(self, items: Any) -> TensorCollection:
        return ScaledRows(torch.as_tensor(items))

    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        pair = super().views(batch.rows, generator)
        return Scaled(pair[0], batch.factors), Scaled(pair[1], batch.factors)

    def join(self, batches: Any) -> Scaled:
        return Scaled(*(torch.cat(column) for column in zip(*batches, strict=True)))

    def encoder(self) -> nn.Module:
        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

            def forward(self, batch: Scaled) -> Any:
                return self.layers(batch.rows * batch.factors)

        return Encoder()

    def pack(self, collection: Any, indices: Tensor) -> list[bytes]:
        return super().pack(TensorCollection(collection.data), indices)

    def unpack(self, blobs: Any) -> TensorCollection:
        return ScaledRows(super().unpack(blobs).data)  # type: ignore[attr-defined]


def test_a_named_tuple_can_be_a_batch() -> None:
    check_domain(ScaledDomain(), ITEMS)
    learner = Learner(
        ScaledDomain(), fit_strategy=Retrain(max_epochs=1), strategy=ICL(max_epochs=1)
    )
    learner.fit(ITEMS)
    learner.update(ITEMS[:3] + 1.0)
    assert learner.embed(ITEMS).shape == (6, 3)
    norm = learner.encoder.layers[1]
    assert norm.running_mean.abs().max() > 0.0


def test_a_plain_tuple_is_no_batch() -> None:
    domain = collecting(take=lambda self, indices: (self.data[indices], indices))
    message = r"a batch must have a length.*what take\(\) gives is a tuple of 2"
    with pytest.raises(DomainError, match=message):
        check_domain(domain, ITEMS)
    with pytest.raises(DomainError, match=message):
        Learner(domain).fit(ITEMS)
    pair = broken(views=lambda self, batch, generator: ((batch,), (batch,)))
    with pytest.raises(DomainError, match="the first view is a tuple of 1"):
        Learner(pair).fit(ITEMS)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (
            collecting(take=lambda self, indices: self.data[: len(indices)]),
            r"take\(\) must give the items that were asked for, in that order",
        ),
        (
            collecting(select=lambda self, indices: TensorCollection(self.data[: len(indices)])),
            r"select\(\) must give the items that were asked for",
        ),
        (
            collecting(
                extend=lambda self, other: TensorCollection(torch.cat([other.data, self.data]))
            ),
            r"extend\(\) must give a new collection: its own items first",
        ),
        (
            broken(join=lambda self, batches: torch.cat(list(batches)[::-1])),
            r"join\(\) must hold the items of all batches in their order",
        ),
        (
            broken(encoder=lambda self: SHARED),
            r"encoder\(\) must make a new module at every call",
        ),
        (broken(encoder=lambda self: abs), r"must return a torch\.nn\.Module, got a builtin_func"),
        (broken(fit_statistics=lambda self, items: None), "must return a domain, got a NoneType"),
        (
            broken(encoder=lambda self: Returns(lambda embeddings: embeddings.long())),
            r"floating-point numbers of views, got a tensor of shape \(8, 3\) of torch\.int64",
        ),
        (
            broken(encoder=lambda self: Returns(lambda embeddings: embeddings[:, :0])),
            r"got a tensor of shape \(8, 0\)",
        ),
    ],
)
def test_other_items_than_were_asked_for_and_encoders_that_are_shared(domain, message) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(domain, ITEMS)


class Drawing(nn.Module):
    """Draws at random in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, batch: Tensor) -> Any:
        return self.linear(batch + torch.randn_like(batch))


def centred(self: Domain, collection: Any) -> Domain:
    collection.data -= collection.data.mean(dim=0)
    return self


def stamped(self: Domain, collection: Any, indices: Tensor) -> list[bytes]:
    stamps = (b"%09d" % next(COUNTER) for _ in indices)
    return [b + stamp for b, stamp in zip(Noisy().pack(collection, indices), stamps, strict=True)]


COUNTER = count()
ALL = r"collect\(\) must give the items that it gets, in their order"
SAME = r"prepare\(\) and the encoder must give the same for the same batch"


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {"collect": lambda self, items: items},
            r"must return a collection, got a tensor .*extend",
        ),
        ({"collect": lambda self, i: TensorCollection(i.flip(0))}, ALL),
        ({"collect": lambda self, i: TensorCollection(i[i[:, 0].argsort()])}, ALL),
        ({"collect": lambda self, i: TensorCollection(i.mul_(2.0))}, ALL),
        ({"fit_statistics": centred}, ALL),
        ({"prepare": lambda self, batch: noisy(batch, None)}, SAME),
        ({"prepare": lambda self, batch: batch.mul_(1.1)}, SAME),
        ({"encoder": lambda self: Drawing()}, SAME),
        (
            {"prepare": lambda self, batch: self.views(batch, Generator())},
            r"what prepare\(\) gives is a tuple of 2",
        ),
        (
            {"prepare": lambda self, batch: batch - batch.mean(dim=0)},
            "an embedding must depend on its item alone",
        ),
        (
            {"encoder": lambda self: Returns(lambda embeddings: embeddings * 0)},
            "all items have the same embedding: give items that differ",
        ),
        (
            {"encoder": lambda self: Returns(lambda embeddings: embeddings.detach())},
            r"embeddings with gradients \(detach\(\) or no_grad\(\)",
        ),
        (
            {"views": lambda self, b, g: (noisy(b, g) / (len(b) > 1), noisy(b, g))},
            "NaN or infinite embeddings of views",
        ),
        (
            {"materialise": lambda self, collection, indices: collection},
            r"materialise\(\) must give the items that were asked for",
        ),
        (
            {"join": lambda self, batches: torch.cat([batches[-1], *batches[:-1]][::-1])},
            r"join\(\) must hold the items of all batches in their order",
        ),
        (
            {
                "pack": stamped,
                "unpack": lambda self, blobs: Noisy().unpack([b[:-9] for b in blobs]),
            },
            r"pack\(\) must give .* the same for the same item",
        ),
        (
            {"pack": lambda self, c, i: Noisy().pack(c, torch.arange(len(i)))},
            r"pack\(\) must give bytes for each item that was asked for",
        ),
        (
            {"joined_views": lambda self, batch, generator: torch.cat([batch, batch])},
            r"joined_views\(\) must give what views\(\) gives, by the same draws",
        ),
        (
            {"views_in_a_row": lambda self, rows, draws: [torch.zeros(12, 4) for _ in rows]},
            r"views_in_a_row\(\) must give what views\(\) gives",
        ),
        (
            {"views_of_part": lambda self, part, generator: self.views(part.batch, generator)},
            r"views_of_part\(\) must give what views\(\) gives",
        ),
        (
            {"differences": lambda self, old, new: {"summary": object()}},
            r"differences\(\) must give a dict that JSON can hold: .*object is not JSON",
        ),
    ],
)
def test_rules_that_training_alone_would_not_notice(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(broken(**methods), ITEMS.clone())


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"sizes": lambda self: [16] * len(self)}, r"sizes\(\) must .*, as \(n,\) int64"),
        ({"sizes": lambda self: torch.ones(len(self))}, r"sizes\(\) must .*, as \(n,\) int64"),
        ({"nbytes": lambda self: 5}, "must have nbytes, as an attribute or a property"),
    ],
)
def test_collections_of_another_type(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        check_domain(collecting(**methods), ITEMS)


class Ragged(TensorCollection):
    """Rows of different lengths, padded to the longest of a batch; column 0 has the lengths."""

    def take(self, indices: Tensor) -> Tensor:
        rows = super().take(indices)
        return rows[:, 1 : 1 + int(rows[:, 0].max())]


class Padded(Domain):
    def collect(self, items: Any) -> Ragged:
        return items if isinstance(items, Ragged) else Ragged(items)

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        noise = torch.rand(2, *batch.shape, generator=generator)
        return batch + noise[0], batch + noise[1]

    def encoder(self) -> nn.Module:
        return Means()


class Means(nn.Module):
    """The mean over all places, those of padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, batch: Tensor) -> Tensor:
        return batch.mean(dim=1, keepdim=True) * self.scale + self.scale


def test_an_embedding_that_depends_on_padding_is_named() -> None:
    lengths = torch.tensor([[3.0], [1.0], [5.0], [2.0], [4.0]])
    rows = torch.rand(5, 5, generator=Generator().manual_seed(0)) * (torch.arange(5) < lengths)
    with pytest.raises(DomainError, match="an item by itself has another one than in a batch"):
        check_domain(Padded(), torch.cat([lengths, rows], dim=1))


def test_batches_that_are_no_tensors_need_pack() -> None:
    class Lists(TensorCollection):
        def take(self, indices: Tensor) -> Any:
            return super().take(indices).tolist()

    with pytest.raises(TypeError, match=r"Noisy has no pack\(\) and unpack\(\), .* are list"):
        Noisy().pack(Lists(ITEMS), torch.arange(2))
