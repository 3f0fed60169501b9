"""Arrays of images, checked and brought to one size and number of channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["as_tensor", "fit_arrays"]

CHUNK = 1024  # images converted at a time, so that large arrays need little memory beside them
_TORCH_KNOWS = {"u1", "f2", "f4", "f8"}  # NumPy's names of the types that images may have


def as_tensor(array: np.ndarray[Any, Any] | Tensor) -> Tensor:
    """The array as a tensor on the CPU, without a copy where that is possible."""
    if isinstance(array, Tensor):
        if array.dtype != torch.uint8 and not array.is_floating_point():
            raise _wrong_type(array.dtype)
        return array.detach().cpu()
    if array.dtype.str[1:] not in _TORCH_KNOWS:
        raise _wrong_type(array.dtype)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def fit_arrays(images: Tensor, size: int, channels: int) -> Tensor:
    """Images as pixels of the size and channels asked for; what fits already is not copied.

    Shapes:
        images: (n, H, W), (n, H, W, C) or (n, C, H, W), uint8 or floating point in [0, 1]
        result: (n, channels, size, size) uint8
    """
    images = _channels_first(images)
    if images.dtype == torch.uint8 and images.shape[1:] == (channels, size, size):
        return images.contiguous()
    pixels = torch.empty(len(images), channels, size, size, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        chunk = _to_bytes(images[start : start + CHUNK])
        pixels[start : start + CHUNK] = _resized(_with_channels(chunk, channels), size)
    return pixels


def _channels_first(images: Tensor) -> Tensor:
    """(n, H, W), (n, H, W, C) or (n, C, H, W), checked, as a (n, C, H, W) view."""
    shape = tuple(images.shape)
    if images.dim() == 3:
        if shape[2] in (1, 3):
            raise ValueError(
                f"shape {shape} looks like one image, where (n, H, W) holds many: pass images[None]"
            )
        images = images[:, None]
    elif images.dim() == 4:
        first, last = shape[1] in (1, 3), shape[3] in (1, 3)
        if first and last:
            raise ValueError(
                f"shape {shape} can be read as (n, C, H, W) and as (n, H, W, C): "
                "images must be larger than 3 pixels"
            )
        if not (first or last):
            raise ValueError(
                f"images must have 1 or 3 channels, got shape {shape}: "
                "leave other channels (alpha) out"
            )
        images = images if first else images.permute(0, 3, 1, 2)
    else:
        raise ValueError(
            f"images must be (n, H, W), (n, H, W, C) or (n, C, H, W), got shape {shape}"
        )
    if images.shape[2] == 0 or images.shape[3] == 0:
        raise ValueError(f"images have no pixels: got shape {shape}")
    return images


def _to_bytes(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    low, high = images.min().item(), images.max().item()
    if not math.isfinite(low + high):
        raise ValueError("images must be finite numbers, got nan or infinite: mend or remove them")
    if low < 0 or high > 1:
        raise ValueError(
            f"floating point images must lie in [0, 1], got {low:.4g} to {high:.4g}: undo the "
            "normalisation (x * std + mean), or scale them; the domain normalises by itself"
        )
    return (images.float() * 255).round_().to(torch.uint8)


def _with_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    red, green, blue = images.to(torch.int32).unbind(1)
    # The whole numbers by which Pillow makes luma, so that arrays and files agree to the bit.
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma.to(torch.uint8)[:, None]


def _resized(images: Tensor, size: int) -> Tensor:
    """The centred square of each image, resized, as ``image_collection.fit`` does it."""
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, :, top : top + side, left : left + side]
    if side == size:
        return square
    return functional.interpolate(square, (size, size), mode="bilinear", antialias=True)


def _wrong_type(dtype: object) -> ValueError:
    return ValueError(
        "images must be uint8 (0 to 255) or floating point (0 to 1), "
        f"got {str(dtype).removeprefix('torch.')}: convert them, for example with .astype('uint8')"
    )
