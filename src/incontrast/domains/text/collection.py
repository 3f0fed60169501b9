"""Texts as they are stored, and the padded tokens that an encoder takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from incontrast.domains.base import Collection

BETWEEN = b"\xff"  # separates the two texts of a pair: a byte that UTF-8 never has
WIDER = 1.35  # the factor from one bucket's greatest length to the next one's


class TextCollection(Collection):
    """Texts in UTF-8, each as bytes; those of a pair are separated by the byte FF.

    A batch is a collection too, with the device that its tokens are for.

    >>> texts = TextCollection([b"one", b"what?" + BETWEEN + b"that"])
    >>> len(texts), texts.sizes().tolist()
    (2, [3, 10])
    """

    def __init__(self, contents: Sequence[bytes], device: torch.device | str = "cpu") -> None:
        self.contents, self.device = contents, device

    def sizes(self) -> Tensor:
        return torch.tensor([len(content) for content in self.contents], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.contents)

    def take(self, indices: Tensor) -> Self:
        return type(self)([self.contents[index] for index in indices.tolist()])

    def select(self, indices: Tensor) -> Self:
        return self.take(indices)

    def extend(self, other: Self) -> Self:
        return self.join([self, other])

    def to(self, device: torch.device | str, /) -> Self:
        return type(self)(self.contents, device)

    @classmethod
    def join(cls, batches: Sequence[Self]) -> Self:
        """One batch with the texts of all ``batches`` in order."""
        return cls([text for batch in batches for text in batch.contents], batches[0].device)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Texts as tokens, padded to the longest.

    Shapes:
        ids: (n, L) int64; 0 beyond the end of a text.
        lengths: (n,) int64, at least 1. Always on the CPU: shapes follow from them, and reading
            them from a device would stop the program until it is done.
        seeds: (n,) int64 seeds of dropout, where it is part of a view; None for no dropout.
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
        return self._mask().to(self.device)

    def _mask(self) -> Tensor:
        return torch.arange(self.ids.shape[1]) < self.lengths[:, None]

    def places(self) -> tuple[Tensor, Tensor]:
        """The text of every token, and its place in the text.

        >>> batch = TokenBatch(torch.ones(2, 2).long(), torch.tensor([2, 1]))
        >>> batch.places()
        (tensor([0, 0, 1]), tensor([0, 1, 0]))
        """
        text, place = self._mask().nonzero().T.contiguous().to(self.device)
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
        """The texts in groups of nearly the same length, with little padding: places and texts.

        >>> batch = TokenBatch(torch.ones(4, 30).long(), torch.tensor([3, 29, 28, 4]))
        >>> [(places.tolist(), part.ids.shape[1]) for places, part in batch.buckets()]
        [([0, 3], 4), ([1, 2], 29)]
        """
        bucket = (self.lengths.clamp(min=4).log() / math.log(WIDER)).ceil()
        for number in sorted(set(bucket.tolist())):
            places = (bucket == number).nonzero()[:, 0]
            yield places, self[places]

    def in_buckets(self, encode: Callable[[TokenBatch], Tensor]) -> Tensor:
        """(n, d) what ``encode`` returns, computed bucket by bucket."""
        buckets = list(self.buckets())
        encoded = torch.cat([encode(batch) for _, batch in buckets])
        order = torch.cat([places for places, _ in buckets]).argsort()
        return encoded.index_select(0, order.to(encoded.device))

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
