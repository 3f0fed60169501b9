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
    if not isinstance(domain, Domain):
        raise DomainError(f"fit_statistics() must return a domain, got {_kind(domain)}")
    with seeded(0, "check"):
        encoder, other = domain.encoder(), domain.encoder()
    _check_new(encoder, other)
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
    if not isinstance(views, tuple) or len(views) != 2:
        raise DomainError(f"views() must return two batches as a tuple, got {_kind(views)}")
    for which, view in zip(("first", "second"), views, strict=True):
        _check_batch(view, f"the {which} view")
        if len(view) != count:
            raise DomainError(
                f"views() must keep the number of items: {count} went in, "
                f"{len(view)} are in the {which} view"
            )
    joined = domain.join(views)
    if len(joined) != 2 * count:
        raise DomainError(
            f"join() must hold the items of all batches: 2·{count} went in, {len(joined)} came out"
        )
    width = trial.embed(joined, 2 * count, "of views").shape[1]
    items = trial.embed_items(batch)
    one = trial.embed_items(collection.take(torch.arange(1)).to(trial.device))
    twin = Trial(copy.deepcopy(encoder), domain, name, autocast)  # its BatchNorm may learn from it
    trained = twin.embed(joined, 2 * count, "of views in training mode", training=True)
    for what, found in (("a batch", items), ("one item", one), ("training mode", trained)):
        if found.shape[1] != width:
            raise DomainError(
                f"{name} must give vectors of one width, got {width} numbers for {2 * count} views "
                f"and {found.shape[1]} for {what}, {tuple(found.shape)}: pool over what varies, "
                "and give the same in training and in evaluation mode"
            )
    trains = learns and any(p.requires_grad for p in encoder.parameters())
    if trains and not trained.requires_grad:
        raise DomainError(
            f"{name} must give embeddings with gradients: its weights cannot learn from them "
            "(detach() or no_grad() in its forward()?)"
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
        if not isinstance(result, Tensor) or result.dim() != 2 or result.shape[0] != count:
            raise DomainError(
                f"{self.name} must give ({count}, d) embeddings {what}, got {_kind(result)}"
                f"{_remedy(result)}"
            )
        if not result.is_floating_point() or not result.shape[1]:
            raise DomainError(
                f"{self.name} must give embeddings of floating-point numbers {what}, got "
                f"{_kind(result)} of {result.dtype}: give its output as .float()"
            )
        if not torch.isfinite(result).all():
            raise DomainError(
                f"{self.name} gave NaN or infinite embeddings {what}: look for extreme values in "
                "the data, for NaN in its weights, or for a division by zero"
            )
        return result


def _check_batch(batch: Any, name: str) -> None:
    if not (hasattr(batch, "__len__") and hasattr(batch, "to")):
        raise DomainError(
            f"a batch must have a length, its number of items, and to(device): {name} is "
            f"{_kind(batch)}; use a tensor, or a class with both methods"
        )


def _check_new(encoder: Any, other: Any) -> None:
    for made in (encoder, other):
        if not isinstance(made, nn.Module):
            raise DomainError(f"encoder() must return a torch.nn.Module, got {_kind(made)}")
    theirs = {id(parameter) for parameter in other.parameters()}
    if any(id(parameter) in theirs for parameter in encoder.parameters()):
        raise DomainError(
            "encoder() must make a new module at every call: two calls gave the same weights, so "
            "that training one encoder would change another"
        )


def _check_collection(collection: Collection) -> None:
    methods = ("__len__", "take", "select", "extend", "sizes")
    if missing := [name for name in methods if not hasattr(collection, name)]:
        raise DomainError(
            f"collect() must return a collection, got {_kind(collection)}, which has no "
            f"{missing[0]}(): use TensorCollection, or see Collection"
        )
    count = len(collection)
    if count < 4:
        raise DomainError(f"give check_domain at least 4 items, got {count}")
    for indices in (torch.tensor([2, 0, 2]), torch.arange(count)):
        taken = collection.take(indices)
        _check_batch(taken, "what take() gives")
        if len(taken) != len(indices):
            raise DomainError(
                f"take() must give one item per index: {len(indices)} asked for, {len(taken)} given"
            )
    if len(collection.select(torch.tensor([1, 3]))) != 2:
        raise DomainError("select() must give a collection of the items asked for")
    if len(collection.extend(collection)) != 2 * count or len(collection) != count:
        raise DomainError("extend() must give a new collection with the items of both")
    sizes: Any = collection.sizes()
    if getattr(sizes, "shape", None) != (count,) or sizes.dtype != torch.int64:
        raise DomainError("sizes() must give the bytes of each item, as (n,) int64")
    for name in ("nbytes", "background"):
        if not hasattr(collection, name) or callable(getattr(collection, name)):
            raise DomainError(f"a collection must have {name}, as an attribute or a property")


def _check_items(trial: Trial, collection: Collection, rolled: Collection | None) -> None:
    """Whether all methods but views give the items that were asked for, in that order."""
    domain, every = trial.domain, torch.arange(len(collection))
    batch = collection.take(every)
    whole = trial.embed_items(batch)
    if not torch.equal(whole, trial.embed_items(batch)):
        raise DomainError(
            "prepare() and the encoder must give the same for the same batch: one of them draws at "
            "random, or changes what it is given"
        )
    if bool((whole == whole[:1]).all()):
        raise DomainError(
            "all items have the same embedding: give items that differ, or look at the encoder"
        )

    def check(found: Tensor, places: Tensor, rule: str) -> None:
        _check_close(found, whole[places], rule)

    def embedded(items: Collection) -> Tensor:
        return trial.embed_items(items.take(torch.arange(len(items))))

    order, chosen = torch.tensor([2, 0, 2]), torch.tensor([3, 1])
    check(
        trial.embed_items(collection.take(order)),
        order,
        "take() must give the items that were asked for, in that order; and an embedding must "
        "depend on its item alone, not on others of its batch",
    )
    selected = collection.select(chosen)
    rule = "select() must keep the items that were asked for, in that order"
    check(embedded(selected), chosen, rule)
    rule = "extend() must give its own items first, then those of the other collection"
    check(embedded(collection.extend(selected)), torch.cat([every, chosen]), rule)
    joined = domain.join([collection.take(part) for part in every.tensor_split(3)])
    rule = "join() must hold the items of all batches in their order"
    check(trial.embed_items(joined), every, rule)
    rule = "materialise() must give the items that were asked for, in that order"
    kept = domain.materialise(collection, chosen)
    check(embedded(kept) if len(kept) == 2 else whole[:0], chosen, rule)
    if rolled is not None:
        check(
            embedded(rolled),
            every.roll(-1),
            "collect() must give the items that it is given, in their order, and nobody may change "
            "them: the same items in another order became others",
        )
    try:
        json.dumps(domain.differences(batch, batch) | {})
    except TypeError as error:
        raise DomainError(f"differences() must give a dict that JSON can hold: {error}") from error


def _check_randomness(trial: Trial, collection: Collection) -> None:
    batch = collection.take(torch.arange(len(collection)))
    before = trial.embed_items(batch)
    first = _embed_views(trial, batch, 0)
    if not torch.equal(before, trial.embed_items(batch)):
        raise DomainError("views() must not change its input: the batch was another one after it")
    if not torch.equal(first, _embed_views(trial, batch, 0)):
        raise DomainError(
            "views() must draw from its generator alone: the same seed gave other views"
        )
    if torch.equal(first, _embed_views(trial, batch, 1)):
        raise DomainError("views() must be random: two seeds gave the same views")
    if torch.equal(*first.chunk(2)):
        raise DomainError("views() must draw two different views: both are the same")
    _embed_views(trial, collection.take(torch.arange(1)), 0)  # as the last batch may have one item


def _check_faster_views(trial: Trial, collection: Collection) -> None:
    """Whether methods that a domain need not have give what ``views`` gives."""
    domain, count, places = trial.domain, len(collection), torch.arange(len(collection))
    batch = collection.take(places)
    expected = _embed_views(trial, batch, 0)

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
    if len(blobs) != len(indices) or not all(isinstance(blob, bytes) for blob in blobs):
        raise DomainError("pack() must give the bytes of each item")
    again = domain.unpack(blobs)
    if len(again) != len(indices):
        raise DomainError(
            f"unpack() must give back every item: {len(indices)} packed, {len(again)} read"
        )
    kept, read = (trial.embed_items(items.take(indices)) for items in (collection, again))
    if not torch.equal(kept, read):
        raise DomainError("unpack() must give back the items that pack() took")
    if domain.pack(again, indices) != blobs or domain.pack(again, indices[2:3]) != blobs[2:3]:
        raise DomainError(
            "pack() must give the same bytes for the same item, by which a memory knows it, and of "
            "the items that were asked for"
        )


def _embed_views(trial: Trial, batch: Any, seed: int) -> Tensor:
    views = trial.domain.views(batch, Generator().manual_seed(seed))
    return trial.embed(trial.domain.join(views), 2 * len(batch), "of views")


def _check_close(found: Tensor, expected: Tensor, rule: str) -> None:
    # Other batches may round otherwise.
    least = 1e-3 * float(expected.abs().max())
    if found.shape != expected.shape or not torch.allclose(found, expected, 1e-3, least):
        raise DomainError(rule)


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
