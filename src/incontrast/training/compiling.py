"""The encoder of training steps as ``torch.compile`` makes it: never in place.

Only forward passes with gradients and the encoder's own weights are compiled. The module that is
copied, averaged, saved, measured and hooked into stays as it is, so nothing else has to know.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


def compiled(encoder: nn.Module, device: torch.device) -> nn.Module:
    """What gives the embeddings of an encoder, and shares its weights and statistics.

    Raises:
        RuntimeError: torch cannot compile for this device on this machine.
    """
    probe: Any = torch.compile(_negative)
    try:
        probe(torch.ones(2, device=device))
    except Exception as error:  # what a missing compiler raises is of torch's private classes
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise RuntimeError(
            f"compile=True: torch cannot compile for {device.type!r} here ({reason[0]}). Install "
            "what it needs (on a CPU a C++ compiler, such as g++), or leave compile out"
        ) from error
    return cast(nn.Module, torch.compile(encoder))


def _negative(values: Tensor) -> Tensor:
    return -values
