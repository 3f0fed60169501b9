"""The paper's agent, which sets the rate of every step."""

from __future__ import annotations

import pytest
from torch import Generator

from incontrast import DDPG
from incontrast.schedules.paper_ddpg import Agent


def agent(seed: int = 0, **settings) -> Agent:
    return DDPG(**settings).begin(Generator().manual_seed(seed))


def test_rates_stay_in_their_range_and_are_rewarded_by_the_fall_of_the_loss() -> None:
    ours = agent(noise=3.0, low=1e-4, high=1e-2)
    losses = [3.0, 2.5, 2.6, 2.0]
    for loss in losses:
        ours.observe(loss)
        assert 1e-4 * 0.999 <= ours.next_lr(0.0) <= 1e-2 * 1.001
    seen = ours.replay.all()
    assert seen.reward.tolist() == pytest.approx([0.5, -0.1, 0.6])
    assert seen.state[-1, -3:, 0].tolist() == pytest.approx([3.0, 2.5, 2.6])
    assert seen.following[-1, -3:, 0].tolist() == pytest.approx([2.5, 2.6, 2.0])


def test_the_same_seed_proposes_the_same_rates() -> None:
    def rates(seed: int) -> list[float]:
        ours, proposed = agent(seed), []
        for step in range(40):
            ours.observe(3.0 / (step + 1))
            proposed.append(ours.next_lr(0.0))
        return proposed

    assert rates(0) == rates(0)
    assert rates(0) != rates(1)
