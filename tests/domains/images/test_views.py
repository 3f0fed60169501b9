"""Views of images, compared with loops written from the definitions."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from torch import Generator, Tensor

from incontrast.domains.images.views import DRAWS, ImageViews, blur, crop, recolour

UNCHANGED = ImageViews(
    scale=(1, 1), ratio=(1, 1), flip=0, jitter_probability=0, grayscale=0, blur=0
)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def pictures(count: int, channels: int = 3, size: int = 8) -> Tensor:
    return torch.rand(count, channels, size, size, generator=seeded(7))


def naive_crop(
    image: Tensor, top: float, left: float, height: float, width: float, flipped: bool
) -> Tensor:
    """Every pixel of the result is interpolated between the four that are nearest."""
    size = image.shape[-1]
    result = torch.empty_like(image)
    for row in range(size):
        for column in range(size):
            along = size - 1 - column if flipped else column
            y = min(max((top + (row + 0.5) / size * height) * size - 0.5, 0), size - 1)
            x = min(max((left + (along + 0.5) / size * width) * size - 0.5, 0), size - 1)
            y0, x0 = min(int(y), size - 2), min(int(x), size - 2)
            dy, dx = y - y0, x - x0
            result[:, row, column] = (
                (1 - dy) * ((1 - dx) * image[:, y0, x0] + dx * image[:, y0, x0 + 1])
            ) + dy * ((1 - dx) * image[:, y0 + 1, x0] + dx * image[:, y0 + 1, x0 + 1])
    return result


def naive_recolour(
    image: Tensor, brightness: float, contrast: float, saturation: float, hue: float
) -> Tensor:
    """One change after the other; hue by turning I and Q, pixel by pixel."""

    def luma(image: Tensor) -> Tensor:
        return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]

    image = image * brightness
    image = contrast * image + (1 - contrast) * luma(image).mean()
    image = saturation * image + (1 - saturation) * luma(image)
    yiq = torch.tensor(
        [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]]
    )
    back = torch.linalg.inv(yiq)
    angle = 2 * math.pi * hue
    result = torch.empty_like(image)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            y, i, q = yiq @ image[:, row, column]
            turned = torch.stack(
                [
                    y,
                    i * math.cos(angle) - q * math.sin(angle),
                    i * math.sin(angle) + q * math.cos(angle),
                ]
            )
            result[:, row, column] = back @ turned
    return result.clamp(0, 1)


def test_crop_equals_a_loop() -> None:
    images = pictures(6, size=9)
    height, width = (0.3 + 0.7 * torch.rand(2, 6, generator=seeded(1))).unbind()
    top, left = torch.rand(2, 6, generator=seeded(2)).unbind()
    top, left = top * (1 - height), left * (1 - width)
    flipped = torch.arange(6) % 2 == 0
    result = crop(images, top, left, height, width, flipped)
    for item in range(6):
        numbers = [float(values[item]) for values in (top, left, height, width)]
        expected = naive_crop(images[item], *numbers, bool(flipped[item]))
        torch.testing.assert_close(result[item], expected, atol=1e-5, rtol=0)


def test_a_flip_of_the_whole_image_mirrors_it() -> None:
    images = pictures(2)
    whole, nothing = torch.ones(2), torch.zeros(2)
    result = crop(images, nothing, nothing, whole, whole, torch.tensor([True, False]))
    torch.testing.assert_close(result[0], images[0].flip(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(result[1], images[1], atol=1e-5, rtol=0)


def test_recolour_equals_one_change_after_the_other() -> None:
    images = pictures(5)
    draws = torch.rand(4, 5, generator=seeded(3))
    brightness, contrast, saturation = 0.6 + 0.8 * draws[:3]
    hue = 0.2 * draws[3] - 0.1
    result = recolour(images, brightness, contrast, saturation, hue)
    for item in range(5):
        numbers = [float(values[item]) for values in (brightness, contrast, saturation, hue)]
        expected = naive_recolour(images[item], *numbers)
        torch.testing.assert_close(result[item], expected, atol=1e-5, rtol=0)


def test_linear_hue_turns_as_hsv_does() -> None:
    """Not the same colours as HSV's, but the same way round, and about as far."""
    color = (0.7, 0.4, 0.3)
    result = recolour(
        torch.tensor(color).view(1, 3, 1, 1),
        torch.ones(1),
        torch.ones(1),
        torch.ones(1),
        torch.tensor([-0.1]),
    )
    before, after = (colorsys.rgb_to_hsv(*c)[0] for c in (color, result.flatten().tolist()))
    assert after - before == pytest.approx(0.1, abs=0.06)


def test_no_saturation_is_luma_in_every_channel() -> None:
    images = pictures(3)
    one = torch.ones(3)
    result = recolour(images, one, one, torch.zeros(3), torch.full((3,), 0.1))
    luma = torch.einsum("nchw,c->nhw", images, torch.tensor([0.299, 0.587, 0.114]))
    torch.testing.assert_close(result, luma[:, None].expand(-1, 3, -1, -1), atol=1e-5, rtol=0)


def test_one_channel_changes_in_brightness_and_contrast_only() -> None:
    images = pictures(2, channels=1)
    result = recolour(
        images,
        torch.full((2,), 0.9),
        torch.full((2,), 1.2),
        torch.tensor([0.0, 1.3]),
        torch.tensor([0.1, -0.1]),
    )
    expected = 1.2 * 0.9 * images - 0.2 * (0.9 * images).mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(result, expected.clamp(0, 1), atol=1e-5, rtol=0)


def test_blur_equals_a_loop() -> None:
    images, sigma = pictures(2, size=7), torch.tensor([0.4, 1.7])
    result = blur(images, sigma)
    for item in range(2):
        for row in range(7):
            for column in range(7):
                weight = torch.tensor(
                    [
                        [
                            math.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * sigma[item] ** 2))
                            for x in range(7)
                        ]
                        for y in range(7)
                    ]
                )
                expected = (images[item] * weight).sum((1, 2)) / weight.sum()
                torch.testing.assert_close(
                    result[item, :, row, column], expected, atol=1e-5, rtol=0
                )


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_to_change_gives_the_input_back(channels: int) -> None:
    images = pictures(4, channels)
    torch.testing.assert_close(UNCHANGED(images, seeded()), images, atol=1e-5, rtol=0)


def test_the_same_seed_gives_the_same_bits_and_the_input_stays() -> None:
    views, images = ImageViews(blur=0.5), pictures(16)
    before = images.clone()
    first, again, other = (views(images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)


def test_two_views_in_one_pass_are_those_of_two_passes() -> None:
    pixels = torch.rand(5, 3, 16, 16)
    views = ImageViews(blur=0.5, grayscale=0.5)
    draws = torch.rand(DRAWS, 2, 5, generator=seeded(3))
    both = views.two_views(pixels, seeded(3))
    for which, view in enumerate(both.chunk(2)):
        torch.testing.assert_close(view, views._apply(pixels, draws[:, which]))


def test_views_stay_in_range_and_differ_between_items() -> None:
    same = pictures(1).expand(64, -1, -1, -1)
    view = ImageViews(blur=0.3)(same, seeded())
    assert view.min() >= 0
    assert view.max() <= 1
    assert len({tuple(item.flatten().tolist()) for item in view}) == 64


def test_changing_one_setting_leaves_the_other_draws() -> None:
    images = pictures(32)
    plain = ImageViews(jitter_probability=0, grayscale=0)(images, seeded())
    blurred = ImageViews(jitter_probability=0, grayscale=0, blur=0.5)(images, seeded())
    same = torch.isclose(plain, blurred, atol=1e-6).flatten(1).all(1)
    assert 0 < same.sum() < 32


def count_changed(views: ImageViews, expected: Tensor, images: Tensor) -> float:
    view = views(images, seeded(5))
    return torch.isclose(view, expected, atol=1e-4).flatten(1).all(1).double().mean().item()


def test_flips_and_greys_are_as_frequent_as_asked() -> None:
    images = pictures(1, size=4).expand(4000, -1, -1, -1)
    still = {"scale": (1, 1), "ratio": (1, 1), "jitter_probability": 0}
    flipped = count_changed(ImageViews(**still, flip=0.3, grayscale=0), images.flip(3), images)
    assert flipped == pytest.approx(0.3, abs=0.03)
    one = torch.ones(4000)
    gray = recolour(images, one, one, 0 * one, one)
    share = count_changed(ImageViews(**still, flip=0, grayscale=0.2), gray, images)
    assert share == pytest.approx(0.2, abs=0.03)
    jitter = {"scale": (1, 1), "ratio": (1, 1), "flip": 0, "grayscale": 0}
    share = count_changed(ImageViews(**jitter, jitter_probability=0.8), images, images)
    assert share == pytest.approx(0.2, abs=0.03)


def test_crops_have_the_area_and_shape_asked_for() -> None:
    """A ramp tells where a crop was: its slope is the width or height of the box."""
    size = 16
    ramp = (torch.arange(size) + 0.5) / size
    images = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)])
    images = torch.cat([images, torch.zeros(1, size, size)]).expand(2000, -1, -1, -1)
    views = ImageViews(scale=(0.2, 0.6), flip=0, jitter_probability=0, grayscale=0)
    view = views(images, seeded(2))
    # Two pixels in the middle, away from the border, where nothing is clamped.
    width = (view[:, 0, 8, 9] - view[:, 0, 8, 7]) * size / 2
    height = (view[:, 1, 9, 8] - view[:, 1, 7, 8]) * size / 2
    area, ratio = width * height, width / height
    assert area.min() + 1e-3 >= 0.2
    assert area.max() <= 0.6 + 1e-3
    assert area.mean().item() == pytest.approx(0.4, abs=0.01)
    assert ratio.min() + 1e-3 >= 3 / 4
    assert ratio.max() <= 4 / 3 + 1e-3
    assert ratio.log().mean().item() == pytest.approx(0, abs=0.02)
    left = view[:, 0, 8, 8] - width * (8.5 / size)
    assert left.min() >= -1e-3
    assert (left + width).max() <= 1 + 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (0, 1)}, r"scale\[0\] must be in \(0, 1\], got 0"),
        ({"scale": (0.2, 1.5)}, r"scale\[1\] must be"),
        ({"scale": (0.9, 0.2)}, r"scale must be \(low, high\) with low <= high, got \(0.9, 0.2\)"),
        ({"scale": (0.2,)}, "scale must be 2 numbers"),
        ({"ratio": (-1, 1)}, r"ratio\[0\] must be"),
        ({"ratio": (1, math.inf)}, r"ratio\[1\] must be"),
        ({"flip": 1.5}, r"flip must be in \[0, 1\], got 1.5: it is a probability"),
        ({"grayscale": math.nan}, "grayscale must be in"),
        ({"jitter": (0.4, 0.4, 0.4)}, "jitter must be 4 numbers"),
        ({"jitter": (2, 0.4, 0.4, 0.1)}, r"jitter\[0\] must be in \[0, 1\], got 2"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, r"hue must be in \[0, 0.5\], got 0.6"),
        ({"blur_sigma": (0, 1)}, r"blur_sigma\[0\] must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageViews(**settings)  # type: ignore[arg-type]


def test_views_of_many_images_are_made_part_by_part(monkeypatch) -> None:
    pixels = torch.rand(7, 3, 8, 8, generator=Generator().manual_seed(0))
    whole = ImageViews(blur=0.5).two_views(pixels, seeded(1))
    monkeypatch.setattr("incontrast.domains.images.views.CHUNK_BYTES", 3 * 2 * 3 * 8 * 8 * 4)
    parts = ImageViews(blur=0.5).two_views(pixels, seeded(1))
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize(("device", "at_once"), [("cpu", 1), ("meta", 9)])
def test_large_images_are_viewed_together_where_a_launch_costs_more_than_the_cache(
    monkeypatch, device: str, at_once: int
) -> None:
    parts: list[int] = []
    apply = ImageViews._apply
    monkeypatch.setattr(
        ImageViews,
        "_apply",
        lambda self, pixels, draws: (parts.append(len(pixels)), apply(self, pixels, draws))[1],
    )
    pixels = torch.empty(9, 3, 400, 400, device=device)
    assert len(ImageViews(jitter=(0, 0, 0, 0)).two_views(pixels, seeded())) == 18
    assert parts == [2 * at_once] * (9 // at_once)
