"""Deep deterministic policy gradient (Lillicrap et al. 2016) for learning rates, top to bottom.

An agent sees the recent past (the state), chooses a learning rate (the action) and is rewarded by
the fall of the loss. The actor μ is a 2-layer LSTM of 20 units over the state, the critic Q a
3-layer network of 10 units; both have target twins that follow with momentum m = 10⁻³. This is the
paper's LRL (Eq. 13–15); ``schedules/learned.py`` builds the agent that users get on it.
"""

import copy
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn


class Actor(nn.Module):
    """μ(s): (n, window, features) states to (n,) actions in (−1, 1)."""

    def __init__(self, features: int = 1, units: int = 20) -> None:
        super().__init__()
        self.memory = nn.LSTM(features, units, num_layers=2, batch_first=True)
        self.head = nn.Linear(units, 1)

    def forward(self, state: Tensor) -> Tensor:
        hidden, _ = self.memory(state)  # (n, window, units)
        return torch.tanh(self.head(hidden[:, -1]))[:, 0]


class Critic(nn.Module):
    """Q(s, a): the value of (n,) actions in (n, window, features) states."""

    def __init__(self, inputs: int, units: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs + 1, units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
            nn.Linear(units, 1),
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([state.flatten(1), action[:, None]], dim=1))[:, 0]  # type: ignore[no-any-return]


class OrnsteinUhlenbeck:
    """Noise that drifts back to 0: n ← n − θ·n + σ·N(0, 1)."""

    def __init__(self, sigma: float, generator: Generator, theta: float = 0.15) -> None:
        self.sigma, self.theta, self.value = sigma, theta, 0.0
        self._generator = generator

    def sample(self) -> float:
        draw = torch.randn((), generator=self._generator).item()
        self.value += -self.theta * self.value + self.sigma * draw
        return self.value


class Transitions(NamedTuple):
    """n times (s, a, r, s′); one of them in a replay buffer, where there is no n."""

    state: Tensor  # (n, window, features)
    action: Tensor  # (n,)
    reward: Tensor  # (n,)
    following: Tensor  # (n, window, features)


class Replay:
    def __init__(self, size: int) -> None:
        self._kept: deque[Transitions] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, state: Tensor, action: float, reward: float, following: Tensor) -> None:
        self._kept.append(Transitions(state, torch.tensor(action), torch.tensor(reward), following))

    def sample(self, count: int, generator: Generator) -> Transitions:
        picks = torch.randint(len(self._kept), (count,), generator=generator)
        return _stacked(self._kept[pick] for pick in picks.tolist())

    def all(self) -> Transitions:
        return _stacked(self._kept)

    def extend(self, transitions: Transitions) -> None:
        self._kept.extend(map(Transitions._make, zip(*transitions, strict=True)))


def _stacked(rows: Iterable[Transitions]) -> Transitions:
    return Transitions._make(map(torch.stack, zip(*rows, strict=True)))


class ActorCritic(nn.Module):
    """The four networks of an agent, and how they learn; a state is (window, features)."""

    def __init__(
        self,
        window: int,
        features: int = 1,
        *,
        discount: float = 0.9,  # γ
        momentum: float = 1e-3,  # m, by which target networks follow
        actor_lr: float = 1e-3,
        critic_lr: float = 1e-3,
    ) -> None:
        super().__init__()
        self.discount, self.momentum = discount, momentum
        self.actor, self.critic = Actor(features), Critic(window * features)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self._actor_step = torch.optim.Adam(self.actor.parameters(), actor_lr)
        self._critic_step = torch.optim.Adam(self.critic.parameters(), critic_lr)

    @torch.no_grad()
    def act(self, state: Tensor) -> float:
        return float(self.actor(state[None]))

    def learn(self, batch: Transitions) -> None:
        """A step of the critic (temporal difference), the actor (policy gradient), the targets."""
        _descend(self._critic_step, self.critic_loss(batch))
        _descend(self._actor_step, self.actor_loss(batch))
        follow(self.target_actor, self.actor, self.momentum)
        follow(self.target_critic, self.critic, self.momentum)

    def critic_loss(self, batch: Transitions) -> Tensor:
        """(Q(s, a) − (r + γ·Q′(s′, μ′(s′))))², mean over the batch."""
        with torch.no_grad():
            future = self.target_critic(batch.following, self.target_actor(batch.following))
        target = batch.reward + self.discount * future
        return nn.functional.mse_loss(self.critic(batch.state, batch.action), target)

    def actor_loss(self, batch: Transitions) -> Tensor:
        """−Q(s, μ(s)), mean over the batch."""
        return -self.critic(batch.state, self.actor(batch.state)).mean()  # type: ignore[no-any-return]


def follow(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """θ′ ← (1 − m)·θ′ + m·θ."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), momentum)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
