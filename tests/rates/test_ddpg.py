"""The DDPG agent against its formulas."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Generator, Tensor

from incontrast import DDPG
from incontrast.rates import Cosine, Fixed
from incontrast.rates.ddpg import Actor, Agent, Critic, OrnsteinUhlenbeck, follow


def agent(seed: int = 0, **settings) -> Agent:
    return DDPG(**settings).begin(Generator().manual_seed(seed))


def batch(size: int = 5, window: int = 8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    return draw(size, window), 2 * draw(size) - 1, draw(size), draw(size, window)


def test_networks_are_the_papers() -> None:
    actor, critic = Actor(), Critic(8)
    assert (actor.memory.num_layers, actor.memory.hidden_size) == (2, 20)
    widths = [layer.out_features for layer in critic.layers if hasattr(layer, "out_features")]
    assert widths == [10, 10, 1]


def test_critic_and_actor_losses_are_their_formulas() -> None:
    ours = agent()
    for parameter in ours.target_critic.parameters():
        parameter.data.mul_(1.1)
    states, actions, rewards, following = batch()
    squares, values = [], []
    for i in range(5):
        future = ours.target_critic(following[[i]], ours.target_actor(following[[i]]))
        target = rewards[i] + 0.9 * future
        squares.append((ours.critic(states[[i]], actions[[i]]) - target).item() ** 2)
        values.append(ours.critic(states[[i]], ours.actor(states[[i]])).item())
    assert ours.critic_loss(batch()).item() == pytest.approx(sum(squares) / 5, rel=1e-5)
    assert ours.actor_loss(batch()).item() == pytest.approx(-sum(values) / 5, rel=1e-5)


def test_learning_moves_all_four_networks() -> None:
    ours = agent()
    networks = (ours.actor, ours.critic, ours.target_actor, ours.target_critic)
    before = [copy.deepcopy(network.state_dict()) for network in networks]
    ours.learn(batch())
    for network, state in zip(networks, before, strict=True):
        assert any(not torch.equal(state[name], v) for name, v in network.state_dict().items())


def test_targets_follow_with_momentum() -> None:
    target, online = Critic(3), Critic(3)
    expected = [
        0.999 * t + 0.001 * o for t, o in zip(target.parameters(), online.parameters(), strict=True)
    ]
    follow(target, online, 1e-3)
    for got, value in zip(target.parameters(), expected, strict=True):
        torch.testing.assert_close(got, value)


def test_ornstein_uhlenbeck_noise_is_its_recursion() -> None:
    noise = OrnsteinUhlenbeck(0.3, Generator().manual_seed(1), theta=0.15)
    twin, value = Generator().manual_seed(1), 0.0
    for _ in range(10):
        value = value - 0.15 * value + 0.3 * torch.randn((), generator=twin).item()
        assert noise.sample() == pytest.approx(value)


def test_ornstein_uhlenbeck_noise_is_stationary() -> None:
    noise = OrnsteinUhlenbeck(0.3, Generator().manual_seed(0))
    draws = torch.tensor([noise.sample() for _ in range(20_000)])
    assert draws.std().item() == pytest.approx(0.3 / math.sqrt(1 - 0.85**2), rel=0.1)


def test_rates_stay_in_their_range_and_are_rewarded_by_the_fall_of_the_loss() -> None:
    ours = agent(noise=3.0, low=1e-4, high=1e-2)
    losses = [3.0, 2.5, 2.6, 2.0]
    for loss in losses:
        ours.observe(loss)
        assert 1e-4 * 0.999 <= ours.propose() <= 1e-2 * 1.001
    rewards = [reward for _, _, reward, _ in ours._transitions]
    assert rewards == pytest.approx([0.5, -0.1, 0.6])
    state, _, _, following = ours._transitions[-1]
    assert state[-3:].tolist() == pytest.approx([3.0, 2.5, 2.6])
    assert following[-3:].tolist() == pytest.approx([2.5, 2.6, 2.0])


def test_the_same_seed_proposes_the_same_rates() -> None:
    def rates(seed: int) -> list[float]:
        ours, proposed = agent(seed), []
        for step in range(40):
            ours.observe(3.0 / (step + 1))
            proposed.append(ours.propose())
        return proposed

    assert rates(0) == rates(0)
    assert rates(0) != rates(1)


def test_schedules() -> None:
    fixed = Fixed(0.1).begin(Generator())
    cosine = Cosine(0.1, steps=4).begin(Generator())
    proposed = []
    for _ in range(6):
        fixed.observe(1.0)
        cosine.observe(1.0)
        assert fixed.propose() == 0.1
        proposed.append(cosine.propose())
    expected = [0.1 * (1 + math.cos(math.pi * min(t / 4, 1))) / 2 for t in range(6)]
    assert proposed == pytest.approx(expected)
