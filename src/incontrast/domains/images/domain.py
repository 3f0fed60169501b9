"""The domain of images."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from incontrast.bounds import check_number, check_whole
from incontrast.domains.arguments import ArgumentDomain, halves
from incontrast.domains.base import Part, check_distinct, constant
from incontrast.domains.images.collection import ImageCollection, read_images
from incontrast.domains.images.encoders import ResNet18, SmallEncoder
from incontrast.domains.images.files import decode
from incontrast.domains.images.views import ImageViews
from incontrast.randomness import generator

Network = Literal["resnet18", "resnet18-standard", "small"]

_IMAGENET = {  # channels: mean and std
    1: ((0.449,), (0.226,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_PIXELS, _FILE = b"p", b"f"  # the first byte of a packed item


@dataclass(frozen=True)
class Images(ArgumentDomain):
    """Images, seen as squares of one size.

    ``Images(224)`` is the setting of the paper. Up to 64 px, ResNet-18 begins with a 3×3
    convolution that loses nothing (see ``ResNet18``).

    Args:
        size: Side in pixels; larger and smaller images are resized and cropped at the centre.
        channels: 3 (colour) or 1 (grey); images are converted.
        encoder: ``"resnet18"``; ``"resnet18-standard"``, with its usual 7×7 beginning at any
            size, a third of the work at 32 px; ``"small"``, for 8 to 32 px without an accelerator;
            your own (pretrained) module, which is copied; or a function without arguments that
            makes a new module. Takes (n, channels, size, size) and gives (n, d).
        views: ``ImageViews``, or whatever makes one random view of (n, channels, size, size) pixels
            in [0, 1]: a function of pixels and a ``torch.Generator``, or a ``torch.nn.Module``
            (torchvision's v2 transforms, kornia).
        mean: Mean of the pixels in [0, 1] for each channel, or one number for all; None for
            ImageNet's.
        std: Their standard deviation; None for ImageNet's.

    >>> domain = Images(8, channels=1, encoder="small")
    >>> batch = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    >>> first, second = domain.views(batch, torch.Generator().manual_seed(0))
    >>> domain.encoder()(first).shape
    torch.Size([5, 128])
    """

    size: int
    channels: int = 3
    _: KW_ONLY
    encoder: Any = field(default_factory=lambda: "resnet18")
    views: Any = field(default_factory=ImageViews)
    mean: tuple[float, ...] | float | None = None
    std: tuple[float, ...] | float | None = None

    kind = "images"
    networks: ClassVar[tuple[str, ...]] = get_args(Network)
    recipe: ClassVar[type] = ImageViews

    def __post_init__(self) -> None:
        check_whole(4, size=self.size)
        if self.channels not in _IMAGENET:
            raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {self.channels!r}")
        for name, usual in zip(("mean", "std"), _IMAGENET[self.channels], strict=True):
            value = getattr(self, name)
            if value is None:
                continue
            numbers = tuple(value) if isinstance(value, Iterable) else (value,) * self.channels
            if len(numbers) != self.channels:
                raise ValueError(f"{name} must have {self.channels} numbers, got {numbers}")
            interval = "(-inf, inf)" if name == "mean" else "[1e-6, inf)"
            check_number(interval, **{f"{name}[{i}]": value for i, value in enumerate(numbers)})
            object.__setattr__(self, name, None if numbers == usual else numbers)
        super().__post_init__()

    @property
    def normalisation(self) -> str:
        """What is done to pixels before the encoder sees them."""
        mean, std = map(list, self._statistics())
        return f"pixels / 255, minus mean {mean}, divided by std {std}"

    def arguments(self) -> dict[str, Any]:
        mean, std = self._statistics()
        return super().arguments() | {"mean": mean, "std": std}

    def collect(self, items: Any) -> ImageCollection:
        """Take an array or tensor (n, H, W), (n, H, W, C) or (n, C, H, W), uint8 or floating point
        in [0, 1]; a folder, searched with all below it; a torch Dataset of images or of tuples that
        begin with one; a list of paths, PIL images or arrays; or an ``ImageCollection``.

        An array that fits already is kept, not copied: leave it as it is afterwards. Files stay on
        disk and are decoded when needed; only their headers are read here.
        """
        return read_images(items, self.size, self.channels)

    def collect_json(self, items: list[Any]) -> ImageCollection:
        """Take the contents of image files, as bytes or in base64, also as data URIs."""
        contents = [_content(item, number) for number, item in enumerate(items)]
        pixels, _ = decode(contents, size=self.size, channels=self.channels, strict=True)
        return ImageCollection(pixels)

    def examples(self) -> ImageCollection:
        size = (4, self.channels, self.size, self.size)
        draws = generator(0, "examples")
        return ImageCollection(torch.randint(256, size, dtype=torch.uint8, generator=draws))

    def fit_statistics(self, collection: Any) -> Images:
        if not collection.files:
            check_distinct(collection.pixels)
        return self

    def prepare(self, batch: Tensor) -> Tensor:
        """(n, C, S, S) uint8 pixels as normalised floats."""
        return self.after_views(batch / 255)

    def sides(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return batch / 255, batch / 255

    def after_views(self, view: Tensor) -> Tensor:
        """(n, C, S, S) pixels in [0, 1], normalised in place."""
        mean, std = constant(self._statistics(), view.dtype, view.device)
        return view.sub_(mean[:, None, None]).div_(std[:, None, None])

    def own_views(self, batch: Tensor, generator: Generator, part: Part | None = None) -> Tensor:
        return self.after_views(self.views.given.two_views(batch / 255, generator, part))

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Tensor, Tensor]:
        if not self.usual_views:
            return super().views_of_part(part, generator)
        return halves(self.own_views(part.batch, generator, part))

    @property
    def views_by_part(self) -> bool:  # type: ignore[override]
        return self.usual_views

    def own_encoder(self) -> nn.Module:
        name = self.encoder.given
        if name == "small":
            return SmallEncoder(self.channels, self.size)
        small = name in (None, "resnet18") and self.size <= 64
        return ResNet18(self.channels, "small" if small else "standard")

    def materialise(self, collection: ImageCollection, indices: Tensor) -> ImageCollection:
        return ImageCollection(collection.take(indices))

    def pack(self, collection: ImageCollection, indices: Tensor) -> list[bytes]:
        """Each item as bytes: its pixels, or the path of its file (which must stay in place)."""
        chosen = collection.select(indices)
        rows, files = iter(chosen.pixels.contiguous().numpy()), iter(chosen.files)
        return [
            _FILE + os.fsencode(next(files)) if on_disk else _PIXELS + next(rows).tobytes()
            for on_disk in chosen.on_disk.tolist()
        ]

    def unpack(self, blobs: Sequence[bytes]) -> ImageCollection:
        shape = (self.channels, self.size, self.size)
        pixels, files = bytearray(), []
        for number, blob in enumerate(blobs):
            tag, content = blob[:1], blob[1:]
            if tag == _PIXELS and len(content) == math.prod(shape):
                pixels += content
            elif tag == _FILE and content and b"\0" not in content:
                files.append(os.fsdecode(content))
            else:
                raise ValueError(
                    f"packed item {number} ({len(blob)} bytes) is neither the pixels of an image "
                    f"of shape {shape} nor a path: it is damaged or from another domain"
                )
        flat = torch.frombuffer(pixels, dtype=torch.uint8) if pixels else torch.empty(0).byte()
        on_disk = torch.tensor([blob[:1] == _FILE for blob in blobs], dtype=torch.bool)
        return ImageCollection(flat.view(-1, *shape), files, on_disk)

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        statistics: tuple[Any, Any] = (self.mean, self.std)
        mean, std = _IMAGENET[self.channels]
        return statistics[0] or mean, statistics[1] or std


def _content(item: Any, number: int) -> bytes:
    if isinstance(item, bytes):
        return item
    try:
        return base64.b64decode(item.rpartition(",")[2], validate=True)
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"image {number} must be the content of an image file in base64, got {str(item)[:40]!r}"
        ) from error
