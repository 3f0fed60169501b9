"""The paper's LRL to the letter: an agent that chooses the learning rate of every step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from incontrast.bounds import check_whole
from incontrast.randomness import seeded
from incontrast.schedules.ddpg import ActorCritic, OrnsteinUhlenbeck, Replay
from incontrast.schedules.schedule import LearningRate, Schedule, ScheduleState, Verdict


@dataclass(frozen=True, kw_only=True)
class DDPG(Schedule):
    """Learning rates of a DDPG agent that learns while training runs, as the paper has it.

    It explores two decades of learning rate in a run of a few hundred steps. What comes of that
    differs from seed to seed (docs/explanation/learning-rates.md); ``Learned()`` is the one to use.

    Args:
        low: The smallest learning rate, action −1.
        high: The largest, action 1; in between the action is linear in the logarithm.
        window: Losses in a state.
        discount: γ.
        momentum: m, by which target networks follow.
        actor_lr: The actor's own learning rate.
        critic_lr: The critic's own learning rate.
        replay: Transitions in the replay buffer.
        batch_size: Transitions per update of the agent.
        noise: σ of the exploration noise.
    """

    low: float = 1e-5
    high: float = 1e-3
    window: int = 8
    discount: float = 0.9
    momentum: float = 1e-3
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    replay: int = 1000
    batch_size: int = 16
    noise: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(
                f"learning rates must satisfy 0 < low < high, got {self.low} and {self.high}"
            )
        check_whole(1, window=self.window, batch_size=self.batch_size)
        check_whole(self.batch_size, "it holds the batches", replay=self.replay)

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> Agent:
        """A new agent: the paper's begins afresh with every update."""
        return Agent(self, generator)


class Agent(LearningRate):
    """One agent: chooses learning rates, observes losses, learns from both."""

    def __init__(self, schedule: DDPG, generator: Generator) -> None:
        self.schedule = schedule
        with seeded(generator.initial_seed(), "agent"):
            self.networks = ActorCritic(
                schedule.window,
                discount=schedule.discount,
                momentum=schedule.momentum,
                actor_lr=schedule.actor_lr,
                critic_lr=schedule.critic_lr,
            )
        self.noise = OrnsteinUhlenbeck(schedule.noise, generator)
        self.replay = Replay(schedule.replay)
        self._generator = generator
        self._losses: deque[float] = deque(maxlen=schedule.window)
        self._state = torch.zeros(schedule.window, 1)
        self._action: float | None = None

    watches: ClassVar[bool] = True

    def observe(self, loss: float) -> Verdict | None:
        """Take in the loss as it is now: its fall is the last action's reward (Eq. 15)."""
        before = self._losses[-1] if self._losses else loss
        self._losses.append(loss)
        padding = [self._losses[0]] * (self.schedule.window - len(self._losses))
        state = torch.tensor(padding + list(self._losses))[:, None]
        if self._action is not None:
            self.replay.add(self._state, self._action, before - loss, state)
        self._state = state
        if len(self.replay) >= self.schedule.batch_size:
            self.networks.learn(self.replay.sample(self.schedule.batch_size, self._generator))
        return None

    def next_lr(self, progress: float) -> float:
        """a_t = μ(s_t) + N_t (Eq. 14), as a learning rate."""
        action = self.networks.act(self._state) + self.noise.sample()
        self._action = min(max(action, -1.0), 1.0)
        low, high = math.log(self.schedule.low), math.log(self.schedule.high)
        return math.exp(low + (self._action + 1.0) / 2.0 * (high - low))
