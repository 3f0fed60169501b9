"""Texts: a collection of many, a batch as it is stored, and the padded tokens an encoder takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from incontrast.domains.base import Collection

BETWEEN = b"\xff"  # the two texts of a pair: a byte that UTF-8 never has
WIDER = 1.35  # the factor from one bucket's greatest length to the next one's


class TextCollection(Collection):
    """Texts in UTF-8, each as bytes; the two texts of a pair are parted by the byte FF.

    >>> texts = TextCollection([b"one", b"what?" + BETWEEN + b"that"])
    >>> len(texts), texts.sizes().tolist()
    (2, [3, 10])
    """

    def __init__(self, contents: Sequence[bytes]) -> None:
        self.contents = contents

    def sizes(self) -> Tensor:
        return torch.tensor([len(content) for content in self.contents], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, indices: Tensor) -> Texts:
        return Texts([self.contents[index] for index in indices.tolist()])

    def select(self, indices: Tensor) -> Self:
        return type(self)(self.take(indices).contents)

    def extend(self, other: Self) -> Self:
        return type(self)([*self.contents, *other.contents])


@dataclass(frozen=True, eq=False)
class Texts:
    """Some texts as they are stored, and the device that their tokens are for."""

    contents: list[bytes]
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.contents)

    def to(self, device: torch.device | str, /) -> Texts:
        return Texts(self.contents, device)

    @staticmethod
    def join(batches: Sequence[Texts]) -> Texts:
        return Texts([text for batch in batches for text in batch.contents], batches[0].device)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Some texts as tokens, padded to the longest.

    Shapes:
        ids: (n, L) int64; 0 beyond the end of a text.
        lengths: (n,) int64, on the CPU wherever the tokens are: what is computed follows from it,
            and a device would have to be waited for. At least 1.
        seeds: (n,) int64, what dropout draws from where it is part of a view; None for no dropout.
    """

    ids: Tensor
    lengths: Tensor
    seeds: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @property
    def mask(self) -> Tensor:
        """(n, L) whether there is a token."""
        return (torch.arange(self.ids.shape[1]) < self.lengths[:, None]).to(self.device)

    def places(self) -> tuple[Tensor, Tensor]:
        """The text and the place in it of every token; found on the CPU, no device is waited for.

        >>> batch = TokenBatch(torch.ones(2, 2).long(), torch.tensor([2, 1]))
        >>> batch.places()
        (tensor([0, 0, 1]), tensor([0, 1, 0]))
        """
        there = torch.arange(self.ids.shape[1]) < self.lengths[:, None]
        text, place = there.nonzero().T.contiguous().to(self.device)
        return text, place

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str, /) -> TokenBatch:
        seeds = None if self.seeds is None else self.seeds.to(device)
        return TokenBatch(self.ids.to(device), self.lengths, seeds)

    def __getitem__(self, part: slice | Tensor) -> TokenBatch:
        """The texts of a range, or at (m,) places, padded to the longest of them."""
        lengths = self.lengths[part]
        width = int(lengths.max()) if len(lengths) else 1
        part = part.to(self.device) if isinstance(part, Tensor) else part
        seeds = None if self.seeds is None else self.seeds[part]
        return TokenBatch(self.ids[part, :width], lengths, seeds)

    def buckets(self) -> Iterator[tuple[Tensor, TokenBatch]]:
        """The places of texts of nearly the same length, and these texts: little of it is padding.

        >>> batch = TokenBatch(torch.ones(4, 30).long(), torch.tensor([3, 29, 28, 4]))
        >>> [(places.tolist(), part.ids.shape[1]) for places, part in batch.buckets()]
        [([0, 3], 4), ([1, 2], 29)]
        """
        bucket = (self.lengths.clamp(min=4).log() / math.log(WIDER)).ceil()
        for number in sorted(set(bucket.tolist())):
            places = (bucket == number).nonzero()[:, 0]
            yield places, self[places]

    def in_buckets(self, encode: Callable[[TokenBatch], Tensor]) -> Tensor:
        """(n, d) what ``encode`` gives, computed bucket by bucket."""
        parts = list(self.buckets())
        found = torch.cat([encode(part) for _, part in parts])
        order = torch.cat([places for places, _ in parts]).argsort()
        return found.index_select(0, order.to(found.device))

    @staticmethod
    def join(batches: Sequence[TokenBatch]) -> TokenBatch:
        """One batch with the texts of all ``batches`` in order."""
        width = max(batch.ids.shape[1] for batch in batches)
        seeds = [batch.seeds for batch in batches if batch.seeds is not None]
        return TokenBatch(
            torch.cat([pad(batch.ids, (0, width - batch.ids.shape[1])) for batch in batches]),
            torch.cat([batch.lengths for batch in batches]),
            torch.cat(seeds) if seeds else None,
        )
