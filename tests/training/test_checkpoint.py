"""Rolling back to a checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from incontrast.training.averages import ExponentialMovingAverage
from incontrast.training.resume import Checkpoint


class Run:
    """A little training run with everything that a checkpoint remembers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        parameters = list(self.encoder.parameters())
        self.optimizer = torch.optim.Adam(parameters, lr=0.1, fused=True)
        self.average = ExponentialMovingAverage(parameters, 0.9)
        self.checkpoint = Checkpoint(self.encoder, self.optimizer, self.average)

    def steps(self, count: int, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        for _ in range(count):
            loss = self.encoder(torch.randn(8, 3, generator=draws)).square().sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.average.update()

    def everything(self) -> list[torch.Tensor]:
        return [
            *(value.clone() for value in self.encoder.state_dict().values()),
            *(value.clone() for value in self.average.mean),
        ]


def check_that_nothing_happened(straight: Run, detour: Run) -> None:
    """A detour that is taken back leaves no trace."""
    detour.steps(5, seed=9)
    detour.checkpoint.restore()
    for run in (straight, detour):
        run.steps(3, seed=3)
    for ours, theirs in zip(detour.everything(), straight.everything(), strict=True):
        assert torch.equal(ours, theirs)


def test_training_resumes_from_a_checkpoint_as_if_nothing_had_happened() -> None:
    straight, detour = Run(), Run()
    for run in (straight, detour):
        run.steps(3, seed=1)
        run.checkpoint.take()
        run.steps(2, seed=2)
        run.checkpoint.take()
    check_that_nothing_happened(straight, detour)


def test_a_checkpoint_from_before_the_first_step_has_no_optimiser_state() -> None:
    straight, detour = Run(), Run()
    detour.checkpoint.take()
    check_that_nothing_happened(straight, detour)
