"""The one seam between training and the machine it runs on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Engine", "Precision"]

Precision = Literal["float32", "bfloat16"]


class Engine:
    """One process, one device.

    Strategies, losses and domains never ask how many processes there are or where tensors live.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"mps"``, …; None takes a CUDA device if there is one.
        precision: ``"bfloat16"`` runs encoders under autocast; weights stay in float32.
    """

    def __init__(
        self, device: torch.device | str | None = None, precision: Precision = "float32"
    ) -> None:
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', got {precision!r}")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.precision = precision
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device {str(device)!r} cannot be used here ({error}): try device='cpu'"
            ) from error

    def place(self, value: Any) -> Any:
        """Put a batch or a module on the device."""
        return value.to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def gather(self, embeddings: Tensor) -> Tensor:
        """The embeddings of all processes, with gradients; there is one process here."""
        return embeddings

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
