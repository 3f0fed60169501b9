"""The domain of images."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from incontrast.domains.base import Domain, Part
from incontrast.domains.images.collection import ImageCollection
from incontrast.domains.images.encoders import ResNet18, SmallEncoder
from incontrast.domains.images.reading import read_images
from incontrast.domains.images.views import ImageViews

__all__ = ["Images"]

Network = Literal["resnet18", "resnet18-standard", "small"]
Encoder = Network | nn.Module | Callable[[], nn.Module]

_IMAGENET = {  # channels: mean and std
    1: ((0.449,), (0.226,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_PIXELS, _FILE = b"p", b"f"  # the first byte of a packed item


@dataclass(frozen=True, init=False, repr=False)
class Images(Domain):
    """Images, seen as squares of one size.

    ``Images(224)`` is the setting of the paper. Up to 64 px, ResNet-18 begins with a 3×3
    convolution that loses nothing (see ``ResNet18``).

    Args:
        size: Side in pixels; larger and smaller images are resized and cropped at the centre.
        channels: 3 (colour) or 1 (grey); images are converted.
        encoder: ``"resnet18"``; ``"resnet18-standard"``, with its usual 7×7 beginning at any
            size, a third of the work at 32 px; ``"small"``, for 8 to 32 px without an
            accelerator; a module of your own, whose weights are the start (of every encoder: it
            is copied), so that pretrained ones are kept; or a function without arguments that
            makes a new module. Takes (n, channels, size, size) and gives (n, d).
        views: What a random view is.
        mean: Mean of the pixels in [0, 1] for each channel, ImageNet's unless given.
        std: Their standard deviation, ImageNet's unless given.

    >>> domain = Images(8, channels=1, encoder="small")
    >>> batch = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    >>> first, second = domain.views(batch, Generator().manual_seed(0))
    >>> domain.encoder()(first).shape
    torch.Size([5, 128])
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # The arguments ``encoder`` and ``views``, whose names a Domain has for its methods.
    network: Encoder
    augmentation: ImageViews

    def __init__(
        self,
        size: int,
        channels: int = 3,
        *,
        encoder: Encoder = "resnet18",
        views: ImageViews | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if size < 4:
            raise ValueError(f"size must be at least 4 pixels, got {size}")
        if channels not in _IMAGENET:
            raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels}")
        if isinstance(encoder, str) and encoder not in get_args(Network):
            names = ", ".join(repr(name) for name in get_args(Network))
            raise ValueError(f"encoder must be {names} or a module of your own, got {encoder!r}")
        fields = {
            "size": size,
            "channels": channels,
            "mean": tuple(_IMAGENET[channels][0] if mean is None else mean),
            "std": tuple(_IMAGENET[channels][1] if std is None else std),
            "network": encoder,
            "augmentation": ImageViews() if views is None else views,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if not (len(self.mean) == len(self.std) == channels):
            raise ValueError(
                f"mean and std must have {channels} numbers, one for each channel, "
                f"got {self.mean} and {self.std}"
            )
        if not all(math.isfinite(value) and value > 0 for value in self.std):
            raise ValueError(f"std must be above 0, got {self.std}")

    def __repr__(self) -> str:
        return (
            f"Images({self.size}, channels={self.channels}, encoder={self.network!r}, "
            f"views={self.augmentation!r}, mean={self.mean}, std={self.std})"
        )

    def arguments(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "channels": self.channels,
            "encoder": self.network,
            "views": self.augmentation,
            "mean": self.mean,
            "std": self.std,
        }

    def collect(self, items: Any) -> ImageCollection:
        """Check images and bring them into columns.

        An array that fits already is kept, not copied: leave it as it is afterwards. Files stay on
        disk and are decoded when needed; only their headers are read here.

        Args:
            items: An array or tensor (n, H, W), (n, H, W, C) or (n, C, H, W), uint8 or floating
                point in [0, 1]; a folder, searched with all below it; a torch Dataset of images
                or of tuples that begin with one; a list of paths, PIL images or arrays; or an
                ``ImageCollection``.
        """
        return read_images(items, self.size, self.channels)

    def prepare(self, batch: Tensor) -> Tensor:
        """(n, C, S, S) uint8 pixels as normalised floats."""
        return self._normalised(batch / 255)

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return self._views(batch, generator, len(batch), 0)

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Tensor, Tensor]:
        return self._views(part.batch, generator, part.total, part.start)

    def _views(
        self, batch: Tensor, generator: Generator, total: int, start: int
    ) -> tuple[Tensor, Tensor]:
        pixels = batch / 255
        first, second = (
            self.augmentation(pixels, generator, total=total, start=start) for _ in range(2)
        )
        return self._normalised(first), self._normalised(second)

    def encoder(self) -> nn.Module:
        if self.network == "resnet18":
            return ResNet18(self.channels, "small" if self.size <= 64 else "standard")
        if self.network == "resnet18-standard":
            return ResNet18(self.channels, "standard")
        if self.network == "small":
            return SmallEncoder(self.channels, self.size)
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network)
        module = self.network()
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"the function given as encoder must return a torch.nn.Module, "
                f"got {type(module).__name__}"
            )
        return module

    def hold(self, collection: ImageCollection, indices: Tensor) -> ImageCollection:
        return ImageCollection(collection.take(indices))

    def pack(self, collection: ImageCollection, indices: Tensor) -> list[bytes]:
        """Each item as bytes: its pixels, or the path of its file (which must stay in place)."""
        chosen = collection.select(indices)
        rows = chosen.pixels.contiguous().numpy()
        return [
            _PIXELS + rows[place].tobytes()
            if place >= 0
            else _FILE + os.fsencode(chosen.files[-1 - place])
            for place in chosen.source.tolist()
        ]

    def unpack(self, blobs: Sequence[bytes]) -> ImageCollection:
        shape = (self.channels, self.size, self.size)
        pixels = bytearray()
        files: list[str] = []
        source: list[int] = []
        for number, blob in enumerate(blobs):
            tag, content = blob[:1], blob[1:]
            if tag == _PIXELS and len(content) == math.prod(shape):
                source.append(len(pixels) // math.prod(shape))
                pixels += content
            elif tag == _FILE and content and b"\0" not in content:
                files.append(os.fsdecode(content))
                source.append(-len(files))
            else:
                raise ValueError(
                    f"packed item {number} ({len(blob)} bytes) is neither the pixels of an image "
                    f"of shape {shape} nor a path: it is damaged or from another domain"
                )
        flat = torch.frombuffer(pixels, dtype=torch.uint8) if pixels else torch.empty(0).byte()
        return ImageCollection(
            flat.view(-1, *shape), files, torch.tensor(source, dtype=torch.int64)
        )

    def _normalised(self, pixels: Tensor) -> Tensor:
        mean, std = pixels.new_tensor(self.mean), pixels.new_tensor(self.std)
        return pixels.sub_(mean[:, None, None]).div_(std[:, None, None])
