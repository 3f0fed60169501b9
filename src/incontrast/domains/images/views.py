"""Random views of images: crop, flip, colours and blur, for a whole batch at once."""

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Generator, Tensor
from torch.nn import functional

from incontrast.bounds import check_number
from incontrast.domains.base import Part, constant

DRAWS = 13  # random numbers for a view of an image
CHUNK_BYTES = 2**21  # of views on a CPU: so many, and what is computed from them, stay in the cache
CHUNK_IMAGES = 512  # on other devices, where every chunk costs as many launches
SHARP = 1e-3  # pixels: the deviation of a blur that changes nothing
_LUMA = (0.299, 0.587, 0.114)
_YIQ = (_LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


@dataclass(frozen=True, kw_only=True)
class ImageViews:
    """What a random view of an image is: SimCLR's recipe, with parameters drawn per image.

    The recipe is torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter``,
    ``RandomGrayscale`` and ``GaussianBlur``. Unlike there, all colour changes of an image are one
    small matrix: hue is a rotation in YIQ space, not a shift in HSV, and brightness, contrast,
    saturation, hue and grayscale change in this order, with one clamp at the end. Crops may begin
    and end between pixels, and are cut at the border. With one channel, only brightness and
    contrast change.

    Args:
        scale: Smallest and largest area of the crop, as a share of the image.
        ratio: Smallest and largest width / height of the crop (log-uniform).
        flip: Probability of a horizontal flip. Set 0 where left and right matter (digits, text).
        jitter: Largest change of brightness, contrast, saturation (factors 1 ± x), hue (± turns).
        jitter_probability: Probability of any jitter.
        grayscale: Probability of losing all colour.
        blur: Probability of a Gaussian blur.
        blur_sigma: Smallest and largest standard deviation of the blur, in pixels.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_probability: float = 0.8
    grayscale: float = 0.2
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        for name, count, interval in (
            ("scale", 2, "(0, 1]"),
            ("ratio", 2, "(0, inf)"),
            ("jitter", 4, "[0, 1]"),
            ("blur_sigma", 2, "(0, inf)"),
        ):
            values = tuple(getattr(self, name))
            if len(values) != count:
                raise ValueError(f"{name} must be {count} numbers, got {values}")
            check_number(interval, **{f"{name}[{i}]": value for i, value in enumerate(values)})
            if count == 2 and values[0] > values[1]:
                raise ValueError(f"{name} must be (low, high) with low <= high, got {values}")
            object.__setattr__(self, name, values)
        names = ("flip", "jitter_probability", "grayscale", "blur")
        check_number("[0, 1]", "it is a probability", **{n: getattr(self, n) for n in names})
        check_number("[0, 0.5]", hue=self.jitter[3])

    def __call__(self, pixels: Tensor, generator: Generator) -> Tensor:
        """One random view of every image, (n, C, S, S) in [0, 1]; the images do not change."""
        draws = torch.rand(DRAWS, len(pixels), generator=generator, device=pixels.device)
        return self._apply(pixels, draws.to(pixels.dtype))

    def two_views(self, pixels: Tensor, generator: Generator, part: Part | None = None) -> Tensor:
        """Two random views of every image; ``pixels`` may be those of a ``part`` of a batch.

        Shapes:
            pixels: (n, C, S, S) in [0, 1], C 1 or 3
            result: (2n, C, S, S), all first views and then all second ones
        """
        total, own = (len(pixels), slice(None)) if part is None else (part.total, part.range)
        # One draw for everything, used or not: changing one setting does not change the others.
        draws = torch.rand(DRAWS, 2, total, generator=generator, device=pixels.device)
        draws = draws[..., own].to(pixels.dtype)
        in_cache = max(CHUNK_BYTES // (2 * pixels[:1].nbytes or 1), 1)
        size = in_cache if pixels.is_cpu else CHUNK_IMAGES
        if len(pixels) <= size:
            return self._apply(torch.cat([pixels, pixels]), draws.flatten(1))
        views = pixels.new_empty(2, *pixels.shape)
        columns = ((pixels, 0), (draws, 2), (views, 1))
        chunks = (torch.split(column, size, dim) for column, dim in columns)
        for images, numbers, result in zip(*chunks, strict=True):
            both = self._apply(torch.cat([images, images]), numbers.flatten(1))
            result.copy_(both.view_as(result))
        return views.flatten(0, 1)

    def _apply(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """The views that (13, n) numbers from 0 to 1 determine."""
        intervals = (  # of each number
            *(self.scale, tuple(map(math.log, self.ratio)), *[(0.0, 1.0)] * 4),
            *((-change, change) for change in self.jitter),
            *((0.0, 1.0), (0.0, 1.0), self.blur_sigma),
        )
        numbers = tuple(zip(*((low, high - low) for low, high in intervals), strict=True))
        low, span = constant(numbers, draws.dtype, draws.device)
        draws = (draws * span[:, None]).add_(low[:, None])
        area, ratio, _, _, flip, jitter, *_, gray, blurred, sigma = draws.unbind()
        ratio = ratio.exp()
        sides = torch.stack([area / ratio, area * ratio]).sqrt_().clamp_(max=1)
        (height, width), (top, left) = sides.unbind(), (draws[2:4] * (1 - sides)).unbind()
        view = crop(pixels, top, left, height, width, flip < self.flip)

        changes = draws[6:10] * (jitter < self.jitter_probability)
        brightness, contrast, saturation = (1 + changes[:3]).unbind()
        saturation = saturation * (gray >= self.grayscale)
        view = recolour(view, brightness, contrast, saturation, changes[3])

        if self.blur > 0:
            # All images are blurred, most of them by nothing: a device would wait for a choice.
            view = blur(view, torch.where(blurred < self.blur, sigma, SHARP))
        return view


def crop(
    pixels: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, flipped: Tensor
) -> Tensor:
    """A box of each image, enlarged to the size of the image, bilinear; mirrored where flipped.

    A box is never larger than its image, so no antialiasing is needed.

    Shapes:
        pixels: (n, C, S, S)
        top, left, height, width: (n,) as shares of the image
        flipped: (n,) bool
        result: (n, C, S, S)
    """
    size = pixels.shape[-1]
    centres = _centres(size, pixels.dtype, pixels.device)
    across = torch.where(flipped, -width, width)
    # (n, S, 2S): pairs of x + 0·y and 0 + 1·y, in half the time of filling in x and y.
    xs = pixels.new_zeros(len(pixels), size, 2)
    xs[..., 0] = across[:, None] * centres + (2 * left + width - 1)[:, None]
    ys = height[:, None] * centres + (2 * top + height - 1)[:, None]
    only_y = constant((0.0, 1.0) * size, pixels.dtype, pixels.device)
    grid = torch.addcmul(xs.view(-1, 1, 2 * size), ys[:, :, None], only_y).view(-1, size, size, 2)
    return functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def recolour(
    pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
) -> Tensor:
    """Changes the colours of each image, and clamps them to [0, 1].

    With L the projection on grey (every channel becomes the luma) and C the quarter turn of
    chroma, saturation s and a hue of θ are L + s·cos θ·(I − L) + s·sin θ·C; s = 0 is greyscale.
    Brightness b and contrast c scale that by b·c and add (1 − c)·b·(mean luma).

    Shapes:
        pixels: (n, C, S, S)
        brightness, contrast, saturation: (n,) factors, 1 changes nothing
        hue: (n,) in turns, 0 changes nothing
        result: (n, C, S, S)
    """
    gain, offset = brightness * contrast, (1 - contrast) * brightness
    if pixels.shape[1] == 1:
        offset = offset[:, None] * pixels.mean((2, 3))
        changed = (pixels * gain[:, None, None, None]).add_(offset[:, :, None, None])
        return changed.clamp_(0, 1)
    like = (pixels.dtype, pixels.device)
    luma = constant(_LUMA, *like)
    to_gray = constant((_LUMA,) * 3, *like)  # L
    chroma = constant(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)), *like) - to_gray
    angle = 2 * math.pi * hue
    matrix = (
        to_gray
        + (saturation * angle.cos())[:, None, None] * chroma
        + (saturation * angle.sin())[:, None, None] * constant(_quarter_turn(), *like)
    ) * gain[:, None, None]
    offset = (offset * (pixels.mean((2, 3)) @ luma))[:, None, None]
    changed = torch.baddbmm(offset, matrix, pixels.flatten(2))
    return changed.clamp_(0, 1).view_as(pixels)


def blur(pixels: Tensor, sigma: Tensor) -> Tensor:
    """Blurs each image by a Gaussian of its own width, cut off and renormalised at the border.

    Shapes:
        pixels: (n, C, S, S)
        sigma: (n,) in pixels
        result: (n, C, S, S)
    """
    place = torch.arange(pixels.shape[-1], device=pixels.device, dtype=pixels.dtype)
    distance = (place[:, None] - place) / sigma[:, None, None]
    # Cut off where it is below rounding: denormal numbers would make the product ten times slower.
    kernel = torch.where(distance.abs() < 6, (-distance.square() / 2).exp(), 0)
    kernel = (kernel / kernel.sum(-1, keepdim=True))[:, None]  # (n, 1, S, S)
    return kernel @ pixels @ kernel.mT


@lru_cache(maxsize=16)
def _centres(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The centres of pixels in the coordinates of grid_sample: -1 and 1 are the outer borders."""
    return (2 * torch.arange(size, device=device, dtype=dtype) + 1) / size - 1


@cache
def _quarter_turn() -> tuple[tuple[float, ...], ...]:
    yiq = torch.tensor(_YIQ, dtype=torch.float64)
    quarter = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]).double()
    turn = torch.linalg.inv(yiq) @ quarter @ yiq
    return tuple(tuple(row) for row in turn.tolist())
