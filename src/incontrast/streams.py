"""Splits of data into old and new parts, to try updates on."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from incontrast.bounds import check_number
from incontrast.randomness import generator


def by_growth(items: Any, alpha: float, seed: int = 0) -> tuple[Any, Any]:
    """Split items at random so that the new ones are a share α of all (the paper's protocol).

    Args:
        items: A collection, labelled data, an array, a tensor or a list.
        alpha: α = new / (old + new), in (0, 1).
        seed: Determines the split.

    Returns:
        The old and the new items, at least one of each, each in its original order.

    >>> by_growth(list("abcdefghij"), alpha=0.3)
    (['b', 'c', 'd', 'e', 'g', 'h', 'i'], ['a', 'f', 'j'])
    """
    count = len(items)
    check_number("(0, 1)", "it is the share of new items", alpha=alpha)
    if count < 2:
        raise ValueError(f"a split needs at least 2 items, got {count}")
    new = min(max(round(alpha * count), 1), count - 1)
    order = torch.randperm(count, generator=generator(seed, "split"))
    return pick(items, order[new:].sort().values), pick(items, order[:new].sort().values)


def by_class(items: Any, new: Sequence[int], labels: Any = None) -> tuple[Any, Any]:
    """Split items by class: those of some classes come later.

    Args:
        items: As in ``by_growth``.
        new: The classes that come later.
        labels: (n,) class of each item; labelled data have their own.

    >>> by_class(list("abcd"), new=[2], labels=[0, 1, 2, 0])
    (['a', 'b', 'd'], ['c'])
    """
    labels = np.asarray(items.labels if labels is None else labels)
    if labels.shape != (len(items),):
        raise ValueError(f"labels must have shape ({len(items)},), got {labels.shape}")
    missing = [label for label in new if label not in labels]
    if missing:
        raise ValueError(f"no items have the classes {missing}: there are {np.unique(labels)}")
    later = torch.from_numpy(np.isin(labels, list(new)))
    if later.all():
        raise ValueError("all classes are new: leave at least one for the old data")
    return pick(items, (~later).nonzero()[:, 0]), pick(items, later.nonzero()[:, 0])


def in_batches(items: Any, batches: int, seed: int | None = 0) -> Iterator[Any]:
    """Split items into batches of nearly equal size that arrive one after the other.

    Args:
        items: As in ``by_growth``.
        batches: Number of batches.
        seed: Determines the order of arrival; None keeps the given order.

    >>> list(in_batches(list("abcde"), batches=2, seed=None))
    [['a', 'b', 'c'], ['d', 'e']]
    """
    count = len(items)
    if not 1 <= batches <= count:
        raise ValueError(f"{count} items make 1 to {count} batches, got {batches}")
    order = torch.arange(count)
    if seed is not None:
        order = torch.randperm(count, generator=generator(seed, "stream"))
    for part in torch.tensor_split(order, batches):
        yield pick(items, part)


def pick(items: Any, indices: Tensor) -> Any:
    """Some of the items, in a container of the same type."""
    if isinstance(items, Tensor):  # whose select() does something else
        return items[indices]
    if hasattr(items, "select"):
        return items.select(indices)
    if isinstance(items, np.ndarray):
        return items[indices.numpy()]
    return [items[index] for index in indices.tolist()]
