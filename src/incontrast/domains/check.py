"""Contract checks for people who bring their own kind of data."""

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Collection, Domain
from incontrast.heads import EncoderWithHead
from incontrast.randomness import seeded

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
    count = len(collection)
    if count < 4:
        raise DomainError(f"give check_domain at least 4 items, got {count}")
    domain = domain.fit_statistics(collection)
    if not isinstance(domain, Domain):
        raise DomainError(f"fit_statistics() must return a domain, got {_kind(domain)}")
    _check_collection(collection)
    with seeded(0, "check"):
        encoder, other = domain.encoder(), domain.encoder()
    _check_new(encoder, other)
    check_views(domain, collection, encoder)
    _check_order(domain, collection, encoder)
    _check_randomness(domain, collection, encoder)
    _check_bytes(domain, collection, encoder)


def check_views(
    domain: Domain, collection: Collection, encoder: nn.Module, autocast: Context = NO_CONTEXT
) -> None:
    """Make views of a few items and embed them: what training does at every step.

    ``autocast`` is what the encoder runs in.

    Raises:
        DomainError: A view lost items, or the encoder does not give (n, d) finite embeddings, d
            being the same for every batch and in training mode.
    """
    count = min(len(collection), 4)
    taken = collection.take(torch.arange(count))
    _check_batch(taken, "what take() gives")
    batch = taken if domain.views_on_cpu else taken.to(_device(encoder))
    draws = Generator(getattr(batch, "device", "cpu"))
    views = domain.views(batch, draws.manual_seed(0))
    if not isinstance(views, tuple) or len(views) != 2:
        raise DomainError(f"views() must return two batches as a tuple, got {_kind(views)}")
    for name, view in zip(("first", "second"), views, strict=True):
        _check_batch(view, f"the {name} view")
        if len(view) != count:
            raise DomainError(
                f"views() must keep the number of items: {count} went in, "
                f"{len(view)} are in the {name} view"
            )
    joined = domain.join(views)
    if len(joined) != 2 * count:
        raise DomainError(
            f"join() must hold the items of all batches: 2·{count} went in, {len(joined)} came out"
        )
    name = "the encoder with its head" if isinstance(encoder, EncoderWithHead) else "the encoder"
    width = _embeddings(encoder, joined, 2 * count, "of views", name, autocast).shape[1]
    items = _embeddings_of_items(encoder, domain, batch, name, autocast)
    first = collection.take(torch.arange(1)).to(_device(encoder))
    one = _embeddings_of_items(encoder, domain, first, name, autocast)
    twin = copy.deepcopy(encoder)  # whose BatchNorm may learn from it
    what = "of views in training mode"
    trained = _embeddings(twin, joined, 2 * count, what, name, autocast, training=True)
    for what, found in (("a batch", items), ("one item", one), ("training mode", trained)):
        if found.shape[1] != width:
            raise DomainError(
                f"{name} must give vectors of one width, got {width} numbers for {2 * count} views "
                f"and {found.shape[1]} for {what}, {tuple(found.shape)}: pool over what varies, "
                "and give the same in training and in evaluation mode"
            )


def width_of(
    encoder: nn.Module,
    domain: Domain,
    collection: Collection,
    name: str = "the encoder",
    autocast: Context = NO_CONTEXT,
) -> int:
    """d: dimensions of the embeddings of an encoder, which messages call by its name."""
    batch = collection.take(torch.arange(min(len(collection), 2)))
    batch = batch.to(_device(encoder))
    return _embeddings_of_items(encoder, domain, batch, name, autocast).shape[1]


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
    count = len(collection)
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
    if len(collection.sizes()) != count:
        raise DomainError("sizes() must give the bytes of each item")
    for name in ("nbytes", "background"):
        if not hasattr(collection, name):
            raise DomainError(f"a collection must have {name}: see Collection")


def _check_order(domain: Domain, collection: Collection, encoder: nn.Module) -> None:
    """Whether take, select, extend and join give the items that were asked for, in that order."""
    count = len(collection)

    def embedded(items: Collection, places: Tensor) -> Tensor:
        return _embeddings_of_items(encoder, domain, items.take(places))

    whole = embedded(collection, torch.arange(count))

    def check(found: Tensor, expected: Tensor, rule: str) -> None:
        # Other batches may round otherwise.
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
            raise DomainError(rule)

    order = torch.tensor([2, 0, 2])
    rule = "take() must give the items that were asked for, in that order"
    check(embedded(collection, order), whole[order], rule)
    chosen = torch.tensor([3, 1])
    found = embedded(collection.select(chosen), torch.arange(2))
    check(found, whole[chosen], "select() must keep the items that were asked for, in that order")
    longer = embedded(collection.extend(collection.select(chosen)), torch.arange(count + 2))
    rule = "extend() must give its own items first, then those of the other collection"
    check(longer, torch.cat([whole, whole[chosen]]), rule)
    batches = [collection.take(torch.arange(2)), collection.take(torch.arange(2, count))]
    joined = _embeddings(encoder, domain.prepare(domain.join(batches)), count, "of joined items")
    check(joined, whole, "join() must hold the items of all batches in their order")


def _check_randomness(domain: Domain, collection: Collection, encoder: nn.Module) -> None:
    batch = collection.take(torch.arange(len(collection)))
    before = _embeddings_of_items(encoder, domain, batch)

    def views(seed: int) -> Tensor:
        pair = domain.join(domain.views(batch, Generator().manual_seed(seed)))
        return _embeddings(encoder, pair, 2 * len(batch), "of views")

    first = views(0)
    if not torch.equal(before, _embeddings_of_items(encoder, domain, batch)):
        raise DomainError("views() must not change its input: the batch was another one after it")
    if not torch.equal(first, views(0)):
        raise DomainError(
            "views() must draw from its generator alone: the same seed gave other views"
        )
    if torch.equal(first, views(1)):
        raise DomainError("views() must be random: two seeds gave the same views")
    if torch.equal(*first.chunk(2)):
        raise DomainError("views() must draw two different views: both are the same")


def _check_bytes(domain: Domain, collection: Collection, encoder: nn.Module) -> None:
    indices = torch.arange(len(collection))
    blobs = domain.pack(collection, indices)
    if len(blobs) != len(indices) or not all(isinstance(blob, bytes) for blob in blobs):
        raise DomainError("pack() must give the bytes of each item")
    again = domain.unpack(blobs)
    if len(again) != len(indices):
        raise DomainError(
            f"unpack() must give back every item: {len(indices)} packed, {len(again)} read"
        )
    kept, read = (
        _embeddings_of_items(encoder, domain, items.take(indices)) for items in (collection, again)
    )
    if not torch.equal(kept, read):
        raise DomainError("unpack() must give back the items that pack() took")


def _embeddings_of_items(
    encoder: nn.Module,
    domain: Domain,
    batch: Any,
    name: str = "the encoder",
    autocast: Context = NO_CONTEXT,
) -> Tensor:
    prepared, what = domain.prepare(batch), "of prepared items"
    return _embeddings(encoder, prepared, len(batch), what, name, autocast)


@torch.no_grad()
def _embeddings(
    encoder: nn.Module,
    batch: Any,
    count: int,
    what: str,
    name: str = "the encoder",
    autocast: Context = NO_CONTEXT,
    *,
    training: bool = False,
) -> Tensor:
    before = encoder.training
    encoder.train(training)
    try:
        with autocast:
            result: Any = encoder(batch.to(_device(encoder)))
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise DomainError(f"{name} cannot take a batch {what}: {error}") from error
    finally:
        encoder.train(before)
    if not isinstance(result, Tensor) or result.dim() != 2 or result.shape[0] != count:
        raise DomainError(
            f"{name} must give ({count}, d) embeddings {what}, got {_kind(result)}{_remedy(result)}"
        )
    if not result.is_floating_point() or not result.shape[1]:
        raise DomainError(
            f"{name} must give embeddings of floating-point numbers {what}, got "
            f"{_kind(result)} of {result.dtype}: give its output as .float()"
        )
    if not torch.isfinite(result).all():
        raise DomainError(
            f"{name} gave NaN or infinite embeddings {what}: look for extreme values in the data, "
            "for NaN in its weights, or for a division by zero"
        )
    return result


def _device(encoder: nn.Module) -> torch.device:
    return next((p.device for p in encoder.parameters()), torch.device("cpu"))


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
