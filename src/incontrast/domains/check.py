"""Contract checks for users who bring their own kind of data."""

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

Context = AbstractContextManager[Any]  # that can be entered again
NO_CONTEXT = nullcontext()


class DomainError(ValueError):
    """A domain breaks its contract."""


def check_domain(domain: Domain, items: Any) -> None:
    """Try every part of a domain on some items and raise at the first thing that is wrong.

    ``items`` is what its ``collect`` takes; at least 4 items.

    Raises:
        DomainError: Says which method broke which rule, and what it returned.
    """
    collection = domain.collect(items)
    _check_collection(collection)
    rolled = None
    if isinstance(items, list | np.ndarray | Tensor) and len(items) == len(collection):
        rolled = domain.collect(pick(items, torch.arange(len(items)).roll(-1)))
    domain = domain.fit_statistics(collection)
    rule = f"fit_statistics() must return a domain, got {_kind(domain)}"
    _require(isinstance(domain, Domain), rule)
    with seeded(0, "check"):
        encoder, other = domain.encoder(), domain.encoder()
    for module in (encoder, other):
        rule = f"encoder() must return a torch.nn.Module, got {_kind(module)}"
        _require(isinstance(module, nn.Module), rule)
    shared = {*map(id, encoder.parameters())} & {*map(id, other.parameters())}
    rule = "encoder() must make a new module at every call: two calls gave the same weights"
    _require(not shared, rule)
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
    """Make views of a few items and embed them, as each step of training does.

    The encoder runs in ``autocast``; one that never ``learns`` needs no gradients.

    Raises:
        DomainError: A view lost items, or the encoder does not give finite (n, d) embeddings, of
            the same width for every batch and in training mode, with gradients.
    """
    name = "the encoder with its head" if isinstance(encoder, EncoderWithHead) else "the encoder"
    trial = Trial(encoder, domain, name, autocast)
    count = min(len(collection), 4)
    batch = collection.take(torch.arange(count))
    _check_batch(batch, "what take() gives")
    if not domain.views_on_cpu:
        batch = batch.to(trial.device)
    views = domain.views(batch, Generator(getattr(batch, "device", "cpu")).manual_seed(0))
    rule = f"views() must return two batches as a tuple, got {_kind(views)}"
    _require(isinstance(views, tuple) and len(views) == 2, rule)
    for which, view in zip(("first", "second"), views, strict=True):
        _check_batch(view, f"the {which} view")
        counts = f"{count} went in, {len(view)} are in the {which} view"
        _require(len(view) == count, f"views() must keep the number of items: {counts}")
    joined = domain.join(views)
    counts = f"2·{count} went in, {len(joined)} came out"
    _require(len(joined) == 2 * count, f"join() must hold the items of all batches: {counts}")
    width = trial.embed(joined, 2 * count, "of views").shape[1]
    items = trial.embed_items(batch)
    one = trial.embed_items(collection.take(torch.arange(1)).to(trial.device))
    twin = Trial(copy.deepcopy(encoder), domain, name, autocast)  # BatchNorm's statistics change
    trained = twin.embed(joined, 2 * count, "of views in training mode", training=True)
    for what, rows in (("a batch", items), ("one item", one), ("training mode", trained)):
        _require(
            rows.shape[1] == width,
            f"{name} must give vectors of one width, got {width} numbers for {2 * count} views "
            f"and {rows.shape[1]} for {what}, {tuple(rows.shape)}: pool over what varies",
        )
    learnable = learns and any(p.requires_grad for p in encoder.parameters())
    rule = f"{name} must give embeddings with gradients (detach() or no_grad() in its forward()?)"
    _require(trained.requires_grad or not learnable, rule)


def width_of(
    encoder: nn.Module,
    domain: Domain,
    collection: Collection,
    name: str = "the encoder",
    autocast: Context = NO_CONTEXT,
) -> int:
    """d: dimensions of an encoder's embeddings; messages call the encoder by this name."""
    trial = Trial(encoder, domain, name, autocast)
    batch = collection.take(torch.arange(min(len(collection), 2)))
    return trial.embed_items(batch.to(trial.device)).shape[1]


@dataclass(frozen=True)
class Trial:
    """An encoder, to be tried on batches of a domain; messages call it by its name."""

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
        rows = isinstance(result, Tensor) and result.dim() == 2 and len(result) == count
        got = f"{_kind(result)}{_pooling_hint(result)}"
        _require(rows, f"{self.name} must give ({count}, d) embeddings {what}, got {got}")
        got = f"{_kind(result)} of {result.dtype}: give its output as .float()"
        rule = f"{self.name} must give embeddings of floating-point numbers {what}, got {got}"
        _require(result.is_floating_point() and result.shape[1] > 0, rule)
        _require(
            bool(torch.isfinite(result).all()),
            f"{self.name} gave NaN or infinite embeddings {what}: look for extreme values in "
            "the data, for NaN in its weights, or for a division by zero",
        )
        return result  # type: ignore[no-any-return]


def _check_batch(batch: Any, name: str) -> None:
    _require(
        hasattr(batch, "__len__") and hasattr(batch, "to"),
        f"a batch must have a length, its number of items, and to(device): {name} is "
        f"{_kind(batch)}; use a tensor, or a class with both methods",
    )


def _check_collection(collection: Collection) -> None:
    for name in ("__len__", "take", "select", "extend", "sizes"):
        got = f"{_kind(collection)}, which has no {name}(): use TensorCollection, or see Collection"
        _require(hasattr(collection, name), f"collect() must return a collection, got {got}")
    count = len(collection)
    _require(count >= 4, f"give check_domain at least 4 items, got {count}")
    batch = collection.take(torch.tensor([2, 0, 2]))
    _check_batch(batch, "what take() gives")
    _require(len(batch) == 3, f"take() must give one item per index: 3 indices, {len(batch)} items")
    sizes: Any = collection.sizes()
    right = getattr(sizes, "shape", None) == (count,) and sizes.dtype == torch.int64
    _require(right, "sizes() must give the bytes of each item, as (n,) int64")
    for name in ("nbytes", "background"):
        value = getattr(collection, name, None)
        rule = f"a collection must have {name}, as an attribute or a property"
        _require(value is not None and not callable(value), rule)


def _check_items(trial: Trial, collection: Collection, rolled: Collection | None) -> None:
    """Check that every method but ``views`` keeps the items and their order."""
    domain, every, some = trial.domain, torch.arange(len(collection)), torch.tensor([3, 1])
    twice, batch = torch.tensor([2, 0, 2]), _all(collection)
    whole, again = trial.embed_items(batch), trial.embed_items(batch)
    rule = "prepare() and the encoder must give the same for the same batch, and not change it"
    _require(torch.equal(whole, again), rule)
    rule = "all items have the same embedding: give items that differ, or look at the encoder"
    _require(not bool((whole == whole[:1]).all()), rule)

    def check(rule: str, batch: Any, indices: Tensor) -> None:
        """The batch must have the embeddings of the items at these indices."""
        _require(_close(trial.embed_items(batch), whole[indices]), rule)

    asked = "must give the items that were asked for, in that order"
    rule = f"take() {asked}; and an embedding must depend on its item alone, not on its batch"
    check(rule, collection.take(twice), twice)
    rule = (
        "an embedding must depend on its item alone, but an item by itself has another one than "
        "in a batch: does padding, or another item, change it in prepare() or in the encoder?"
    )
    for place in (0, 1):
        one = torch.tensor([place])
        check(rule, collection.take(one), one)
    selected = collection.select(some)
    check(f"select() {asked}", _all(selected), some)
    extended = collection.extend(selected)
    rule = "extend() must give a new collection: its own items first, then those of the other"
    _require(len(collection) == len(every), rule)
    check(rule, _all(extended), torch.cat([every, some]))
    joined = domain.join([collection.take(part) for part in every.tensor_split(3)])
    check("join() must hold the items of all batches in their order", joined, every)
    check(f"materialise() {asked}", _all(domain.materialise(collection, some)), some)
    if rolled is not None:
        rule = "collect() must give the items that it gets, in their order; nothing may change them"
        check(rule, _all(rolled), every.roll(-1))
    try:
        json.dumps(domain.differences(batch, batch) | {})
    except TypeError as error:
        raise DomainError(f"differences() must give a dict that JSON can hold: {error}") from error


def _check_randomness(trial: Trial, collection: Collection) -> None:
    batch = _all(collection)
    before = trial.embed_items(batch)
    views = trial.embed_views(batch, 0)
    after = trial.embed_items(batch)
    _require(torch.equal(before, after), "views() must not change its input")
    again, other = trial.embed_views(batch, 0), trial.embed_views(batch, 1)
    rule = "views() must draw from its generator alone: the same seed gave other views"
    _require(torch.equal(views, again), rule)
    rule = "views() must be random: two seeds gave the same views"
    _require(not torch.equal(views, other), rule)
    rule = "views() must draw two different views: both are the same"
    _require(not torch.equal(*views.chunk(2)), rule)
    trial.embed_views(collection.take(torch.arange(1)), 0)  # the last batch may have one item


def _check_faster_views(trial: Trial, collection: Collection) -> None:
    """Check that the optional methods give what ``views`` gives."""
    domain, every, some = trial.domain, torch.arange(len(collection)), torch.arange(2, 4)
    batch, sources = _all(collection), [(collection, every)]
    expected = trial.embed_views(batch, 0)

    def draws() -> Generator:
        return Generator().manual_seed(0)

    def check(method: str, joined: Any, expected: Tensor) -> None:
        embeddings = trial.embed(joined, len(expected), f"of {method}()")
        rule = f"{method}() must give what views() gives, by the same draws"
        _require(_close(embeddings, expected), rule)

    check("joined_views", domain.joined_views(batch, draws()), expected)
    for joined in domain.views_in_a_row([sources, sources], [draws(), draws()]) or ():
        check("views_in_a_row", joined, expected)
    if type(domain).views_of_part is not Domain.views_of_part:
        part = Part(collection.take(some), 2, sources, torch.device("cpu"))
        joined = domain.join(domain.views_of_part(part, draws()))
        check("views_of_part", joined, expected[torch.cat([some, len(every) + some])])


def _check_bytes(trial: Trial, collection: Collection) -> None:
    domain, every = trial.domain, torch.arange(len(collection))
    try:
        blobs = domain.pack(collection, every)
    except TypeError as error:
        raise DomainError(str(error)) from error
    rule = "pack() must give bytes for each item that was asked for, the same for the same item"
    _require(len(blobs) == len(every) and all(isinstance(blob, bytes) for blob in blobs), rule)
    again = domain.unpack(blobs)
    same = torch.equal(trial.embed_items(_all(collection)), trial.embed_items(_all(again)))
    _require(same, "unpack() must give back the items that pack() took")
    _require(domain.pack(again, every) == blobs, rule)
    _require(domain.pack(again, every[2:3]) == blobs[2:3], rule)


def _all(collection: Collection) -> Any:
    """A batch of all items."""
    return collection.take(torch.arange(len(collection)))


def _close(embeddings: Tensor, expected: Tensor) -> bool:
    """Whether embeddings are equal but for rounding, which depends on the batch."""
    tolerance = 1e-3 * float(expected.abs().max())
    same_shape = embeddings.shape == expected.shape
    return same_shape and torch.allclose(embeddings, expected, 1e-3, tolerance)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DomainError(message)


def _pooling_hint(output: Any) -> str:
    """How to make one vector per item of an encoder's output."""
    sequence_or_map = isinstance(output, Tensor) and output.dim() in (3, 4)
    arguments = "pooling=..." if sequence_or_map else "output=..., pooling=..."
    poolable = sequence_or_map or isinstance(output, tuple | list | Mapping)
    return f": name what an embedding is, Pooled(encoder, {arguments})" if poolable else ""


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"
