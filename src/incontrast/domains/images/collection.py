"""Images in columns: pixels in memory, files decoded when they are taken, or both."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from incontrast.domains.images.files import decode_all


class ImageCollection:
    """Images of one size, each a row of one tensor or a file that stays on disk.

    Args:
        pixels: (rows, C, S, S) uint8; without rows it still tells channels and size.
        files: Paths of images, decoded by ``take``.
        source: (n,) int64, where each item is: r for row r of ``pixels``, -1 - f for file f.
            All rows and then all files, unless given.

    >>> gray = ImageCollection(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    >>> len(gray), gray.background, gray.take(torch.tensor([1])).shape
    (2, False, torch.Size([1, 1, 8, 8]))
    """

    def __init__(
        self, pixels: Tensor, files: Sequence[str] = (), source: Tensor | None = None
    ) -> None:
        self.pixels = pixels
        self.files = tuple(files)
        if source is None:
            source = torch.cat([torch.arange(len(pixels)), -1 - torch.arange(len(self.files))])
        self.source = source
        self.background = bool(self.files)

    @property
    def nbytes(self) -> int:
        return int(self.sizes().sum())

    def sizes(self) -> Tensor:
        """(n,) bytes in memory of each item: its pixels, or only the path of its file."""
        sizes = torch.full((len(self),), self.pixels.shape[1:].numel())
        paths = torch.tensor([len(path) for path in self.files], dtype=torch.int64)
        on_disk = self.source < 0
        sizes[on_disk] = paths[-1 - self.source[on_disk]]
        return sizes

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Tensor:
        """(n, C, S, S) uint8 pixels of these items; an error if a file is missing or damaged."""
        source = self.source[indices]
        if not self.files:
            return self.pixels.index_select(0, source)  # ten times as fast as pixels[source]
        channels, size = self.pixels.shape[1:3]
        on_disk = source < 0
        batch = self.pixels.new_empty(len(source), channels, size, size)
        batch[~on_disk] = self.pixels[source[~on_disk]]
        files = self._paths(source[on_disk])
        batch[on_disk] = decode_all(files, size=size, channels=channels)
        return batch

    def select(self, indices: Tensor) -> Self:
        # Rows are copied, so that a small selection does not keep all pixels alive.
        source = self.source[indices]
        on_disk = source < 0
        places = torch.where(on_disk, -on_disk.long().cumsum(0), (~on_disk).long().cumsum(0) - 1)
        return type(self)(self.pixels[source[~on_disk]], self._paths(source[on_disk]), places)

    def extend(self, other: Self) -> Self:
        if other.pixels.shape[1:] != self.pixels.shape[1:]:
            raise ValueError(
                f"images must have shape {tuple(self.pixels.shape[1:])} (channels, height, width) "
                f"like the first ones, got {tuple(other.pixels.shape[1:])}: "
                "collect both with the same domain"
            )
        shifted = torch.where(
            other.source < 0, other.source - len(self.files), other.source + len(self.pixels)
        )
        return type(self)(
            torch.cat([self.pixels, other.pixels]),
            self.files + other.files,
            torch.cat([self.source, shifted]),
        )

    def _paths(self, source: Tensor) -> list[str]:
        return [self.files[-1 - place] for place in source.tolist()]
