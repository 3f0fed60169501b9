"""Learning rates by reinforcement learning (the paper's LRL): DDPG, read top to bottom.

An agent sees the recent mini-batch losses (the state), proposes a learning rate (the action) and
is rewarded by the fall of the loss (Eq. 15: r_t = L_t − L_{t+1}). The actor μ is a 2-layer LSTM of
20 units over the losses, the critic Q a 3-layer network of 10 units; both have target twins that
follow with momentum m = 10⁻³ (Lillicrap et al. 2016).

This is the paper's agent to the letter: it explores two decades of learning rate in a run of a few
hundred steps. What comes of that differs from seed to seed (docs/theory.md).
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from incontrast.randomness import seeded

__all__ = ["DDPG", "Actor", "Agent", "Critic", "OrnsteinUhlenbeck"]


@dataclass(frozen=True, kw_only=True)
class DDPG:
    """Rates proposed by a DDPG agent that learns as training goes on.

    Args:
        low: The smallest rate, action −1.
        high: The largest rate, action 1; in between the action is linear in the rate's logarithm.
        window: Losses in a state.
        discount: γ.
        momentum: m, by which target networks follow.
        actor_rate: The actor's own learning rate.
        critic_rate: The critic's own learning rate.
        replay: Transitions in the replay buffer.
        batch: Transitions per update of the agent.
        noise: σ of the exploration noise.
    """

    low: float = 1e-5
    high: float = 1e-3
    window: int = 8
    discount: float = 0.9
    momentum: float = 1e-3
    actor_rate: float = 1e-3
    critic_rate: float = 1e-3
    replay: int = 1000
    batch: int = 16
    noise: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"rates must satisfy 0 < low < high, got {self.low} and {self.high}")
        if self.window < 1 or self.batch < 1 or self.replay < self.batch:
            raise ValueError(
                "window and batch must be at least 1 and replay at least batch, "
                f"got {self.window}, {self.batch} and {self.replay}"
            )

    def begin(self, generator: Generator) -> Agent:
        return Agent(self, generator)


class Actor(nn.Module):
    """μ(s): the recent losses to an action in (−1, 1)."""

    def __init__(self, units: int = 20) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, units, num_layers=2, batch_first=True)
        self.head = nn.Linear(units, 1)

    def forward(self, state: Tensor) -> Tensor:
        hidden, _ = self.memory(state[..., None])  # (n, window) → (n, window, units)
        return torch.tanh(self.head(hidden[:, -1]))[:, 0]  # (n,)


class Critic(nn.Module):
    """Q(s, a): the value of an action in a state."""

    def __init__(self, window: int, units: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(window + 1, units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
            nn.Linear(units, 1),
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([state, action[:, None]], dim=1))[:, 0]  # type: ignore[no-any-return]


class OrnsteinUhlenbeck:
    """Noise that drifts back to 0: n ← n − θ·n + σ·N(0, 1)."""

    def __init__(self, sigma: float, generator: Generator, theta: float = 0.15) -> None:
        self.sigma, self.theta, self.value = sigma, theta, 0.0
        self._generator = generator

    def sample(self) -> float:
        draw = torch.randn((), generator=self._generator).item()
        self.value += -self.theta * self.value + self.sigma * draw
        return self.value


class Agent:
    """One DDPG agent: proposes rates, observes losses, learns from both."""

    def __init__(self, plan: DDPG, generator: Generator) -> None:
        self.plan = plan
        with seeded(generator.initial_seed(), "agent"):
            self.actor, self.critic = Actor(), Critic(plan.window)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.noise = OrnsteinUhlenbeck(plan.noise, generator)
        self._generator = generator
        self._actor_step = torch.optim.Adam(self.actor.parameters(), plan.actor_rate)
        self._critic_step = torch.optim.Adam(self.critic.parameters(), plan.critic_rate)
        self._losses: deque[float] = deque(maxlen=plan.window)
        self._transitions: deque[tuple[Tensor, float, float, Tensor]] = deque(maxlen=plan.replay)
        self._state = torch.zeros(plan.window)
        self._action: float | None = None

    def observe(self, loss: float) -> None:
        """Take in the loss at the current weights: the fall since the last action is its reward."""
        before = self._losses[-1] if self._losses else loss
        self._losses.append(loss)
        padding = [self._losses[0]] * (self.plan.window - len(self._losses))
        state = torch.tensor(padding + list(self._losses))
        if self._action is not None:
            self._transitions.append((self._state, self._action, before - loss, state))
        self._state = state
        if len(self._transitions) >= self.plan.batch:
            self.learn(self._sample())

    def propose(self) -> float:
        """a_t = μ(s_t) + N_t (Eq. 14), as a rate."""
        with torch.no_grad():
            action = self.actor(self._state[None]).item() + self.noise.sample()
        self._action = min(max(action, -1.0), 1.0)
        low, high = math.log(self.plan.low), math.log(self.plan.high)
        return math.exp(low + (self._action + 1.0) / 2.0 * (high - low))

    def learn(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        """A step of the critic (temporal difference), the actor (policy gradient), the targets."""
        _descend(self._critic_step, self.critic_loss(batch))
        _descend(self._actor_step, self.actor_loss(batch))
        follow(self.target_actor, self.actor, self.plan.momentum)
        follow(self.target_critic, self.critic, self.plan.momentum)

    def critic_loss(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """(Q(s, a) − (r + γ·Q′(s′, μ′(s′))))², mean over the batch."""
        state, action, reward, following = batch
        with torch.no_grad():
            future = self.target_critic(following, self.target_actor(following))
        return nn.functional.mse_loss(
            self.critic(state, action), reward + self.plan.discount * future
        )

    def actor_loss(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """−Q(s, μ(s)), mean over the batch."""
        state = batch[0]
        return -self.critic(state, self.actor(state)).mean()  # type: ignore[no-any-return]

    def _sample(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        picks = torch.randint(
            len(self._transitions), (self.plan.batch,), generator=self._generator
        ).tolist()
        states, actions, rewards, following = zip(
            *(self._transitions[pick] for pick in picks), strict=True
        )
        return (
            torch.stack(states),
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.stack(following),
        )


def follow(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """θ′ ← (1 − m)·θ′ + m·θ."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), momentum)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
