"""Views per second on one thread: whole batches, and the same changes one image at a time.

    python benchmarks/image_views.py

"Pillow" and "tensor" are what torchvision does with PIL images and with tensors, written out here.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator, Tensor
from torch.nn import functional

from incontrast.domains.images.domain import Images

MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def box(size: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random crop: 10 tries, then all of the image."""
    for _ in range(10):
        area = random.uniform(0.2, 1) * size * size
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= size and 0 < height <= size:
            return random.randint(0, size - width), random.randint(0, size - height), width, height
    return 0, 0, size, size


def factor() -> float:
    return random.uniform(0.6, 1.4)


def pillow_view(image: Image.Image) -> Tensor:
    size = image.width
    left, top, width, height = box(size)
    image = image.resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    if random.random() < 0.5:
        image = ImageOps.mirror(image)
    if random.random() < 0.8:

        def turn_hue(image: Image.Image) -> Image.Image:
            hue, saturation, value = image.convert("HSV").split()
            shift = round(random.uniform(-0.1, 0.1) * 255)
            hue = hue.point([(level + shift) % 256 for level in range(256)])
            return Image.merge("HSV", (hue, saturation, value)).convert("RGB")

        changes: list[Callable[[Image.Image], Image.Image]] = [
            lambda image: ImageEnhance.Brightness(image).enhance(factor()),
            lambda image: ImageEnhance.Contrast(image).enhance(factor()),
            lambda image: ImageEnhance.Color(image).enhance(factor()),
            turn_hue,
        ]
        for change in random.sample(changes, 4):
            image = change(image)
    if random.random() < 0.2:
        image = image.convert("L").convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(size, size, 3)
    return (pixels.permute(2, 0, 1).contiguous().float() / 255 - MEAN) / STD


def tensor_view(image: Tensor) -> Tensor:
    size = image.shape[-1]
    left, top, width, height = box(size)
    view = image[:, top : top + height, left : left + width].float()[None] / 255
    view = functional.interpolate(view, (size, size), mode="bilinear", antialias=True)[0]
    if random.random() < 0.5:
        view = view.flip(2)
    if random.random() < 0.8:
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda view: (view * factor()).clamp(0, 1),
            lambda view: blend(view, luma(view).mean(), factor()),
            lambda view: blend(view, luma(view), factor()),
            lambda view: turn_hue(view, random.uniform(-0.1, 0.1)),
        ]
        for change in random.sample(changes, 4):
            view = change(view)
    if random.random() < 0.2:
        view = luma(view).expand(3, -1, -1)
    return (view - MEAN) / STD


def luma(view: Tensor) -> Tensor:
    return 0.299 * view[:1] + 0.587 * view[1:2] + 0.114 * view[2:]


def blend(view: Tensor, other: Tensor, share: float) -> Tensor:
    return (share * view + (1 - share) * other).clamp(0, 1)


def turn_hue(view: Tensor, shift: float) -> Tensor:
    """To HSV, a turn, and back."""
    high, low = view.amax(0), view.amin(0)
    spread = torch.where(high > low, high - low, 1)
    red, green, blue = (high - view) / spread
    hue = torch.where(
        view[0] == high,
        blue - green,
        torch.where(view[1] == high, 2 + red - blue, 4 + green - red),
    )
    hue = (hue / 6 + shift) % 1
    saturation = (high - low) / torch.where(high > 0, high, 1)
    place = (torch.tensor([5.0, 3.0, 1.0])[:, None, None] + 6 * hue) % 6
    return high - high * saturation * torch.minimum(place, 4 - place).clamp(0, 1)


def rate(make: Callable[[], object], views: int, seconds: float = 2.0) -> float:
    """Views per second, of the best run."""
    best = math.inf
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        make()
        best = min(best, time.perf_counter() - start)
    return views / best


def main() -> None:
    torch.set_num_threads(1)
    random.seed(0)
    print(f"{'pixels':>6} {'batch':>5} {'batched/s':>10} {'Pillow/s':>9} {'tensor/s':>9}  ratios")
    for size, count in ((32, 256), (224, 32)):
        generator = Generator().manual_seed(0)
        batch = torch.randint(
            0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator
        )
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch]
        domain = Images(size)
        batched = rate(lambda: domain.views(batch, generator), 2 * count)  # noqa: B023
        pillow = rate(lambda: [pillow_view(image) for image in pictures], count)  # noqa: B023
        tensor = rate(lambda: [tensor_view(image) for image in batch], count)  # noqa: B023
        print(
            f"{size:6} {count:5} {batched:10,.0f} {pillow:9,.0f} {tensor:9,.0f}  "
            f"{batched / pillow:.1f}× Pillow, {batched / tensor:.1f}× tensor"
        )


if __name__ == "__main__":
    main()
