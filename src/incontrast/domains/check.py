"""Contract checks for people who bring their own kind of data."""

import copy
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain, Part
from incontrast.heads import EncoderWithHead
from incontrast.randomness import seeded
from incontrast.streams import pick

Context = AbstractContextManager[Any]  # that may be entered again
NO_CONTEXT = nullcontext()


class DomainError(ValueError):
    """A domain does not keep its contract."""


def check_domain(domain: Domain, items: Any) -> None:
    """Try every part of a domain on some items and raise at the first thing that is wrong.

    ``items`` is what its ``collect`` takes; at least 4 items.

    Raises:
        DomainError: Says which method broke which rule, and what it gave.
    """
    collection = domain.collect(items)
    _check_collection(collection)
    rolled = None
    if isinstance(items, list | np.ndarray | Tensor) and len(items) == len(collection):
        rolled = domain.collect(pick(items, torch.arange(len(items)).roll(-1)))
    domain = domain.fit_statistics(collection)
    _rule(isinstance(domain, Domain), "fit_statistics() must return a domain, got ", domain)
    with seeded(0, "check"):
        encoder, other = domain.encoder(), domain.encoder()
    for made in (encoder, other):
        _rule(isinstance(made, nn.Module), "encoder() must return a torch.nn.Module, got ", made)
    _rule(
        {*map(id, encoder.parameters())}.isdisjoint(map(id, other.parameters())),
        "encoder() must make a new module at every call: two calls gave the same weights, so "
        "that training one encoder would change another",
    )
    check_views(domain, collection, encoder)
    trial = Trial(encoder, domain)
    _check_items(trial, collection, rolled)
    _check_randomness(trial, collection)
    _check_faster_views(trial, collection)
    _check_bytes(trial, collection)


def check_views(
    domain: Domain,
    collection: Collection,
    encoder: nn.Module,
    autocast: Context = NO_CONTEXT,
    *,
    learns: bool = True,
) -> None:
    """Make views of a few items and embed them: what training does at every step.

    ``autocast`` is what the encoder runs in; one that never ``learns`` needs no gradients.

    Raises:
        DomainError: A view lost items, or the encoder does not give (n, d) finite embeddings, d
            being the same for every batch and in training mode, or none that it can learn from.
    """
    name = "the encoder with its head" if isinstance(encoder, EncoderWithHead) else "the encoder"
    trial = Trial(encoder, domain, name, autocast)
    count = min(len(collection), 4)
    taken = collection.take(torch.arange(count))
    _check_batch(taken, "what take() gives")
    batch = taken if domain.views_on_cpu else taken.to(trial.device)
    draws = Generator(getattr(batch, "device", "cpu"))
    views = domain.views(batch, draws.manual_seed(0))
    pair = isinstance(views, tuple) and len(views) == 2
    _rule(pair, "views() must return two batches as a tuple, got ", views)
    for which, view in zip(("first", "second"), views, strict=True):
        _check_batch(view, f"the {which} view")
        _rule(
            len(view) == count,
            f"views() must keep the number of items: {count} went in, {len(view)} are in the "
            f"{which} view",
        )
    joined = domain.join(views)
    _rule(
        len(joined) == 2 * count,
        f"join() must hold the items of all batches: 2·{count} went in, {len(joined)} came out",
    )
    width = trial.embed(joined, 2 * count, "of views").shape[1]
    items = trial.embed_items(batch)
    one = trial.embed_items(collection.take(torch.arange(1)).to(trial.device))
    twin = Trial(copy.deepcopy(encoder), domain, name, autocast)  # its BatchNorm may learn from it
    trained = twin.embed(joined, 2 * count, "of views in training mode", training=True)
    for what, found in (("a batch", items), ("one item", one), ("training mode", trained)):
        _rule(
            found.shape[1] == width,
            f"{name} must give vectors of one width, got {width} numbers for {2 * count} views "
            f"and {found.shape[1]} for {what}, {tuple(found.shape)}: pool over what varies, "
            "and give the same in training and in evaluation mode",
        )
    trains = learns and any(p.requires_grad for p in encoder.parameters())
    _rule(
        trained.requires_grad or not trains,
        f"{name} must give embeddings with gradients: its weights cannot learn from them "
        "(detach() or no_grad() in its forward()?)",
    )


def width_of(
    encoder: nn.Module,
    domain: Domain,
    collection: Collection,
    name: str = "the encoder",
    autocast: Context = NO_CONTEXT,
) -> int:
    """d: dimensions of the embeddings of an encoder, which messages call by its name."""
    trial = Trial(encoder, domain, name, autocast)
    batch = collection.take(torch.arange(min(len(collection), 2)))
    return trial.embed_items(batch.to(trial.device)).shape[1]


@dataclass(frozen=True)
class Trial:
    """An encoder that is tried on batches of a domain; messages call it by its name."""

    encoder: nn.Module
    domain: Domain
    name: str = "the encoder"
    autocast: Context = NO_CONTEXT

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.encoder.parameters()), torch.device("cpu"))

    def embed_items(self, batch: Any) -> Tensor:
        prepared = self.domain.prepare(batch)
        _check_batch(prepared, "what prepare() gives")
        return self.embed(prepared, len(batch), "of prepared items")

    def embed_all(self, items: Collection) -> Tensor:
        return self.embed_items(items.take(torch.arange(len(items))))

    def embed_views(self, batch: Any, seed: int) -> Tensor:
        views = self.domain.views(batch, Generator().manual_seed(seed))
        return self.embed(self.domain.join(views), 2 * len(batch), "of views")

    def embed(self, batch: Any, count: int, what: str, *, training: bool = False) -> Tensor:
        before = self.encoder.training
        self.encoder.train(training)
        try:
            with self.autocast, torch.set_grad_enabled(training):
                result: Any = self.encoder(batch.to(self.device))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise DomainError(f"{self.name} cannot take a batch {what}: {error}") from error
        finally:
            self.encoder.train(before)
        rows = isinstance(result, Tensor) and result.dim() == 2 and result.shape[0] == count
        rule = f"{self.name} must give ({count}, d) embeddings {what}, got "
        _rule(rows, rule, result, _remedy(result))
        rule = f"{self.name} must give embeddings of floating-point numbers {what}, got "
        remedy = f" of {result.dtype}: give its output as .float()"
        _rule(result.is_floating_point() and result.shape[1] > 0, rule, result, remedy)
        _rule(
            bool(torch.isfinite(result).all()),
            f"{self.name} gave NaN or infinite embeddings {what}: look for extreme values in "
            "the data, for NaN in its weights, or for a division by zero",
        )
        return result  # type: ignore[no-any-return]


def _check_batch(batch: Any, name: str) -> None:
    _rule(
        hasattr(batch, "__len__") and hasattr(batch, "to"),
        f"a batch must have a length, its number of items, and to(device): {name} is ",
        batch,
        "; use a tensor, or a class with both methods",
    )


def _check_collection(collection: Collection) -> None:
    methods = ("__len__", "take", "select", "extend", "sizes")
    if missing := [name for name in methods if not hasattr(collection, name)]:
        advice = f", which has no {missing[0]}(): use TensorCollection, or see Collection"
        _rule(False, "collect() must return a collection, got ", collection, advice)
    count = len(collection)
    _rule(count >= 4, f"give check_domain at least 4 items, got {count}")
    for indices in (torch.tensor([2, 0, 2]), torch.arange(count)):
        taken = collection.take(indices)
        _check_batch(taken, "what take() gives")
        asked, given = len(indices), len(taken)
        rule = f"take() must give one item per index: {asked} asked for, {given} given"
        _rule(asked == given, rule)
    chosen = collection.select(torch.tensor([1, 3]))
    _rule(len(chosen) == 2, "select() must give a collection of the items asked for")
    twice = len(collection.extend(collection)) == 2 * count and len(collection) == count
    _rule(twice, "extend() must give a new collection with the items of both")
    sizes: Any = collection.sizes()
    right = getattr(sizes, "shape", None) == (count,) and sizes.dtype == torch.int64
    _rule(right, "sizes() must give the bytes of each item, as (n,) int64")
    for name in ("nbytes", "background"):
        plain = hasattr(collection, name) and not callable(getattr(collection, name))
        _rule(plain, f"a collection must have {name}, as an attribute or a property")


def _check_items(trial: Trial, collection: Collection, rolled: Collection | None) -> None:
    """Whether all methods but views give the items that were asked for, in that order."""
    domain, every = trial.domain, torch.arange(len(collection))
    order, chosen = torch.tensor([2, 0, 2]), torch.tensor([3, 1])
    batch = collection.take(every)
    whole = trial.embed_items(batch)
    _rule(
        torch.equal(whole, trial.embed_items(batch)),
        "prepare() and the encoder must give the same for the same batch: one of them draws at "
        "random, or changes what it is given",
    )
    _rule(
        not bool((whole == whole[:1]).all()),
        "all items have the same embedding: give items that differ, or look at the encoder",
    )
    _check_close(
        trial.embed_items(collection.take(order)),
        whole[order],
        "take() must give the items that were asked for, in that order; and an embedding must "
        "depend on its item alone, not on others of its batch",
    )
    selected = collection.select(chosen)
    rule = "select() must keep the items that were asked for, in that order"
    _check_close(trial.embed_all(selected), whole[chosen], rule)
    rule = "extend() must give its own items first, then those of the other collection"
    both = collection.extend(selected)
    _check_close(trial.embed_all(both), torch.cat([whole, whole[chosen]]), rule)
    joined = domain.join([collection.take(part) for part in every.tensor_split(3)])
    rule = "join() must hold the items of all batches in their order"
    _check_close(trial.embed_items(joined), whole, rule)
    kept = domain.materialise(collection, chosen)
    rule = "materialise() must give the items that were asked for, in that order"
    _rule(len(kept) == 2, rule)
    _check_close(trial.embed_all(kept), whole[chosen], rule)
    if rolled is not None:
        rule = (
            "collect() must give the items that it is given, in their order, and nobody may change "
            "them: the same items in another order became others"
        )
        _check_close(trial.embed_all(rolled), whole.roll(-1, 0), rule)
    try:
        json.dumps(domain.differences(batch, batch) | {})
    except TypeError as error:
        raise DomainError(f"differences() must give a dict that JSON can hold: {error}") from error


def _check_randomness(trial: Trial, collection: Collection) -> None:
    batch = collection.take(torch.arange(len(collection)))
    before = trial.embed_items(batch)
    first = trial.embed_views(batch, 0)
    for kept, rule in (
        (
            torch.equal(before, trial.embed_items(batch)),
            "views() must not change its input: the batch was another one after it",
        ),
        (
            torch.equal(first, trial.embed_views(batch, 0)),
            "views() must draw from its generator alone: the same seed gave other views",
        ),
        (
            not torch.equal(first, trial.embed_views(batch, 1)),
            "views() must be random: two seeds gave the same views",
        ),
        (
            not torch.equal(*first.chunk(2)),
            "views() must draw two different views: both are the same",
        ),
    ):
        _rule(kept, rule)
    trial.embed_views(collection.take(torch.arange(1)), 0)  # as the last batch may have one item


def _check_faster_views(trial: Trial, collection: Collection) -> None:
    """Whether methods that a domain need not have give what ``views`` gives."""
    domain, count, places = trial.domain, len(collection), torch.arange(len(collection))
    batch = collection.take(places)
    expected = trial.embed_views(batch, 0)

    def check(name: str, joined: Any, expected: Tensor) -> None:
        found = trial.embed(joined, len(expected), f"of {name}()")
        _check_close(found, expected, f"{name}() must give what views() gives, by the same draws")

    def draws() -> Generator:
        return Generator().manual_seed(0)

    check("joined_views", domain.joined_views(batch, draws()), expected)
    row = domain.views_in_a_row([[(collection, places)]] * 2, [draws(), draws()])
    for joined in row or ():
        check("views_in_a_row", joined, expected)
    if type(domain).views_of_part is not Domain.views_of_part:
        own = torch.arange(2, count)
        part = Part(collection.take(own), 2, [(collection, places)], torch.device("cpu"))
        joined = domain.join(domain.views_of_part(part, draws()))
        check("views_of_part", joined, expected[torch.cat([own, count + own])])


def _check_bytes(trial: Trial, collection: Collection) -> None:
    domain, indices = trial.domain, torch.arange(len(collection))
    blobs = domain.pack(collection, indices)
    whole = len(blobs) == len(indices) and all(isinstance(blob, bytes) for blob in blobs)
    _rule(whole, "pack() must give the bytes of each item")
    again = domain.unpack(blobs)
    counts = f"{len(indices)} packed, {len(again)} read"
    _rule(len(again) == len(indices), f"unpack() must give back every item: {counts}")
    same = torch.equal(trial.embed_all(collection), trial.embed_all(again))
    _rule(same, "unpack() must give back the items that pack() took")
    _rule(
        domain.pack(again, indices) == blobs and domain.pack(again, indices[2:3]) == blobs[2:3],
        "pack() must give the same bytes for the same item, by which a memory knows it, and of "
        "the items that were asked for",
    )


def _check_close(found: Tensor, expected: Tensor, rule: str) -> None:
    # Other batches may round otherwise.
    least = 1e-3 * float(expected.abs().max())
    _rule(found.shape == expected.shape and torch.allclose(found, expected, 1e-3, least), rule)


def _rule(kept: bool, rule: str, got: Any = ..., advice: str = "") -> None:
    """Raise unless a rule is kept; ``got`` is described behind it, if there is one."""
    if not kept:
        raise DomainError(rule + ("" if got is ... else _kind(got)) + advice)


def _remedy(value: Any) -> str:
    """What to do about an output that is not one vector per item."""
    tensors = isinstance(value, Tensor) and value.dim() in (3, 4)
    wanted = "pooling=..." if tensors else "output=..., pooling=..."
    usual = tensors or isinstance(value, tuple | list | Mapping)
    return f": name what an embedding is, Pooled(encoder, {wanted})" if usual else ""


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"
