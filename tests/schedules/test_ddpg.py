"""The DDPG agent against its formulas and against torchrl."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import Generator, Tensor

from incontrast.schedules.ddpg import (
    Actor,
    ActorCritic,
    Critic,
    OrnsteinUhlenbeck,
    Replay,
    Transitions,
    follow,
)

WINDOW, FEATURES = 8, 3


def networks(seed: int = 0) -> ActorCritic:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = ActorCritic(WINDOW, FEATURES)
        for target in (made.target_actor, made.target_critic):  # as after some learning
            for parameter in target.parameters():
                parameter.mul_(1.1)
    return made


def batch(size: int = 5) -> Transitions:
    generator = Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    states = draw(size, WINDOW, FEATURES)
    return Transitions(states, 2 * draw(size) - 1, draw(size), draw(size, WINDOW, FEATURES))


def test_networks_are_the_papers() -> None:
    actor, critic = Actor(), Critic(8)
    assert (actor.memory.num_layers, actor.memory.hidden_size) == (2, 20)
    widths = [layer.out_features for layer in critic.layers if hasattr(layer, "out_features")]
    assert widths == [10, 10, 1]


def test_critic_and_actor_losses_are_their_formulas() -> None:
    ours = networks()
    states, actions, rewards, following = batch()
    squares, values = [], []
    for i in range(5):
        future = ours.target_critic(following[[i]], ours.target_actor(following[[i]]))
        target = rewards[i] + 0.9 * future
        squares.append((ours.critic(states[[i]], actions[[i]]) - target).item() ** 2)
        values.append(ours.critic(states[[i]], ours.actor(states[[i]])).item())
    assert ours.critic_loss(batch()).item() == pytest.approx(sum(squares) / 5, rel=1e-5)
    assert ours.actor_loss(batch()).item() == pytest.approx(-sum(values) / 5, rel=1e-5)


def test_losses_and_gradients_are_torchrls() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensordict import TensorDict
        from tensordict.nn import TensorDictModule
        from torchrl.objectives import DDPGLoss, ValueEstimators

        ours, data = networks(), batch(16)
        actor = _Column(copy.deepcopy(ours.actor))
        critic = _Column(copy.deepcopy(ours.critic))
        theirs = DDPGLoss(
            TensorDictModule(actor, ["observation"], ["action"]),
            TensorDictModule(critic, ["observation", "action"], ["state_action_value"]),
            loss_function="l2",
            delay_actor=True,
            delay_value=True,
        )
        theirs.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
        for targets, twin in (
            (theirs.target_actor_network_params, ours.target_actor),
            (theirs.target_value_network_params, ours.target_critic),
        ):
            state = {f"module.network.{name}": p for name, p in twin.named_parameters()}
            for name, value in targets.flatten_keys(".").items():
                value.data.copy_(state[name])
        done = torch.zeros(16, 1, dtype=torch.bool)
        following = {
            "observation": data.following,
            "reward": data.reward[:, None],
            "done": done,
            "terminated": done,
        }
        rows = {"observation": data.state, "action": data.action[:, None], "next": following}
        losses = theirs(TensorDict(rows, batch_size=[16]))
        (losses["loss_value"] + losses["loss_actor"]).backward()
    critic_loss, actor_loss = ours.critic_loss(data), ours.actor_loss(data)
    assert critic_loss.item() == pytest.approx(losses["loss_value"].item(), rel=1e-5)
    assert actor_loss.item() == pytest.approx(losses["loss_actor"].item(), rel=1e-5)
    critic_loss.backward()
    critic_gradients = {n: p.grad.clone() for n, p in ours.critic.named_parameters()}
    actor_loss.backward()
    for params, expected in (
        (theirs.value_network_params, critic_gradients),
        (theirs.actor_network_params, {n: p.grad for n, p in ours.actor.named_parameters()}),
    ):
        for name, value in params.flatten_keys(".").items():
            torch.testing.assert_close(value.grad, expected[name.removeprefix("module.network.")])


class _Column(torch.nn.Module):
    """Our networks give and take (n,) actions and values, torchrl's (n, 1)."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, state: Tensor, action: Tensor | None = None) -> Tensor:
        inputs = (state,) if action is None else (state, action[:, 0])
        return self.network(*inputs)[:, None]


def test_learning_moves_all_four_networks() -> None:
    ours = networks()
    before = copy.deepcopy(ours.state_dict())
    ours.learn(batch())
    moved = {n.split(".")[0] for n, v in ours.state_dict().items() if not torch.equal(v, before[n])}
    assert moved == {"actor", "critic", "target_actor", "target_critic"}


def test_replay_forgets_the_oldest() -> None:
    replay = Replay(2)
    for number in range(3):
        replay.add(torch.full((1, 1), float(number)), 0.5, float(number), torch.zeros(1, 1))
    assert replay.all().reward.tolist() == [1.0, 2.0]
    drawn = replay.sample(50, Generator().manual_seed(0))
    assert set(drawn.reward.tolist()) == {1.0, 2.0}
    assert torch.equal(drawn.state[:, 0, 0], drawn.reward)


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
