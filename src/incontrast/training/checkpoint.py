"""A point of training to roll back to."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from incontrast.training.optimizers import ExponentialMovingAverage


class Checkpoint:
    """Remembers weights, buffers, the optimiser's state and the averaged weights of a run."""

    def __init__(
        self, encoder: nn.Module, optimizer: torch.optim.Optimizer, ema: ExponentialMovingAverage
    ) -> None:
        self._encoder, self._optimizer, self._ema = encoder, optimizer, ema
        self.taken: dict[str, Any] = {}

    def take(self) -> None:
        """Remember the present."""
        self.taken = copy.deepcopy(self.present())

    def restore(self) -> None:
        """Bring the remembered past back."""
        if not self.taken:
            raise RuntimeError("the schedule asked for a rollback before any checkpoint")
        self.bring(self.taken)

    def present(self) -> dict[str, Any]:
        """The tensors and numbers of the run as they are, not copied."""
        return {
            "encoder": tensors(self._encoder),
            "optimizer": self._optimizer.state_dict(),
            "averaged": self._ema.mean,
            "averaged steps": self._ema.steps,
        }

    @torch.no_grad()
    def bring(self, past: dict[str, Any]) -> None:
        """Make the run what ``present`` gave, which stays as it is."""
        for name, tensor in tensors(self._encoder).items():
            tensor.copy_(past["encoder"][name])
        self._optimizer.load_state_dict(copy.deepcopy(past["optimizer"]))
        for mean, kept in zip(self._ema.mean, past["averaged"], strict=True):
            mean.copy_(kept)
        self._ema.steps = past["averaged steps"]


def tensors(encoder: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, those that are no part of a state dict too."""
    found = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    return {name: tensor.detach() for name, tensor in found.items()}
